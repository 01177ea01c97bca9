"""A small data set: seconds of ``fit`` with pyspark.ml's default params."""

from __future__ import annotations

from benchmarks.frame import Check, Part, answer, tell
from benchmarks.ml_fit import fit, fit_pyspark, spark_and_servers
from benchmarks.ml_part import Asked, Line
from benchmarks.ml_sets import A9A

# Turns before the ones that count.
WARM_UPS = 3
GAP = 1e-3


def measure(asked: Asked) -> Part:
    """Let both train in turns, with default params: maxIter 100, tol 1e-6, no penalty, an intercept."""
    ours, theirs = [], []
    with spark_and_servers(asked, "a9a") as spark:
        data = A9A.load(spark, asked.data_dir)
        for round_ in range(WARM_UPS + asked.rounds):
            their, our = fit_pyspark(data, {}), fit(data, {})
            tell(
                f"pyspark.ml {their.seconds:.2f} s, {their.iterations} iterations, {their.objectives[-1]:.6f}; "
                f"ours {our.seconds:.2f} s, {len(our.step_s)} iterations, {our.objectives[-1]:.6f}, "
                f"iterations alone {sum(our.step_s):.2f} s"
            )
            if round_ >= WARM_UPS:
                ours.append(our.seconds)
                theirs.append(their.seconds)
    gap = our.objectives[-1] / their.objectives[-1] - 1.0
    line = Line("a9a: fit with default params", "pyspark.ml", "s", 1.0, theirs, ours)
    check = Check("a9a: final objective above pyspark.ml's", gap, GAP)
    return Part([line], [check], {"rows": data.rows, "features": data.features})


if __name__ == "__main__":
    answer(Asked, measure)
