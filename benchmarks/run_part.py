"""The settings of the parts of ``benchmarks.run``; each part runs in its own process with its own Spark."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        rounds: number of rounds behind the medians.
        data: a libsvm file for the part news20; None: generate rows of that shape.
        features: sizes for the part features.
        mllib: True if pyspark.ml trains at these sizes, too.
    """

    rounds: int
    data: str | None
    features: tuple[int, ...]
    mllib: bool
