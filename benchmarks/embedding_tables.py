"""Pulls and pushes of embedding tables: each optimizer against plain blocks, on this machine and over slow links.

docs/performance/online.md says how to read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks import frame
from benchmarks.frame import Benchmark, Line, Part, ask, option, tell
from benchmarks.namespaces import hosts, served
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
class Args(frame.Args):
    rounds: int = option(21, "Turns that the medians are of.", least=1)
    rate: str = option("1gbit", "Rate of each link, as tc writes it.")
    servers: int = option(1, "Servers of the fleet.", least=1)
    keys: int = option(1_000_000, "Keys that the table has.", least=1)
    addresses: tuple[str, ...] = option(("",), "Addresses of a fleet; default: a new one.")
    token_file: str = option("", "File of that fleet's token.")


def links(args: Args) -> Any:
    """Measure over links: a host for the client, and one for each server."""
    with hosts(1 + args.servers, args.rate) as (client, *others), served(others) as (addresses, token_file):
        remote = replace(args, addresses=addresses, token_file=token_file)
        return ask(here, remote, "embedding_tables", client.command())


class Batches:
    """Draws keys of a table, and times calls with new keys."""

    def __init__(self, args: Args) -> None:
        self.random = np.random.default_rng(0)
        self.all = np.unique(self.random.integers(0, MAX_KEY, args.keys))
        self.gradients = self.random.normal(size=(max(ROWS * FIELDS, KEYS), K)).astype(np.float32)
        self._rounds = args.rounds

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


def here(args: Args) -> Part:
    """Pull and push the weights of new keys in each turn."""
    fleet: dict[str, Any] = {"fleet": args.addresses, "tokenFile": args.token_file}
    batches = Batches(args)
    count = min(KEYS, batches.all.size)
    lines: list[Line] = []
    rows: list[dict[str, Any]] = []
    with PS2Context.getOrCreate(**(fleet if args.token_file else {"servers": args.servers})):
        plain = DCV.sparse(2**63, K, layout="column").matrix()
        _fill(batches, lambda keys, values: plain.add(columns=keys, values=values))
        blocks = batches.time(
            batches.distinct,
            lambda keys: plain.pull(columns=keys),
            lambda keys: plain.add(columns=keys, values=batches.gradients[:count]),
        )
        plain.free()
        rows.append(_row("blocks, plain", "float32", blocks))
        for optimizer in OPTIMIZERS:
            for wire in WIRES if optimizer == "adagrad" else WIRES[:1]:
                distinct, skewed = _times(batches, EmbeddingTable(K, optimizer, wire=wire))
                gradients = wire or "float32"
                rows.append(_row(f"{optimizer}, {count:,} distinct keys", gradients, distinct))
                rows.append(_row(f"{optimizer}, {ROWS:,} x {FIELDS} keys", gradients, skewed))
                tell(f"{rows[-2]}, {rows[-1]}")
                for what, ours, baseline in zip(("pull", "push"), distinct, blocks, strict=True):
                    ms = list(1e3 * baseline), list(1e3 * ours)
                    lines.append(Line(f"{what}, {optimizer}, {gradients}", "plain blocks", "ms", None, *ms))
    return Part(lines, facts={"k": K, "keys of a call": count}, table=rows)


def _times(batches: Batches, table: EmbeddingTable) -> tuple[Any, Any]:
    """Return the times of calls with distinct keys, and of those with the keys of a batch of rows."""
    _fill(batches, table.pushDistinct)
    rows = batches.gradients[: ROWS * FIELDS].reshape(ROWS, FIELDS, K)
    result = batches.time(
        batches.distinct,
        table.pullDistinct,
        lambda keys: table.pushDistinct(keys, batches.gradients[: keys.size]),
    )
    skewed = batches.time(batches.skewed, table.pull, lambda keys: table.push(keys, rows))
    table.free()
    return result, skewed


def _fill(batches: Batches, push: Callable[[Any, Any], Any]) -> None:
    for begin in range(0, batches.all.size, KEYS):
        keys = batches.all[begin : begin + KEYS]
        push(keys, batches.gradients[: keys.size])


def _row(what: str, wire: str, taken: Any) -> dict[str, Any]:
    pull, push = np.median(taken, axis=1) * 1e3
    return {"call": what, "gradients": wire, "pull ms": f"{pull:.1f}", "push ms": f"{push:.1f}"}


BENCHMARK = Benchmark("embedding_tables", Args, {"here": here, "links": links})

if __name__ == "__main__":
    BENCHMARK.main()
