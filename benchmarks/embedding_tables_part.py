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

K, KEYS = 16, 100_000
# Rows of a batch of clicks, and keys of a row; a third of them are distinct.
ROWS, FIELDS = 4096, 40
OPTIMIZERS = ("sgd", "adagrad", "adam", "ftrl")
MOST = 2**63 - 1


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
        self.all = np.unique(self.random.integers(0, MOST, asked.keys))
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
            for wire in (None, "float16") if optimizer == "adagrad" else (None,):
                table = EmbeddingTable(K, optimizer, wire=wire)
                _fill(batches, lambda keys, values, table=table: table.push_distinct(keys, values))
                found = batches.time(
                    batches.distinct,
                    table.pull_distinct,
                    lambda keys, table=table: table.push_distinct(keys, batches.gradients[:count]),
                )
                rows = batches.gradients[: ROWS * FIELDS].reshape(ROWS, FIELDS, K)
                skewed = batches.time(
                    batches.skewed, table.pull, lambda keys, table=table, rows=rows: table.push(keys, rows)
                )
                table.free()
                tell(f"{optimizer}: {_size(optimizer, wire or 'float32', found)}")
                sizes.append(_size(f"{optimizer}, {count:,} distinct keys", wire or "float32", found))
                sizes.append(_size(f"{optimizer}, {ROWS:,} x {FIELDS} keys", wire or "float32", skewed))
                for what, ours, baseline in zip(("pull", "push"), found, blocks, strict=True):
                    name, ms = f"{what}, {optimizer}, {wire or 'float32'}", (1e3 * baseline, 1e3 * ours)
                    lines.append(Line(name, "plain blocks", "ms", None, *(list(figures) for figures in ms)))
    facts = {"servers": asked.servers, "keys": f"{batches.all.size:,}", "k": K, "of a call": f"{count:,}"}
    return Part(lines, facts=facts, sizes=sizes)


def _fill(batches: Batches, push: Callable[[Any, Any], Any]) -> None:
    for begin in range(0, batches.all.size, KEYS):
        keys = batches.all[begin : begin + KEYS]
        push(keys, batches.gradients[: keys.size])


def _size(what: str, wire: str, taken: Any) -> dict[str, Any]:
    pull, push = np.median(taken, axis=1) * 1e3
    return {"call": what, "gradients": wire, "pull ms": f"{pull:.1f}", "push ms": f"{push:.1f}"}


if __name__ == "__main__":
    answer(Asked, measure)
