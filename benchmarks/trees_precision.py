"""The cost of integer gradients: AUC beside that of sums of floats, on several sets of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks import trees_data
from benchmarks.frame import Check, Part, answer, tell
from benchmarks.ml_sets import auc
from benchmarks.trees_data import Rows
from benchmarks.trees_fit import Settings, fit
from benchmarks.trees_part import Asked, spark_and_servers
from benchmarks.trees_peers import peers

SETTINGS = Settings(trees=50, depth=6, bins=256)
HELD_OUT = 200_000
# The part dense has this many times as many rows.
SHARE = 4
REFERENCE = "ours"


def measure(asked: Asked) -> Part:
    scores: dict[str, list[float]] = {}
    with spark_and_servers(asked, "precision") as spark:
        for seed in range(asked.seeds):
            rows = trees_data.dense(spark, asked.rows // SHARE, seed)
            x, y = trees_data.generated(HELD_OUT, seed, trees_data.PARTITIONS)
            for name, fitted in _trained(rows, asked):
                scores.setdefault(name, []).append(auc(fitted.margins(x).reshape(-1), y))
                tell(f"rows {seed}, {name}: AUC {scores[name][-1]:.6f}")
            rows.frame.unpersist()
    away = {name: np.array(found) - scores[REFERENCE] for name, found in scores.items()}
    sizes = [
        {
            "sums": name,
            "AUC": f"{np.mean(found):.5f}",
            "of sets of rows": f"{min(found):.5f}-{max(found):.5f}",
            "away": f"{away[name].mean():+.5f}",
            "+-": f"{away[name].std(ddof=1) / np.sqrt(len(found)):.5f}",
        }
        for name, found in scores.items()
    ]
    noise = float(np.std(scores[REFERENCE], ddof=1))
    checks = [
        Check(f"{REFERENCE}: AUC below {name}'s, in deviations of sets of rows", away[name].mean() / noise, 1.0)
        for name in away
        if name != REFERENCE
    ]
    return Part(checks=checks, facts={"rows": f"{asked.rows // SHARE:,}", "sets": asked.seeds}, sizes=sizes)


def _trained(rows: Rows, asked: Asked) -> Iterator[tuple[str, Any]]:
    yield REFERENCE, fit(rows, SETTINGS)
    native = [name for name in asked.peers if name in ("xgboost", "lightgbm")]
    for name, train in peers(native, rows, SETTINGS).items():
        yield name, train()


if __name__ == "__main__":
    answer(Asked, measure)
