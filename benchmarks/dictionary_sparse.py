"""Sparse rows of 20,000 features, which scikit-learn's dictionary learning takes as a dense matrix only."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from benchmarks.frame import Part, answer, tell
from benchmarks.metric_part import WORKERS, Asked, Labelled, spark_and_fleet, timed

ROWS, FEATURES, VALUES, TOPICS, OF_TOPIC = 50_000, 20_000, 50, 150, 60
ATOMS, ALPHA, ITERATIONS = 100, 0.5, 10


def make() -> sp.csr_array:
    """Make rows whose features are those of three topics, of 150."""
    rng = np.random.default_rng(5)
    topics = rng.integers(0, FEATURES, (TOPICS, OF_TOPIC))
    mine = rng.integers(0, TOPICS, (ROWS, 3))
    columns = topics[
        mine[np.arange(ROWS)[:, None], rng.integers(0, 3, (ROWS, VALUES))], rng.integers(0, OF_TOPIC, (ROWS, VALUES))
    ]
    values = rng.random(columns.size)
    x = sp.csr_array((values, columns.reshape(-1), np.arange(ROWS + 1) * VALUES), (ROWS, FEATURES))
    x.sum_duplicates()
    return x


def measure(asked: Asked) -> Part:
    from sklearn.decomposition import DictionaryLearning as TheirDictionaryLearning

    from ps2.algorithms import DictionaryLearning

    x = make()
    with spark_and_fleet(asked) as spark:
        frame = Labelled(x, np.zeros(ROWS)).frame(spark)
        DictionaryLearning(k=2, maxIter=1, via="servers", numWorkers=WORKERS).fit(frame)  # Python workers start
        estimator = DictionaryLearning(k=ATOMS, regParam=ALPHA, maxIter=ITERATIONS, tol=0.0, numWorkers=WORKERS)
        model, seconds = timed(estimator.fit, frame)
        history = model.summary.objectiveHistory
        codes = model.coder.transform(x[:1000])
    tell(
        f"{seconds:.1f} s, objective {history[0]:,.0f} to {history[-1]:,.0f}, {model.summary.bytes / 1e6:.0f} MB moved"
    )
    try:
        TheirDictionaryLearning(ATOMS, alpha=ALPHA).fit(x)
        refused = "took it"
    except (TypeError, ValueError) as error:
        refused = str(error).split(".")[0]
    sizes = [
        {
            "s": f"{seconds:.1f}",
            "s an iteration": f"{np.median(model.summary.history.seconds):.2f}",
            "objective before": f"{history[0]:,.0f}",
            "and after": f"{history[-1]:,.0f}",
            "atoms a row": f"{codes.nnz / codes.shape[0]:.1f}",
            "MB moved": f"{model.summary.bytes / 1e6:.0f}",
        }
    ]
    facts = {
        "rows": f"{ROWS:,}",
        "features": f"{FEATURES:,}",
        "k": ATOMS,
        "GB if dense": f"{8 * ROWS * FEATURES / 1e9:.0f}",
        "scikit-learn": refused,
    }
    return Part(facts=facts, sizes=sizes)


if __name__ == "__main__":
    answer(Asked, measure)
