"""Sampling against tomotopy with as many threads: seconds to its likelihood, and tokens a second with many topics."""

from __future__ import annotations

from typing import Any

from benchmarks import topics_data
from benchmarks.frame import Part, answer, tell
from benchmarks.ml_part import Line
from benchmarks.topics_fit import SAMPLING, Curve, curve_of, fit, tomotopy
from benchmarks.topics_part import Asked, spark_and_servers

FEW, ITERATIONS, MORE = 100, 200, 260
MANY, SHOWN = 1000, (10, 20, 50, 100)
EVERY = 10
# Times less seconds than tomotopy's.
FEW_GOAL, MANY_GOAL = 1 / 1.5, 1.0


def measure(asked: Asked) -> Part:
    counts = topics_data.kos(asked.data_dir)
    tokens = int(counts.data.sum())
    few: list[tuple[float, float]] = []
    many: list[tuple[float, float]] = []
    sizes: list[dict[str, Any]] = []
    with spark_and_servers(asked, "tomotopy") as spark:
        frame = topics_data.framed(spark, counts, 2)
        for _ in range(asked.rounds):
            theirs = tomotopy(counts, FEW, ITERATIONS, EVERY)
            ours = curve_of(fit(frame, FEW, MORE, SAMPLING)[0])
            target = theirs.at(ITERATIONS)
            few.append((float(theirs.seconds[-1]), ours.seconds_to(target)))
            tell(f"K={FEW}: tomotopy {few[-1][0]:.2f} s to {target:,.0f}; ours {few[-1][1]:.2f} s")
            theirs = tomotopy(counts, MANY, SHOWN[-1], EVERY)
            ours = curve_of(fit(frame, MANY, SHOWN[-1], SAMPLING)[0])
            many.append((float(theirs.seconds[-1]), float(ours.seconds[-1])))
            sizes = _by_iteration(theirs, ours, tokens)
            tell(f"K={MANY}: {SHOWN[-1]} iterations, tomotopy {many[-1][0]:.2f} s, ours {many[-1][1]:.2f} s")
    lines = [
        Line(
            f"KOS, K={FEW}: s to its likelihood after {ITERATIONS}", "tomotopy", "s", FEW_GOAL, *zip(*few, strict=True)
        ),
        Line(f"KOS, K={MANY}: s of {SHOWN[-1]} iterations", "tomotopy", "s", MANY_GOAL, *zip(*many, strict=True)),
    ]
    return Part(lines, facts={"tokens": f"{tokens:,}"}, sizes=sizes)


def _by_iteration(theirs: Curve, ours: Curve, tokens: int) -> list[dict[str, Any]]:
    return [
        {
            "iteration": str(iteration),
            "tomotopy": f"{theirs.at(iteration):,.0f}",
            "ours": f"{ours.at(iteration):,.0f}",
            "tomotopy M tokens/s": f"{_rate(theirs, iteration, tokens):.2f}",
            "ours M tokens/s": f"{_rate(ours, iteration, tokens):.2f}",
        }
        for iteration in SHOWN
    ]


def _rate(curve: Curve, iteration: int, tokens: int) -> float:
    """Return million tokens a second up to an iteration."""
    return tokens * iteration / float(curve.seconds[curve.iterations == iteration][0]) / 1e6


if __name__ == "__main__":
    answer(Asked, measure)
