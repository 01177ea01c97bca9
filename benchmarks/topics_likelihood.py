"""How likely the topics are, for every way in which workers share the counts, beside reference values."""

from __future__ import annotations

from benchmarks import topics_data
from benchmarks.frame import Check, Part, answer, tell
from benchmarks.topics_fit import SAMPLING, curve_of, fit
from benchmarks.topics_part import Asked, spark_and_servers

WORKERS = 4
ITERATIONS = 300
# After 300 iterations of collapsed Gibbs sampling in one process.
REFERENCES = {20: -3_768_261, 50: -3_798_537}
MOST = 1.002
SYNCS = ("ssp", "rotation", "average")


def measure(asked: Asked) -> Part:
    counts = topics_data.kos(asked.data_dir)
    checks, sizes = [], []
    with spark_and_servers(asked, "likelihood", WORKERS) as spark:
        frame = topics_data.framed(spark, counts, WORKERS)
        for topics, reference in REFERENCES.items():
            for sync in SYNCS:
                params = {**SAMPLING, "sync": sync, "numWorkers": WORKERS}
                curve = curve_of(fit(frame, topics, ITERATIONS, params)[0])
                found = curve.at(ITERATIONS)
                tell(f"K={topics}, {sync}: {found:,.0f} after {curve.seconds[-1]:.1f} s")
                checks.append(Check(f"K={topics}, {sync}: log-likelihood over the reference", found / reference, MOST))
                sizes.append(
                    {
                        "topics": str(topics),
                        "sync": sync,
                        "log-likelihood": f"{found:,.0f}",
                        "reference": f"{reference:,}",
                        "s": f"{curve.seconds[-1]:.1f}",
                    }
                )
    return Part(checks=checks, facts={"corpus": "KOS", "workers": WORKERS, "iterations": ITERATIONS}, sizes=sizes)


if __name__ == "__main__":
    answer(Asked, measure)
