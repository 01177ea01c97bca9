"""Sparse rows of 20,000 features, which scikit-learn's NeighborhoodComponentsAnalysis does not take."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from benchmarks.frame import Part, answer, tell
from benchmarks.metric_part import WORKERS, Asked, Labelled, accuracy, judged, spark_and_fleet, timed

ROWS, FEATURES, VALUES, CLASSES, RANK, STEPS = 6_000, 20_000, 50, 10, 20, 100
# Of a row's features, those of its class: each class has 200.
OWN, TOPIC = 4, 200


def make() -> Labelled:
    """Make rows that look like bags of words: most are common to all classes."""
    rng = np.random.default_rng(5)
    y = rng.integers(0, CLASSES, ROWS)
    common = rng.integers(CLASSES * TOPIC, FEATURES, (ROWS, VALUES - OWN))
    own = y[:, None] * TOPIC + rng.integers(0, TOPIC, (ROWS, OWN))
    columns = np.hstack([own, common])
    x = sp.csr_array((np.ones(columns.size), columns.reshape(-1), np.arange(ROWS + 1) * VALUES), (ROWS, FEATURES))
    x.sum_duplicates()
    return Labelled(x, y)


def measure(asked: Asked) -> Part:
    from sklearn.neighbors import NeighborhoodComponentsAnalysis

    from ps2.algorithms import MetricLearning

    train, test = make().halves(seed=3)
    sizes = []
    with spark_and_fleet(asked) as spark:
        frame = train.frame(spark)
        MetricLearning(rank=RANK, maxIter=1, numWorkers=WORKERS).fit(frame)  # Python workers start
        for factors in ("auto", "always", "never"):
            estimator = MetricLearning(
                rank=RANK, maxIter=STEPS, miniBatchFraction=0.02, numWorkers=WORKERS, factors=factors
            )
            model, seconds = timed(estimator.fit, frame)
            tell(f"{factors}: {seconds:.1f} s, {model.summary.gradients}")
            sizes.append(
                {
                    "factors": factors,
                    "s": f"{seconds:.1f}",
                    "MB moved": f"{model.summary.bytes / 1e6:.1f}",
                    "gradients": str(model.summary.gradients),
                    "objective, held out": f"{judged(model.metric.components, test):.4f}",
                    "3-NN accuracy": f"{accuracy(model.metric.transform, train, test):.3f}",
                    "Euclidean": f"{accuracy(lambda x: x, train, test):.3f}",
                }
            )
    try:
        NeighborhoodComponentsAnalysis(n_components=RANK).fit(train.x, train.y)
        refused = "took it"
    except (TypeError, ValueError) as error:
        refused = str(error).split(".")[0]
    facts = {"rows": f"{ROWS:,}", "features": f"{FEATURES:,}", "values a row": VALUES, "rank": RANK, "NCA": refused}
    return Part(facts=facts, sizes=sizes)


if __name__ == "__main__":
    answer(Asked, measure)
