"""Online learning against models retrained every simulated day, on generated clicks with drift: AUC.

docs/performance/online.md says how to read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from benchmarks import frame
from benchmarks.frame import Benchmark, Check, Part, option, tell
from benchmarks.local_spark import spark_and_servers
from examples.generated_clicks import IDS, NUMBERS, ClickLog
from ps2.algorithms.online.plan import OnlinePlan
from ps2.algorithms.online.program import OnlineProgram
from ps2.algorithms.training.streams.labelled_rows import LabelledRows
from ps2.algorithms.training.streams.progressive import Progressive, tally_of
from ps2.array_types import Float64s
from ps2.data.hashing import Field, FieldHasher
from ps2.data.key_rows import KeyRows

HASHER = FieldHasher((*map(Field.categorical, IDS), *map(Field.buckets, NUMBERS)))
BATCH = 8192
HOURS = 24
# Points of the plot's lines in a day.
# Points of the plot's lines in a day.
POINTS = 4
ONLINE, RETRAINED, TRUTH = "online", "retrained every day", "true probability"
NO_WEIGHTS = np.empty(0, np.float32)


@dataclass(frozen=True)
class Args(frame.Args):
    days: int = option(6, "Days of clicks.", least=3)
    rows: int = option(200_000, "Rows of a day.", least=1000)
    ids: int = option(1_000_000, "Distinct ids at a time.", least=1000)
    window: int = option(3, "Days that a retrained model learns from.", least=1)


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
        keyed = KeyRows.concatenate([HASHER.rows(batch) for batch in batches])
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
        result = np.empty(len(day))
        if self.a_day is None:
            for at, piece in day.pieces(0, len(day)):
                result[at : at + len(piece.labels)] = self.program.learn(piece)
            return result
        bounds = np.linspace(0, len(day), self.a_day + 1).astype(int)
        for begin, end in pairwise(bounds):
            result[begin:end] = self.predicted(day, begin, end)
            for _, piece in day.pieces(begin, end):
                self.program.learn(piece)
        return result

    def predicted(self, day: Day, begin: int, end: int) -> Float64s:
        """Predict rows, and learn nothing."""
        self.program.table.flush()
        result = [self.program.margins(piece.rows) for _, piece in day.pieces(begin, end)]
        return np.concatenate([*result, np.empty(0)])


def drift(args: Args) -> Part:
    """Compare AUC of predictions by how old the weights are that predict."""
    settings = OnlinePlan(factors=0, alpha=0.05, seed=0)
    # Weights come back to where they were in 40 days, and 2% of the ids are replaced in a day.
    log = ClickLog(args.ids, 40.0, 0.02, seed=0)
    with spark_and_servers("drift", args.memory, workers=1, servers=1):
        tallies = _tallies(log, settings, args)
    aucs = {name: _auc(result) for name, result in tallies.items()}
    rows = [
        {
            "predictions": name,
            "AUC": f"{auc:.4f}",
            "less than online": f"{aucs[ONLINE] - auc:.4f}",
            "log loss": f"{Progressive.of(np.sum(tallies[name], axis=0)).logLoss:.4f}",
        }
        for name, auc in aucs.items()
    ]
    what = "AUC of models retrained every day less that of online learning"
    check = Check(what, aucs[RETRAINED] - aucs[ONLINE], 0)
    curves = {
        name: [(1 + (np.arange(len(result)) + 0.5) / POINTS).tolist(), [_auc([one]) for one in result]]
        for name, result in tallies.items()
        if name != TRUTH
    }
    return Part(checks=[check], table=rows, curves={"AUC by day": curves})


def _tallies(log: ClickLog, settings: OnlinePlan, args: Args) -> dict[str, list[Float64s]]:
    variants = {
        ONLINE: Learner(_new(settings), None),
        "weights of the last hour": Learner(_new(settings), HOURS),
        "weights of the last 6 hours": Learner(_new(settings), 4),
        "weights of the last day": Learner(_new(settings), 1),
    }
    tallies: dict[str, list[Float64s]] = {}
    before: list[Day] = []
    for number in range(args.days):
        day = Day.of(log, number, args.rows)
        margins = {TRUTH: day.truth, **{name: learner.margins(day) for name, learner in variants.items()}}
        if before:
            margins[RETRAINED] = _retrained(settings, before, day)
            for name, result in margins.items():
                tallies.setdefault(name, []).extend(_by_point(result, day.labels))
        before = [*before, day][-args.window :]
        tell(f"day {number}: {', '.join(f'{name} {_auc(tallies[name][-POINTS:]):.4f}' for name in tallies)}")
    return tallies


def _retrained(settings: OnlinePlan, before: Sequence[Day], day: Day) -> Float64s:
    """Train a new model on the days before; return its predictions of the day."""
    learner = Learner(_new(settings), 1)
    for one in before:
        for _, piece in one.pieces(0, len(one)):
            learner.program.learn(piece)
    result = learner.predicted(day, 0, len(day))
    learner.program.table.free()
    return result


def _new(settings: OnlinePlan) -> OnlineProgram:
    return OnlineProgram(settings, settings.new_table())


def _by_point(margins: Float64s, labels: npt.NDArray[np.float32]) -> list[Float64s]:
    bounds = np.linspace(0, len(labels), POINTS + 1).astype(int)
    return [tally_of(margins[begin:end], labels[begin:end], NO_WEIGHTS) for begin, end in pairwise(bounds)]


def _auc(tallies: Sequence[Float64s]) -> float:
    return Progressive.of(np.sum(tallies, axis=0)).auc


BENCHMARK = Benchmark("drift", Args, {"drift": drift})

if __name__ == "__main__":
    BENCHMARK.main()
