"""Online learning against models retrained every simulated day, on generated clicks with drift: AUC.

    python -m benchmarks.drift --plots docs/images

docs/performance/online.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from benchmarks.compared import print_report
from benchmarks.frame import Check, Part, command, exit_code, machine, publish, tell
from benchmarks.local_spark import start_spark
from examples.generated_clicks import IDS, NUMBERS, ClickLog
from ps2 import PS2Context
from ps2.algorithms.online.program import OnlineProgram
from ps2.algorithms.online.settings import OnlineSettings
from ps2.algorithms.training.streams.labelled_rows import LabelledRows
from ps2.algorithms.training.streams.progressive import Progressive, tally_of
from ps2.array_types import Float64s
from ps2.data.hashing import Field, FieldHasher
from ps2.data.key_rows import KeyRows
from ps2.plot_extra import needs_matplotlib

HASHER = FieldHasher((*map(Field.categorical, IDS), *map(Field.buckets, NUMBERS)))
BATCH = 8192
HOURS = 24
# Points of the plot's lines in a day.
POINTS = 4
ONLINE, RETRAINED, TRUTH = "online", "retrained every day", "true probability"
NO_WEIGHTS = np.empty(0, np.float32)


@dataclass(frozen=True)
class Day:
    """A day's rows.

    Attributes:
        truth: log-odds that labels were drawn with.
    """

    rows: KeyRows
    labels: npt.NDArray[np.float32]
    truth: Float64s

    @staticmethod
    def of(log: ClickLog, day: int, rows: int) -> Day:
        """Generate and hash the rows."""
        batches = list(log.day(day, rows))
        labels = np.concatenate([batch["label"].to_numpy() for batch in batches]).astype(np.float32)
        probability = np.concatenate([batch["probability"].to_numpy() for batch in batches])
        keyed = KeyRows.joined([HASHER.rows(batch) for batch in batches])
        return Day(keyed, labels, np.log(probability) - np.log1p(-probability))

    def __len__(self) -> int:
        return len(self.labels)

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, LabelledRows]]:
        """Yield the rows in batches, each with its place."""
        for at in range(begin, end, BATCH):
            until = min(end, at + BATCH)
            yield at, LabelledRows(self.rows.take(at, until), self.labels[at:until])


@dataclass(frozen=True)
class Learner:
    """A model that learns all rows in their order, and serves predictions with weights of an earlier time.

    Attributes:
        a_day: how often a day the served weights are renewed; None: for each batch.
    """

    program: OnlineProgram
    a_day: int | None

    def margins(self, day: Day) -> Float64s:
        """Predict a day's rows, then learn from them; in parts, if the weights are renewed within the day."""
        found = np.empty(len(day))
        if self.a_day is None:
            for at, piece in day.pieces(0, len(day)):
                found[at : at + len(piece.labels)] = self.program.learn(piece)
            return found
        bounds = np.linspace(0, len(day), self.a_day + 1).astype(int)
        for begin, end in pairwise(bounds):
            found[begin:end] = self.predicted(day, begin, end)
            for _, piece in day.pieces(begin, end):
                self.program.learn(piece)
        return found

    def predicted(self, day: Day, begin: int, end: int) -> Float64s:
        """Predict rows, and learn nothing."""
        self.program.table.flush()
        found = [self.program.margins(piece.rows) for _, piece in day.pieces(begin, end)]
        return np.concatenate([*found, np.empty(0)])


@command(
    click.option("--days", type=click.IntRange(3), default=6),
    click.option("--rows", type=click.IntRange(1000), default=200_000, help="Of a day."),
    click.option("--ids", type=click.IntRange(1000), default=1_000_000, help="Distinct ids at a time."),
    click.option("--period", type=float, default=40.0, help="Days in which weights come back to where they were."),
    click.option("--turnover", type=float, default=0.02, help="Share of ids that are replaced in a day."),
    click.option("--window", type=click.IntRange(1), default=3, help="Days that a retrained model learns from."),
    click.option("--factors", type=click.IntRange(0), default=0, help="0: logistic regression."),
    click.option("--alpha", type=float, default=0.05, help="Learning rate of FTRL-Proximal."),
    click.option("--seed", type=int, default=0),
    click.option("--plots", type=click.Path(path_type=Path), metavar="DIR", help="Draw drift.png there."),
)
def main(
    days: int,
    rows: int,
    ids: int,
    period: float,
    turnover: float,
    window: int,
    factors: int,
    alpha: float,
    seed: int,
    plots: Path | None,
    form: str,
    output: Path | None,
) -> None:
    """Compare AUC of predictions by how old the weights are that predict."""
    settings = OnlineSettings(factors=factors, alpha=alpha, seed=seed)
    log = ClickLog(ids, period, turnover, seed=seed)
    spark = start_spark("local[1]", "benchmarks.drift", {})
    try:
        with PS2Context.getOrCreate(spark, servers=1):
            part = _measured(log, settings, days, rows, window)
    finally:
        spark.stop()
    report: dict[str, Any] = {"machine": machine(), "rounds": 1, "parts": {"drift": part.as_json()}}
    if plots is not None:
        plot(report["parts"]["drift"], plots / "drift.png")
    publish(report, form, output, lambda: print_report(report))
    sys.exit(exit_code(report, strict=False))


