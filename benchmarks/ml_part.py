"""What the parts of ``benchmarks.ml`` are asked for and answer; each runs in a process, and a Spark, of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        rounds: turns that the medians are of.
        data_dir: folder of a9a and news20-bigram; empty: no part needs it.
        features: sizes of the part large.
        rows: of the parts large and ftsgd.
        pyspark: whether pyspark.ml trains in the part large; else ours has to reach ``target``.
        target: objective, where pyspark.ml does not say it.
        memory: of Spark's JVM, as Spark writes it.
    """

    rounds: int
    data_dir: str
    features: tuple[int, ...]
    rows: int
    pyspark: bool
    target: float | None
    memory: str


@dataclass(frozen=True)
class Line:
    """Two sides compared: how many times less ours takes.

    Attributes:
        what: ours does.
        against: what the baseline does.
        unit: of the figures; less is better.
        goal: how many times less ours is to take, at least; None: for information.
        baseline: its figures, in the order in which they were measured.
        ours: likewise.
    """

    what: str
    against: str
    unit: str
    goal: float | None
    baseline: Sequence[float]
    ours: Sequence[float]

    @property
    def times(self) -> float:
        return median(self.baseline) / median(self.ours)

    @property
    def spread(self) -> tuple[float, float] | None:
        """The quartiles of the single turns' ratios; None: there was one turn, or one side took none."""
        if len(self.baseline) != len(self.ours) or len(self.ours) < 2:
            return None
        low, _, high = quantiles(baseline / ours for baseline, ours in zip(self.baseline, self.ours, strict=True))
        return low, high

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "baseline": median(self.baseline),
            "ours": median(self.ours),
            "times": self.times,
            "spread": self.spread,
            "met": None if self.goal is None else bool(self.times >= self.goal),
            "baseline_turns": list(self.baseline),
            "ours_turns": list(self.ours),
        }
