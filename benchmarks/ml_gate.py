"""FTSGD's gate on rows of two distributions (Zhang et al., Table I): errors of MLlib's SGD, and of local iterations."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.frame import Check, Part, answer, tell
from benchmarks.local_spark import local_spark
from benchmarks.ml_ftsgd import ITERATIONS, LOCAL, fit
from benchmarks.ml_ftsgd_data import FEW_FEATURES, FEW_ROWS, SLOTS, mixed_points
from benchmarks.ml_part import Asked
from ps2 import PS2Context

# Rows of the first distribution for one of the second, as in the paper; the last is 100:0.3.
RATIOS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0, 100 / 0.3)
SAME = 1e-9
# With the gate closed only the first step searches locally: how far above MLlib's error that may leave the last model.
CLOSED = 1e-3


def measure(asked: Asked) -> Part:
    """Train for 15 steps on rows of each ratio: MLlib's SGD, 5 local iterations without the gate, and with it."""
    sizes, checks = [], []
    with (
        local_spark("ml_gate", SLOTS, asked.memory, {"spark.python.daemon.module": "ps2.run.daemon"}) as spark,
        PS2Context.getOrCreate(spark, servers=2),
    ):
        for ratio in RATIOS:
            row, above = _trained(spark, ratio)
            sizes.append(row)
            checks.append(Check(f"{row['ratio']}: error with the gate above the better of both", above, CLOSED))
    facts = {"rows": FEW_ROWS, "features": FEW_FEATURES, "workers": SLOTS, "steps": ITERATIONS, "local": LOCAL}
    return Part(checks=checks, facts=facts, sizes=sizes)


def _trained(spark: Any, ratio: float) -> tuple[dict[str, Any], float]:
    with mixed_points(spark, ratio) as points:
        found = {"never": fit(points, maxIter=ITERATIONS, localSearch="never")}
        for name in ("always", "auto"):
            found[name] = fit(points, maxIter=ITERATIONS, localSteps=LOCAL, localSearch=name, adaptiveMomentum=False)
    errors = {name: one.mse[-1] for name, one in found.items()}
    # With the gate closed the second step is another one than without a gate.
    is_open = math.isclose(found["auto"].mse[2], found["always"].mse[2], rel_tol=SAME)
    row = {
        "ratio": "100:0.3" if ratio > 100 else f"{ratio:.0f}:1",
        "68-95-99.7 rule": "yes" if is_open else "no",
        "MSE, MLlib's SGD": f"{errors['never']:.6g}",
        "5 local iterations": f"{errors['always']:.6g}",
        "with the gate": f"{errors['auto']:.6g}",
    }
    tell(", ".join(f"{name} {value}" for name, value in row.items()))
    return row, errors["auto"] / min(errors["never"], errors["always"]) - 1.0


if __name__ == "__main__":
    answer(Asked, measure)