def _measured(log: ClickLog, settings: OnlineSettings, days: int, rows: int, window: int) -> Part:
    ways = {
        ONLINE: Learner(_new(settings), None),
        "weights of the last hour": Learner(_new(settings), HOURS),
        "weights of the last 6 hours": Learner(_new(settings), 4),
        "weights of the last day": Learner(_new(settings), 1),
    }
    tallies: dict[str, list[Float64s]] = {}
    before: list[Day] = []
    for number in range(days):
        day = Day.of(log, number, rows)
        margins = {TRUTH: day.truth, **{name: learner.margins(day) for name, learner in ways.items()}}
        if before:
            margins[RETRAINED] = _retrained(settings, before, day)
            for name, found in margins.items():
                tallies.setdefault(name, []).extend(_by_point(found, day.labels))
        before = [*before, day][-window:]
        tell(f"day {number}: {', '.join(f'{name} {_auc(tallies[name][-POINTS:]):.4f}' for name in tallies)}")
    aucs = {name: _auc(found) for name, found in tallies.items()}
    sizes = [
        {
            "predictions": name,
            "AUC": f"{auc:.4f}",
            "less than online": f"{aucs[ONLINE] - auc:.4f}",
            "log loss": f"{Progressive.of(np.sum(tallies[name], axis=0)).logLoss:.4f}",
        }
        for name, auc in aucs.items()
    ]
    checks = [
        Check("AUC of models retrained every day less that of online learning", aucs[RETRAINED] - aucs[ONLINE], 0)
    ]
    curves = {name: [[_auc([one]) for one in found]] for name, found in tallies.items()}
    facts = {"days": days, "rows a day": f"{rows:,}", "ids": f"{log.ids:,}", "days to retrain on": window}
    facts |= {"period": f"{log.period:g} days", "ids replaced in a day": f"{log.turnover:.0%}"}
    return Part(checks=checks, facts=facts, sizes=sizes, curves={"AUC": curves})


def _retrained(settings: OnlineSettings, before: Sequence[Day], day: Day) -> Float64s:
    """Train a new model on the days before; return its predictions of the day."""
    learner = Learner(_new(settings), 1)
    for one in before:
        for _, piece in one.pieces(0, len(one)):
            learner.program.learn(piece)
    found = learner.predicted(day, 0, len(day))
    learner.program.table.free()
    return found


def _new(settings: OnlineSettings) -> OnlineProgram:
    return OnlineProgram(settings, settings.new_table())


def _by_point(margins: Float64s, labels: npt.NDArray[np.float32]) -> list[Float64s]:
    bounds = np.linspace(0, len(labels), POINTS + 1).astype(int)
    return [tally_of(margins[begin:end], labels[begin:end], NO_WEIGHTS) for begin, end in pairwise(bounds)]


def _auc(tallies: Sequence[Float64s]) -> float:
    return Progressive.of(np.sum(tallies, axis=0)).auc


def plot(part: dict[str, Any], path: Path) -> None:
    """Plot AUC by time, for each way to predict.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    with needs_matplotlib("--plots"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, (aucs,) in part["curves"]["AUC"].items():
        if name == TRUTH:
            axes.set_title(f"{name}: {np.mean(aucs):.4f}", fontsize=10)
            continue
        at = 1 + (np.arange(len(aucs)) + 0.5) / POINTS
        axes.plot(at, aucs, marker=".", label=f"{name}: {np.mean(aucs):.4f}")
    axes.set_xlabel("day")
    axes.set_ylabel("AUC of a quarter of a day")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
