"""What the parts of ``benchmarks.ml`` are asked for and answer; each runs in a process, and a Spark, of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any

import click


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        rounds: turns that the medians are of.
        data_dir: folder of a9a and news20-bigram; empty: no part needs it.
        features: sizes of the part large.
        rows: of the part large.
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


@dataclass(frozen=True)
class Check:
    """A number that has to be small for a model to be right."""

    what: str
    value: float
    at_most: float

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "value": float(self.value),
            "at_most": self.at_most,
            "met": bool(self.value <= self.at_most),
        }


@dataclass(frozen=True)
class Part:
    """What a part found; ``facts`` for its heading."""

    lines: list[Line] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "facts": self.facts,
            "lines": [line.as_json() for line in self.lines],
            "checks": [check.as_json() for check in self.checks],
        }


def ask(part: str, asked: Asked) -> dict[str, Any]:
    """Run a part in a fresh process; return what it found as plain data."""
    command = [sys.executable, "-m", f"benchmarks.ml_{part}", json.dumps(asdict(asked))]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise click.ClickException(f"the part {part!r} ended with {done.returncode}; what it said is above")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def answer(measure: Callable[[Asked], Part]) -> None:
    """Be the process of a part."""
    asked = json.loads(sys.argv[1])
    part = measure(Asked(**{**asked, "features": tuple(asked["features"])}))
    print(json.dumps(part.as_json()))


def tell(text: str) -> None:
    """Say how far a part is."""
    print(f"  {text}", file=sys.stderr, flush=True)
