"""Where an update of pairs of rows runs: on the servers, on pulled rows, and what ``auto`` chooses (section 6.2.2).

    python -m benchmarks.placement --servers 1,2,4,8 --columns 16,64,128,256,1024 --pairs 1000,10000

docs/placement.md says what is measured and how to read it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from benchmarks.frame import command, facts, machine, publish, read_numbers
from ps2 import DCV, PS2Context
from ps2.cli.output import print_table
from ps2.client.calibration import measure
from ps2.client.matrix import DCVMatrix
from ps2.client.placement import Pairs, choose, row_seconds, server_seconds
from ps2.text_tables import Column

WAYS = ("servers", "rows")
# As in word2vec and DeepWalk: negatives are drawn by degree to this power.
NEGATIVES = 5
POWER = 0.75
LEARNING_RATE = 0.025
SETTLE_S = 1.5
FIRST_ROUNDS = 2
# A choice is as good as the faster way when it costs at most this much more.
CLOSE = 1.2


@dataclass(frozen=True)
class Batch:
    """Pairs of one minibatch: each vertex with one of its context and with negatives, which it shares with others.

    Attributes:
        a: rows of the vertices; each comes ``1 + NEGATIVES`` times.
        b: rows of their contexts and negatives.
        labels: 1 for a context, 0 for a negative.
    """

    a: Any
    b: Any
    labels: Any

    @staticmethod
    def make(pairs: int, vertices: int, seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        popular = np.arange(1, vertices + 1) ** -POWER
        each = 1 + NEGATIVES
        a = np.repeat(rng.integers(0, vertices, -(-pairs // each)), each)[:pairs]
        b = vertices + rng.choice(vertices, pairs, p=popular / popular.sum())
        return Batch(a, b, (np.arange(pairs) % each == 0).astype(np.float64))

    def coefficients(self, dots: Any) -> Any:
        return LEARNING_RATE * (self.labels - 1 / (1 + np.exp(-dots)))


@dataclass(frozen=True)
class Case:
    """One fleet, size of rows and size of batch; seconds are medians, and ``expected_s`` what the model says."""

    servers: int
    columns: int
    pairs: int
    distinct_rows: int
    seconds: dict[str, float]
    expected_s: dict[str, float]
    measuring_s: float
    chosen: str

    @property
    def faster(self) -> str:
        return min(self.seconds, key=lambda way: self.seconds[way])

    @property
    def loss(self) -> float:
        """How many times as long as the faster way the chosen one takes."""
        return self.seconds[self.chosen] / self.seconds[self.faster]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "faster": self.faster, "loss": self.loss, "close": self.loss <= CLOSE}


@command(
    click.option("--servers", default="1,2,4,8", metavar="N,...", help="Sizes of the fleet, one after another."),
    click.option("--columns", default="16,64,128,256,1024", metavar="K,...", help="Elements of a row."),
    click.option("--pairs", default="1000,10000", metavar="N,...", help="Pairs in a batch."),
    click.option("--vertices", type=click.IntRange(1), default=5000, help="Vertices; each has two rows."),
    click.option("--rounds", type=click.IntRange(1), default=9, help="Rounds that the medians are of."),
)
def main(servers: str, columns: str, pairs: str, vertices: int, rounds: int, form: str, output: Path | None) -> None:
    """Measure both ways of updating pairs of rows, and what ``auto`` chooses."""
    sizes = read_numbers(columns), read_numbers(pairs)
    cases: list[Case] = []
    for count in read_numbers(servers):
        click.echo(f"{count} servers", err=True)
        cases += _on_fleet(count, *sizes, vertices, rounds)
    facts_of = machine()
    report = {"machine": facts_of, "rounds": rounds, "cases": [case.as_json() for case in cases]}
    publish(report, form, output, lambda: _print(facts_of, cases))


def _on_fleet(servers: int, columns: Sequence[int], pairs: Sequence[int], vertices: int, rounds: int) -> Iterator[Case]:
    with PS2Context.getOrCreate(servers=servers):
        # Servers load their kernels in the background: the first cases would be about that.
        time.sleep(SETTLE_S * servers)
        for width in columns:
            matrix = DCV.dense(width, 2 * vertices).matrix()
            values = np.random.default_rng(0).uniform(-0.5, 0.5, (2 * vertices, width)) / width
            matrix.push(range(2 * vertices), values.astype(np.float32))
            for count in pairs:
                yield _measure(servers, matrix, Batch.make(count, vertices, seed=count), rounds)


def _measure(servers: int, matrix: DCVMatrix, batch: Batch, rounds: int) -> Case:
    """Take turns, so that what else goes on in the machine hits both ways alike."""
    taken_s: dict[str, list[float]] = {way: [] for way in WAYS}
    began_s = time.perf_counter()
    checked = Pairs.of(batch.a, batch.b, matrix.rows)
    costs = measure(matrix._first._session, matrix._target(), checked)
    measuring_s = time.perf_counter() - began_s
    for round_ in range(FIRST_ROUNDS + rounds):
        for way in WAYS if round_ % 2 else WAYS[::-1]:
            began_s = time.perf_counter()
            matrix.pairUpdate(batch.a, batch.b, batch.coefficients, way)
            if round_ >= FIRST_ROUNDS:
                taken_s[way].append(time.perf_counter() - began_s)
    work = checked.workload(matrix._target())
    return Case(
        servers,
        matrix.dim,
        work.pairs,
        work.distinct_rows,
        {way: median(times) for way, times in taken_s.items()},
        {"servers": server_seconds(costs, work), "rows": row_seconds(costs, work)},
        measuring_s,
        choose(costs, work),
    )


def _print(facts_of: dict[str, Any], cases: Sequence[Case]) -> None:
    click.echo(facts(facts_of))
    click.echo()
    titles = ("servers", "K", "pairs", "rows", "servers ms", "rows ms", "ratio", "model: servers ms", "model: rows ms")
    columns = [*(Column(title, right=True) for title in titles), Column("auto"), Column("is")]
    rows = []
    for case in cases:
        which = (str(case.servers), f"{case.columns:,}", f"{case.pairs:,}", f"{case.distinct_rows:,}")
        times = (f"{1000 * by_way[way]:.2f}" for by_way in (case.seconds, case.expected_s) for way in WAYS)
        servers_ms, rows_ms, *expected = times
        ratio = f"{case.seconds['rows'] / case.seconds['servers']:.2f}"
        rows.append((*which, servers_ms, rows_ms, ratio, *expected, case.chosen, _verdict(case)))
    click.echo("Milliseconds of an update (medians), rows over servers, and what the model expected:")
    print_table(columns, rows)
    click.echo()
    right = sum(case.chosen == case.faster for case in cases)
    close = sum(case.loss <= CLOSE for case in cases)
    click.echo(
        f"auto took the faster way in {right} of {len(cases)} cases, and one within {CLOSE - 1:.0%} of it in {close}; "
        f"measuring took {1000 * median(case.measuring_s for case in cases):.0f} ms (median)"
    )


def _verdict(case: Case) -> str:
    if case.chosen == case.faster:
        return "the faster"
    return f"{'close' if case.loss <= CLOSE else 'SLOWER'}: {case.loss:.2f}"


if __name__ == "__main__":
    main()
