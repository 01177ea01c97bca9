"""What the parts of ``benchmarks.run`` are asked for and answer; each runs in a process, and a Spark, of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from benchmarks.ratio import Found


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        rounds: turns that the medians are of.
        data: a libsvm file for the part news20; None: rows of that shape are generated.
        features: sizes for the part features.
        mllib: whether pyspark.ml trains at these sizes, too.
    """

    rounds: int
    data: str | None
    features: tuple[int, ...]
    mllib: bool


@dataclass(frozen=True)
class Check:
    """A number that has to be small for a part's ratios to mean anything."""

    what: str
    value: float
    at_most: float

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.value <= self.at_most}


@dataclass(frozen=True)
class Part:
    """What a part found.

    Attributes:
        facts: what was measured, for the heading.
        sizes: of the part features: a line of its table each.
    """

    lines: list[Found]
    checks: list[Check] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    sizes: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "facts": self.facts,
            "lines": [line.as_json() for line in self.lines],
            "checks": [check.as_json() for check in self.checks],
            "sizes": self.sizes,
        }


def ask(part: str, asked: Asked) -> dict[str, Any]:
    """Run a part in a fresh process; return what it found as plain data."""
    command = [sys.executable, "-m", f"benchmarks.run_{part}", json.dumps(asdict(asked))]
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
