"""Distance metric learning beside scikit-learn's NeighborhoodComponentsAnalysis.

docs/performance/representations.md says how to read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.optimize
import scipy.sparse as sp

from benchmarks import frame
from benchmarks.frame import Benchmark, Line, Part, option, take_turns, timed
from benchmarks.local_spark import WORKERS, cached, spark_and_servers
from ps2.algorithms.metric.pairs import draw_pairs, objective
from ps2.data.rows import Rows

NEIGHBOURS = 3
# Pairs for each row, by which all are judged.
JUDGED = 20
# -- of the part small: steps of ours
STEPS = 200
# -- of the part sparse: rows that look like bags of words; features of a row that its class has, and of a class.


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(1, "Turns that the medians are of.", least=1)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Rows with classes.

    Attributes:
        x: an array, or scipy CSR, shape (n, features).
        y: classes, shape (n,).
    """

    x: Any
    y: Any

    def halves(self, seed: int) -> tuple[Labelled, Labelled]:
        """Return two thirds of the rows, and the others."""
        order = np.random.default_rng(seed).permutation(len(self.y))
        cut = 2 * len(order) // 3
        train, test = order[:cut], order[cut:]
        return Labelled(self.x[train], self.y[train]), Labelled(self.x[test], self.y[test])

    def frame(self, spark: Any) -> Any:
        """Return a cached DataFrame of sparse vectors and labels."""
        from pyspark.ml.linalg import Vectors

        x = sp.csr_array(self.x)
        rows = [
            (Vectors.sparse(x.shape[1], x.indices[begin:end].tolist(), x.data[begin:end].tolist()), float(label))
            for begin, end, label in zip(x.indptr[:-1], x.indptr[1:], self.y, strict=True)
        ]
        return cached(spark.createDataFrame(rows, ["features", "label"]))


def small(args: Args) -> Part:
    """Compare iris, and 1,000 generated rows of 50 features, 5 of which tell 4 classes."""
    from sklearn.neighbors import NeighborhoodComponentsAnalysis

    from ps2.algorithms import MetricLearning

    lines, rows = [], []
    with spark_and_servers("metric", args.memory) as (spark, _):
        for name, (labelled, rank) in _sets().items():
            train, test = labelled.halves(seed=3)
            frame = train.frame(spark)
            estimator = MetricLearning(rank=rank, maxIter=STEPS, pairsPerRow=20)
            on_servers = estimator.copy({estimator.via: "servers", estimator.numWorkers: WORKERS})
            for one in (estimator, on_servers):
                one.copy({one.maxIter: 1}).fit(frame)  # Python workers start
            peer = NeighborhoodComponentsAnalysis(n_components=rank, random_state=0)
            variants: dict[str, Any] = {
                "NCA": partial(timed, peer.fit, train.x, train.y),
                "ours": partial(timed, estimator.fit, frame),
                "ours, via servers": partial(timed, on_servers.fit, frame),
            }
            turns = take_turns(variants, args.rounds, warm_ups=0)
            theirs, *ours = ([seconds for _, seconds in taken] for taken in turns.values())
            for variant, seconds in zip(("ours", "via servers"), ours, strict=True):
                lines.append(Line(f"{name}: {STEPS} steps, {variant}", "NCA", "s", None, theirs, seconds))
            metric = turns["ours"][-1][0].metric
            models: dict[str, tuple[Any, Any]] = {
                "ours": (metric.components, metric.transform),
                "NCA": (peer.components_, peer.transform),
                "Euclidean": (np.eye(labelled.x.shape[1]), lambda x: x),
            }
            for variant, (components, transform) in models.items():
                rows.append(
                    {
                        "rows": name,
                        "way": variant,
                        "objective": f"{judged(components, train):.4f}",
                        "held out": f"{judged(components, test):.4f}",
                        "3-NN accuracy": f"{accuracy(transform, train, test):.3f}",
                    }
                )
    return Part(lines, table=rows)


def _sets() -> dict[str, tuple[Labelled, int]]:
    """Return data sets, each with the rank to learn."""
    from sklearn.datasets import load_iris, make_classification
    from sklearn.preprocessing import StandardScaler

    iris = load_iris()
    x, y = make_classification(
        1000, 50, n_informative=5, n_redundant=0, n_classes=4, n_clusters_per_class=1, class_sep=1.5, random_state=1
    )
    scaled = StandardScaler().fit_transform
    return {"iris": (Labelled(scaled(iris.data), iris.target), 2), "generated": (Labelled(scaled(x), y), 5)}


def judged(components: Any, rows: Labelled) -> float:
    """Return the objective of L for pairs of rows, with the scale of L that makes it least."""
    x = sp.csr_array(rows.x)
    pairs = draw_pairs(Rows(x, np.asarray(rows.y, float)).localize(), JUDGED, np.random.default_rng(0))
    differences = pairs.differences(np.arange(len(pairs)))
    of_keys = np.asarray(components)[:, pairs.keys]
    mapped = differences @ of_keys.T
    identity = np.eye(len(of_keys))

    def at(log_scale: float) -> float:
        return objective(np.exp(log_scale) * identity, mapped, pairs.similar)

    unit = -0.5 * np.log(max((mapped**2).sum() / len(pairs), 1e-300))
    result = scipy.optimize.minimize_scalar(at, bounds=(unit - 5, unit + 5), method="bounded")
    return float(min(result.fun, at(0.0)))


def accuracy(transform: Any, train: Labelled, test: Labelled) -> float:
    """Return the share of test rows whose class their nearest neighbours tell."""
    from sklearn.neighbors import KNeighborsClassifier

    near = KNeighborsClassifier(NEIGHBOURS).fit(transform(train.x), train.y)
    return float(near.score(transform(test.x), test.y))


BENCHMARK = Benchmark("metric", Args, {"small": small}, packages=("scikit-learn",))

if __name__ == "__main__":
    BENCHMARK.main()
