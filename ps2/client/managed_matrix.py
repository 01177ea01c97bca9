"""Calls on the keys of a matrix that has a ``KeyPolicy``: time, expiry, eviction, counts, and changes since a mark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from ps2.array_types import Int64s
from ps2.client.arguments import as_indices
from ps2.client.batch import in_batch, submit
from ps2.client.keysets import SPLITS
from ps2.client.plans import Plan, Target
from ps2.client.session import Session
from ps2.errors import ConfigError, OutOfRangeError, StaleMarkError, UsageError
from ps2.matrix.key_policy import KeyPolicy
from ps2.matrix.matrix_time import LATEST_S
from ps2.number_checks import is_number, is_whole
from ps2.ops.table import Array
from ps2.protocol.messages import Operation, Result

Params = Mapping[str, int | float]
Merge = Callable[[list[Result]], Any]

# Operations on slices of slots scan from the last slot to the first. As a start, this value means the last slot.
LAST_SLOT = -1
INT64_MASK = 2**63 - 1


@dataclass(frozen=True)
class KeyStatus:
    """Counts of a matrix's keys, over all servers.

    Attributes:
        active: number of keys with a slot.
        waiting: number of keys that were touched fewer than ``admitAfter`` times; an estimate if it is large.
        admitted: number of times that a key got its slot.
        expired: number of times that a key was removed because of its age.
        evicted: number of times that a key was removed because of ``maxKeys``, or by ``evict`` or ``remove``.
        nowS: the time of the matrix, in seconds.
    """

    active: int
    waiting: int
    admitted: int
    expired: int
    evicted: int
    nowS: float


@dataclass(frozen=True)
class Mark:
    """A point in the history of a matrix's keys, for ``changed`` and ``removed``.

    Attributes:
        lineage: a hash of the lineage ids of all partitions. It changes when the matrix is loaded or rolled back.
        tick: the number of the tick that began with the mark. Each ``mark`` and ``advance`` begins a tick, and the
            servers store with each key the tick of its last change.
    """

    lineage: int
    tick: int

    def to_json(self) -> dict[str, int]:
        return {"lineage": self.lineage, "tick": self.tick}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Mark:
        return cls(int(content["lineage"]), int(content["tick"]))


@dataclass(frozen=True)
class ManagedMatrix:
    """Calls on the managed keys of one matrix. ``DCV`` and ``DCVMatrix`` describe the arguments and errors."""

    session: Session
    target: Target

    @classmethod
    def of(cls, call: str, session: Session, target: Target) -> ManagedMatrix:
        """Raise UsageError, which names ``call``, if the target has no ``KeyPolicy`` or a batch is open."""
        if target.spec.key_policy is None:
            raise UsageError(
                f"{call}: expected a sparse matrix whose keys are managed (DCV.sparse(..., admitAfter=, expireAfterS=, "
                "maxKeys= or init=)), got a matrix without these settings"
            )
        if in_batch():
            raise UsageError(f"{call} cannot be part of a batch: call it before or after")
        return cls(session, target)

    @property
    def policy(self) -> KeyPolicy:
        assert self.target.spec.key_policy is not None
        return self.target.spec.key_policy

    def status(self) -> KeyStatus:
        """Sum the counts of all partitions; see ``DCV.keyStatus``."""
        states, now_s = self._states()
        _, _, active, waiting, admitted, expired, evicted, _ = states.sum(axis=0).tolist()
        return KeyStatus(active, waiting, admitted, expired, evicted, now_s)

    def advance(self, now_s: float, touched: bool) -> None:
        """Advance the time; see ``DCV.advance``."""
        now_s = _seconds("advance: nowS", now_s, minimum=0)
        states, current_s = self._states()
        if now_s < current_s:
            raise OutOfRangeError(
                f"advance: the time of a matrix never goes back: expected at least {current_s:g}, got {now_s:g}"
            )
        params = {"now_s": now_s, "tick": _next_tick(states), "touched": int(bool(touched))}
        self._run_on_partitions("keys_advance", params, mutates=True)

    def expire(self, min_age_s: float | None) -> int:
        """Remove old keys; see ``DCV.expire``."""
        if min_age_s is None:
            min_age_s = self.policy.expire_after_s
        else:
            min_age_s = _seconds("expire: olderThanS", min_age_s, minimum=0)
        if min_age_s is None:
            raise ConfigError("expire: olderThanS: expected an age in seconds, because this matrix has no expireAfterS")
        return self._run_in_slices("keys_expire", lambda slot: {"older_s": min_age_s, "begin": slot})

    def evict(self, keep: int) -> int:
        """Remove the least recently touched keys; see ``DCV.evict``."""
        if not is_whole(keep) or keep < 0:
            raise ConfigError(f"evict: keep: expected a number of keys, got {keep!r}")
        # Keys are spread evenly over the partitions by their hash.
        keep_each = -(-int(keep) // len(self.target.partitions))
        return self._run_in_slices("keys_evict", lambda _: {"keep": keep_each})

    def remove(self, keys: Any) -> int:
        """Remove keys; see ``DCV.remove``."""
        split = SPLITS.split(self.target.spec, self.target.route, as_indices(keys))
        operations = tuple(
            Operation("keys_remove", self.target.matrix, index, keys=key_set) for index, _, key_set in split.key_sets()
        )
        return sum(int(removed[0]) for (removed,) in self._submit(operations, _result_arrays, mutates=True))

    def mark(self) -> Mark:
        """Begin a tick in all partitions; see ``DCVMatrix.mark``."""
        states, _ = self._states()
        tick = _next_tick(states)
        self._run_on_partitions("keys_mark", {"tick": tick}, mutates=True)
        return Mark(_lineage(states), tick)

    def removed(self, since: Mark) -> Int64s:
        """Return removed keys; see ``DCVMatrix.removed``."""
        self._check_lineage(since.lineage)
        pieces = self._run_on_partitions("keys_removed", {"since": since.tick})
        self._check_lineage(since.lineage)
        return np.concatenate([np.empty(0, np.int64), *(piece[0] for piece in pieces)])

    def changed(self, since: Mark | None, rows: int | None) -> Iterator[tuple[Int64s, Array]]:
        """Yield touched keys and their values; see ``DCVMatrix.changed``."""
        rows = self.target.spec.rows if rows is None else rows
        lineage = _lineage(self._states()[0]) if since is None else since.lineage
        self._check_lineage(lineage)
        tick = 0 if since is None else since.tick
        next_slots = {partition.index: LAST_SLOT for partition in self.target.partitions}
        while next_slots:
            operations = tuple(
                Operation(
                    "keys_changed",
                    self.target.matrix,
                    index,
                    params={"since": tick, "positions": rows, "begin": slot},
                )
                for index, slot in next_slots.items()
            )
            pieces = self._submit(operations, _result_arrays)
            for index, (next_slot, keys, values) in zip(tuple(next_slots), pieces, strict=True):
                next_slots[index] = int(next_slot[0])
                if not next_slots[index]:
                    del next_slots[index]
                if keys.size:
                    yield keys, values
        self._check_lineage(lineage)

    def _states(self) -> tuple[Int64s, float]:
        """Return the answers of "keys_state" (``ps2.server``), shape (partitions, 8), and the matrix's time."""
        replies = self._run_on_partitions("keys_state", {})
        return np.stack([state for state, _ in replies]), max(float(now_s[0]) for _, now_s in replies)

    def _check_lineage(self, expected: int) -> None:
        if _lineage(self._states()[0]) != expected:
            raise StaleMarkError(
                "the matrix was loaded or rolled back to a checkpoint after the mark was made: read all keys instead"
            )

    def _run_in_slices(self, name: str, params: Callable[[int], Params]) -> int:
        """Repeat an operation on slices of slots in all partitions; return the number of removed keys.

        An answer is (next, number of removed keys). ``next`` is 0 if the partition is done; else it is the next slot,
        or the number of keys that still have to be removed.
        """
        next_slots, total = {partition.index: LAST_SLOT for partition in self.target.partitions}, 0
        while next_slots:
            operations = tuple(
                Operation(name, self.target.matrix, index, params=params(slot)) for index, slot in next_slots.items()
            )
            answers = [answer for (answer,) in self._submit(operations, _result_arrays, mutates=True)]
            total += sum(int(answer[1]) for answer in answers)
            next_slots = {index: int(rest) for index, (rest, _) in zip(next_slots, answers, strict=True) if rest}
        return total

    def _run_on_partitions(self, name: str, params: Params, mutates: bool = False) -> list[tuple[Array, ...]]:
        """Run an operation once on each partition; return the arrays of each answer."""
        operations = tuple(
            Operation(name, self.target.matrix, partition.index, params=params) for partition in self.target.partitions
        )
        return self._submit(operations, _result_arrays, mutates)

    def _submit(self, operations: tuple[Operation, ...], merge: Merge, mutates: bool = False) -> Any:
        return submit(self.session, Plan(self.target.matrix, self.target.route, operations, merge, mutates))


def _result_arrays(results: Sequence[Result]) -> list[tuple[Array, ...]]:
    return [result.arrays for result in results]


def _next_tick(states: Int64s) -> int:
    """Return a tick that no partition has reached."""
    return int(states[:, 0].max()) + 1


def _lineage(states: Int64s) -> int:
    """Return a hash of the lineages of all partitions."""
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(states[:, 1]).tobytes()) & INT64_MASK


def _seconds(name: str, value: Any, minimum: float) -> float:
    if not is_number(value):
        raise ConfigError(f"{name}: expected a number of seconds, got {value!r}")
    if not math.isfinite(value) or not minimum <= value <= LATEST_S:
        raise ConfigError(f"{name}: expected a number of seconds, from {minimum:g} to {LATEST_S:g}, got {value!r}")
    return float(value)
