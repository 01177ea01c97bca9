"""Sampling against tomotopy with as many threads: seconds to its likelihood after 200 iterations."""

from __future__ import annotations

from typing import Any

from benchmarks import topics_data
from benchmarks.frame import Part, answer, tell
from benchmarks.ml_part import Line
from benchmarks.topics_fit import SAMPLING, Curve, curve_of, fit, tomotopy
from benchmarks.topics_part import WORKERS, Asked, spark_and_servers

# Topics, and times less seconds than tomotopy's; iterations of ours, which may need more than tomotopy's.
GOALS = {20: 1 / 1.5, 100: 1 / 1.2, 1000: 1 / 0.9}
ITERATIONS, MORE = 200, 260
EVERY = 10
SHOWN = (10, 50, 100, 200)


def measure(asked: Asked) -> Part:
    """Train as ``via="auto"`` chooses; with 100 topics, with two workers and servers, too."""
    counts = topics_data.kos(asked.data_dir)
    tokens = int(counts.data.sum())
    lines: list[Any] = []
    sizes: list[dict[str, Any]] = []
    with spark_and_servers(asked, "tomotopy") as spark:
        frame = topics_data.framed(spark, counts, 2)
        for topics, goal in GOALS.items():
            seconds: list[tuple[float, float]] = []
            shared: list[tuple[float, float]] = []
            for _ in range(asked.rounds):
                theirs = tomotopy(counts, topics, ITERATIONS, EVERY)
                target, theirs_s = theirs.at(ITERATIONS), float(theirs.seconds[-1])
                model, whole_s = fit(frame, topics, MORE, SAMPLING, workers=None)
                ours = curve_of(model)
                seconds.append((theirs_s, ours.seconds_to(target)))
                tell(f"K={topics}: tomotopy {theirs_s:.2f} s to {target:,.0f}; ours {seconds[-1][1]:.2f} s")
                tell(f"K={topics}: {whole_s:.1f} s of fit; {model.summary.placement}")
                sizes = [*sizes, *_by_iteration(topics, theirs, ours, tokens)]
                if topics == 100:
                    with_servers = curve_of(fit(frame, topics, MORE, SAMPLING, workers=WORKERS)[0])
                    shared.append((theirs_s, with_servers.seconds_to(target)))
                    tell(f"K={topics}: two workers with servers {shared[-1][1]:.2f} s")
            what = f"KOS, K={topics}: s to its likelihood after {ITERATIONS}"
            lines.append(Line(what, "tomotopy", "s", goal, *zip(*seconds, strict=True)))
            if shared:
                lines.append(Line(f"{what}, with servers", "tomotopy", "s", 0.4, *zip(*shared, strict=True)))
    return Part(lines, facts={"tokens": f"{tokens:,}"}, sizes=sizes)


def _by_iteration(topics: int, theirs: Curve, ours: Curve, tokens: int) -> list[dict[str, Any]]:
    return [
        {
            "topics": str(topics),
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
