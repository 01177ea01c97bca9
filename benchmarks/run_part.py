"""What the parts of ``benchmarks.run`` are asked for and answer; each runs in a process, and a Spark, of its own."""

from __future__ import annotations

from dataclasses import dataclass


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
