"""What ``benchmarks.embedding_tables`` measures on the client's host."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.frame import Part, answer, tell
from benchmarks.ml_part import Line
from ps2 import DCV, EmbeddingTable, PS2Context
from ps2.client.embedding_table import OptimizerName
from ps2.matrix.partition import Wire

K, KEYS = 16, 100_000
# Rows of a batch of clicks, and keys of a row; a third of them are distinct.
ROWS, FIELDS = 4096, 40
OPTIMIZERS: tuple[OptimizerName, ...] = ("sgd", "adagrad", "adam", "ftrl")
WIRES: tuple[Wire | None, ...] = (None, "float16")
MAX_KEY = 2**63 - 1


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        addresses: of the servers; empty: servers on this machine.
        token_file: of the fleet.
        servers: how many.
        keys: that the table has.
        rounds: turns that the medians are of.
    """

    addresses: tuple[str, ...]
    token_file: str
    servers: int
    keys: int
    rounds: int


class Batches:
    """Draws keys of a table, and times calls with new keys."""

    def __init__(self, asked: Asked) -> None:
        self.random = np.random.default_rng(0)
        self.all = np.unique(self.random.integers(0, MAX_KEY, asked.keys))
        self.gradients = self.random.normal(size=(max(ROWS * FIELDS, KEYS), K)).astype(np.float32)
        self._rounds = asked.rounds

    def distinct(self) -> Any:
        return np.sort(self.random.choice(self.all, min(KEYS, self.all.size), replace=False))

    def skewed(self) -> Any:
        some = self.random.choice(self.all, min(KEYS, self.all.size), replace=False)
        return some[(some.size * self.random.random((ROWS, FIELDS)) ** 2).astype(np.int64)]

    def time(self, draw: Callable[[], Any], pull: Callable[[Any], Any], push: Callable[[Any], Any]) -> Any:
        """Return seconds, shape (2, rounds): of pulls, and of pushes at the same keys."""
        taken = []
        for _ in range(self._rounds + 2):
            keys = draw()
            began = time.perf_counter()
            pull(keys)
            pulled = time.perf_counter()
            push(keys)
            taken.append((pulled - began, time.perf_counter() - pulled))
        return np.array(taken[2:]).T


def measure(asked: Asked) -> Part:
    fleet: dict[str, Any] = {"fleet": asked.addresses, "tokenFile": asked.token_file}
    given = fleet if asked.addresses else {"servers": asked.servers}
    batches = Batches(asked)
    lines: list[Line] = []
    sizes: list[dict[str, Any]] = []
    with PS2Context.getOrCreate(**given):
        plain = DCV.sparse(2**63, K, layout="column").matrix()
        _fill(batches, lambda keys, values: plain.add(columns=keys, values=values))
        count = min(KEYS, batches.all.size)
        blocks = batches.time(
            batches.distinct,
            lambda keys: plain.pull(columns=keys),
            lambda keys: plain.add(columns=keys, values=batches.gradients[:count]),
        )
        plain.free()
        sizes.append(_size("blocks, plain", "float32", blocks))
        for optimizer in OPTIMIZERS:
            for wire in WIRES if optimizer == "adagrad" else WIRES[:1]:
                found, skewed = _times(batches, EmbeddingTable(K, optimizer, wire=wire))
                gradients = wire or "float32"
                sizes.append(_size(f"{optimizer}, {count:,} distinct keys", gradients, found))
                sizes.append(_size(f"{optimizer}, {ROWS:,} x {FIELDS} keys", gradients, skewed))
                tell(f"{sizes[-2]}, {sizes[-1]}")
                for what, ours, baseline in zip(("pull", "push"), found, blocks, strict=True):
                    ms = list(1e3 * baseline), list(1e3 * ours)
                    lines.append(Line(f"{what}, {optimizer}, {gradients}", "plain blocks", "ms", None, *ms))
    facts = {"servers": asked.servers, "keys": f"{batches.all.size:,}", "k": K, "of a call": f"{count:,}"}
    return Part(lines, facts=facts, sizes=sizes)


def _times(batches: Batches, table: EmbeddingTable) -> tuple[Any, Any]:
    """Return the times of calls with distinct keys, and of those with the keys of a batch of rows."""
    _fill(batches, table.pushDistinct)
    rows = batches.gradients[: ROWS * FIELDS].reshape(ROWS, FIELDS, K)
    found = batches.time(
        batches.distinct,
        table.pullDistinct,
        lambda keys: table.pushDistinct(keys, batches.gradients[: keys.size]),
    )
    skewed = batches.time(batches.skewed, table.pull, lambda keys: table.push(keys, rows))
    table.free()
    return found, skewed


def _fill(batches: Batches, push: Callable[[Any, Any], Any]) -> None:
    for begin in range(0, batches.all.size, KEYS):
        keys = batches.all[begin : begin + KEYS]
        push(keys, batches.gradients[: keys.size])


def _size(what: str, wire: str, taken: Any) -> dict[str, Any]:
    pull, push = np.median(taken, axis=1) * 1e3
    return {"call": what, "gradients": wire, "pull ms": f"{pull:.1f}", "push ms": f"{push:.1f}"}


if __name__ == "__main__":
    answer(Asked, measure)
