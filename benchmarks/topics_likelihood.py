"""How likely the topics are, for every way in which workers share the counts, beside reference values.

Turns have seeds of their own: by seed, likelihoods differ by about as much as the references may be missed.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks import topics_data
from benchmarks.frame import Check, Part, answer, tell
from benchmarks.topics_fit import SAMPLING, Curve, curve_of, fit
from benchmarks.topics_part import Asked, spark_and_servers

WORKERS = 4
ITERATIONS = 300
# After 300 iterations of collapsed Gibbs sampling in one process.
REFERENCES = {20: -3_768_261, 50: -3_798_537}
LIMIT = 1.002
SYNCS = ("ssp", "rotation", "average")


def measure(asked: Asked) -> Part:
    counts = topics_data.kos(asked.data_dir)
    checks, sizes = [], []
    with spark_and_servers(asked, "likelihood", WORKERS) as spark:
        frame = topics_data.framed(spark, counts, WORKERS)
        for topics, reference in REFERENCES.items():
            for sync in SYNCS:
                curves = [_trained(frame, topics, sync, seed) for seed in range(1, asked.rounds + 1)]
                likelihoods = [curve.at(ITERATIONS) for curve in curves]
                found, seconds = median(likelihoods), median(curve.seconds[-1] for curve in curves)
                checks.append(Check(f"K={topics}, {sync}: log-likelihood over the reference", found / reference, LIMIT))
                sizes.append(
                    {
                        "topics": str(topics),
                        "sync": sync,
                        "log-likelihood": f"{found:,.0f}",
                        "from": f"{min(likelihoods):,.0f}",
                        "to": f"{max(likelihoods):,.0f}",
                        "reference": f"{reference:,}",
                        "s": f"{seconds:.1f}",
                    }
                )
    return Part(checks=checks, facts={"corpus": "KOS", "workers": WORKERS, "iterations": ITERATIONS}, sizes=sizes)


def _trained(frame: Any, topics: int, sync: str, seed: int) -> Curve:
    params = {**SAMPLING, "sync": sync, "numWorkers": WORKERS, "seed": seed}
    curve = curve_of(fit(frame, topics, ITERATIONS, params)[0])
    tell(f"K={topics}, {sync}, seed {seed}: {curve.at(ITERATIONS):,.0f} after {curve.seconds[-1]:.1f} s")
    return curve


if __name__ == "__main__":
    answer(Asked, measure)
