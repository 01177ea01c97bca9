"""xgboost's own example: the errors on its test set must equal xgboost's to the last digit."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import trees_data
from benchmarks.frame import Check, Part, answer, tell
from benchmarks.trees_fit import alone
from benchmarks.trees_part import Asked, spark_and_servers

# As in the configuration of xgboost's example.
PARAMS: dict[str, Any] = {
    "defaults": "xgboost",
    "maxBins": 32,
    "maxDepth": 2,
    "stepSize": 1.0,
    "minSplitLoss": 1.0,
    "baseScore": 0.5,
}
# Errors that xgboost prints, by number of rounds.
ERRORS = {1: 0.042831, 2: 0.021726, 10: 0.0}
DIGIT = 1e-6


def measure(asked: Asked) -> Part:
    from ps2.algorithms import GBTClassifier

    checks, sizes = [], []
    with spark_and_servers(asked, "agaricus") as spark:
        frame, x, y = trees_data.agaricus(spark, asked.data_dir)
        frame = frame.persist()
        for rounds, expected in ERRORS.items():
            model = alone(GBTClassifier(maxIter=rounds, **PARAMS).fit(frame))
            error = float(np.mean(model.predict(x) != y))
            tell(f"{rounds} rounds: error {error:.6f}, xgboost's {expected:.6f}")
            sizes.append({"rounds": rounds, "test error": f"{error:.6f}", "xgboost's": f"{expected:.6f}"})
            what = f"agaricus, {rounds} rounds: test error away from xgboost's"
            checks.append(Check(what, abs(error - expected), DIGIT / 2))
    return Part(checks=checks, facts={"test rows": len(y)}, sizes=sizes)


if __name__ == "__main__":
    answer(Asked, measure)
