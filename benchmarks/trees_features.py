"""Many features: seconds a tree for growing numbers of features and a constant number of entries."""

from __future__ import annotations

from statistics import median

from benchmarks import ml_data
from benchmarks.frame import Part, answer, tell
from benchmarks.ml_part import Line
from benchmarks.trees_fit import Settings
from benchmarks.trees_part import Asked, spark_and_servers

ROWS = 100_000
SETTINGS = Settings(trees=6, depth=7, bins=100, via="servers")
# Goal for the largest number of features, relative to the seconds a tree of the smallest.
MAX_RATIO = 3.0


def measure(asked: Asked) -> Part:
    """Let the sizes alternate; the first tree of a training does not count."""
    from ps2.algorithms import GBTClassifier

    tree_s: dict[int, list[float]] = {features: [] for features in asked.features}
    fit_s: dict[int, list[float]] = {features: [] for features in asked.features}
    used: dict[int, int] = {}
    with spark_and_servers(asked, "features") as spark:
        tables = {features: ml_data.generate(spark, ROWS, features) for features in asked.features}
        for round_ in range(1 + asked.rounds):
            for features, data in tables.items():
                summary = GBTClassifier(**SETTINGS.ours()).fit(data.frame).summary
                used[features] = len(data.keys)
                seconds = median(summary.stepSeconds[1:])
                tell(f"{features:,} features: {seconds:.3f} s a tree, {sum(summary.stepSeconds):.2f} s in all")
                if round_:
                    tree_s[features].append(seconds)
                    fit_s[features].append(sum(summary.stepSeconds))
    small, large = min(asked.features), max(asked.features)
    what = f"a tree of {large:,} features; at least 1/{MAX_RATIO:g} is the goal"
    lines = [Line(what, f"of {small:,}, the same entries", "s", 1 / MAX_RATIO, tree_s[small], tree_s[large])]
    sizes = [
        {
            "features": f"{features:,}",
            "used": f"{used[features]:,}",
            "s a tree": f"{median(tree_s[features]):.3f}",
            "times the smallest": f"{median(tree_s[features]) / median(tree_s[small]):.2f}",
        }
        for features in sorted(asked.features)
    ]
    return Part(lines, facts={"rows": ROWS, "entries": ROWS * ml_data.ENTRIES}, sizes=sizes)


if __name__ == "__main__":
    answer(Asked, measure)
