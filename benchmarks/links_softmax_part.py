"""Softmax regression of many classes over slow links: gradients as sufficient factors, value by value, and by choice.

Petuum's example is a model of 325,000 classes and 10,000 features (section 3.4); this one has a hundredth of the
classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.frame import Part, answer, tell
from benchmarks.links_part import WORKERS, Asked, moved, spark_and_fleet
from benchmarks.ml_part import Line
from ps2.algorithms.linear.problem import Problem, SolverOptions
from ps2.algorithms.linear.trainer import train
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.sent_gradients import FACTORS
from ps2.algorithms.training.table import Facts, Table

CLASSES = 3_250
STEPS = 5
# ``auto`` may take this much longer than the better way.
CLOSE = 1.1
HASHED = "hashed"
OPTIONS = SolverOptions("minibatch", "adagrad", lazy=True, steps=STEPS, seed=1, all_columns=True)


@dataclass(frozen=True)
class Case:
    """Rows of a kind.

    Attributes:
        dim: features.
        values: of a row.
        batch: rows of a worker in a step.
        hashed: whether to train on hashed columns, too, which hold the used ones alone.
    """

    dim: int
    values: int
    batch: int
    hashed: bool = False

    def __str__(self) -> str:
        return f"D {self.dim:,}, {self.values:,} values a row, {self.batch:,} rows"

    @property
    def ways(self) -> tuple[str, ...]:
        return (*FACTORS, HASHED) if self.hashed else FACTORS


CASES = (
    Case(10_000, 30, 32, hashed=True),
    Case(10_000, 30, 256),
    Case(1_300, 1_300, 64),
    Case(1_300, 30, 500),
    Case(1_300, 30, 2_000),
)


@dataclass(frozen=True)
class Pace:
    """What a step takes.

    Attributes:
        seconds: median.
        sent_mb, received_mb: of the workers' host, in megabytes, by the counters of its link.
        history: of the training.
    """

    seconds: float
    sent_mb: float
    received_mb: float
    history: Any


def measure(asked: Asked) -> Part:
    lines: list[Line] = []
    sizes: list[dict[str, Any]] = []
    with spark_and_fleet(asked, "softmax") as (spark, ps):
        for case in CASES:
            frame = _frame(spark, case)
            turns: dict[str, list[Pace]] = {way: [] for way in case.ways}
            _train(ps, frame, case, "auto", steps=1)  # Python workers start
            for _ in range(asked.rounds):
                for way, paces in turns.items():
                    paces.append(_train(ps, frame, case, way))
                    tell(f"{case}, {way}: {paces[-1].seconds:.2f} s")
            frame.unpersist()
            seconds = {way: [pace.seconds for pace in paces] for way, paces in turns.items()}
            better = min(("always", "never"), key=lambda way: float(np.median(seconds[way])))
            lines.append(
                Line(f"auto: {case}", f"the better: {better}", "s", 1 / CLOSE, seconds[better], seconds["auto"])
            )
            lines.append(Line(f"auto: {case}", "never", "s", None, seconds["never"], seconds["auto"]))
            sizes += _sizes(case, turns)
    facts = {"classes": f"{CLASSES:,}", "workers": WORKERS, "links": asked.rate, "optimizer": OPTIONS.optimizer}
    return Part(lines, facts=facts, sizes=sizes)


def _sizes(case: Case, turns: dict[str, list[Pace]]) -> Iterator[dict[str, Any]]:
    for way, paces in turns.items():
        told = paces[0].history.gradients
        yield {
            "rows": str(case),
            "factors": way,
            "s a step": f"{np.median([pace.seconds for pace in paces]):.2f}",
            "MB sent": f"{np.median([pace.sent_mb for pace in paces]):.1f}",
            "MB received": f"{np.median([pace.received_mb for pace in paces]):.1f}",
            "as factors": "-" if told is None else f"{told.factored} of {told.count}",
            "MB told: factors, values": "-"
            if told is None
            else f"{told.factor_bytes / 1e6 / STEPS:.1f}, {told.value_bytes / 1e6 / STEPS:.1f}",
        }


def _frame(spark: Any, case: Case) -> Any:
    """Make rows for two steps, whose features and labels are drawn evenly."""
    import pandas as pd
    from pyspark.ml.functions import array_to_vector
    from pyspark.ml.linalg import Vectors

    rng = np.random.default_rng(case.batch)
    count = 2 * WORKERS * case.batch
    labels = rng.integers(0, CLASSES, count).astype(float)
    if case.values == case.dim:
        x = rng.normal(size=(count, case.dim)).astype(np.float32)
        rows = spark.createDataFrame(pd.DataFrame({"x": list(x), "label": labels}))
        frame = rows.select(array_to_vector(rows.x).alias("features"), "label")
    else:
        chosen = [np.sort(rng.choice(case.dim, case.values, replace=False)) for _ in range(count)]
        vectors = [Vectors.sparse(case.dim, at.tolist(), np.ones(case.values).tolist()) for at in chosen]
        frame = spark.createDataFrame(list(zip(vectors, labels.tolist(), strict=True)), ["features", "label"])
    frame = frame.repartition(WORKERS).cache()
    frame.count()
    return frame


def _train(ps: Any, frame: Any, case: Case, way: str, steps: int = STEPS) -> Pace:
    hashed = way == HASHED
    # Each way has other minibatches: workers and servers remember key sets.
    seed = case.ways.index(way) if way in case.ways and steps > 1 else -1
    options = replace(OPTIONS, steps=steps, fraction=0.5, all_columns=not hashed, seed=seed % 2**63)
    for name in FACTORS:
        options = replace(options, factors=name) if name == way else options
    problem = Problem("softmax", case.dim, CLASSES, standardize=False)
    count = float(2 * WORKERS * case.batch)
    facts = Facts(int(count), count, count, (count / CLASSES,) * CLASSES, 0.5 * CLASSES, 0.3 * CLASSES)
    marks: list[tuple[int, int]] = [moved()]
    made = train(ps, Table(frame, ColumnNames(), WORKERS), problem, options, facts, lambda step: marks.append(moved()))
    made.weight.free()
    bytes_of_steps = np.diff(np.array(marks), axis=0)[1:] if steps > 1 else np.zeros((1, 2))
    sent, received = np.median(bytes_of_steps, axis=0) / 1e6
    return Pace(float(np.median(made.history.seconds[1:] or [0.0])), sent, received, made.history)


if __name__ == "__main__":
    answer(Asked, measure)
