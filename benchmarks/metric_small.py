"""Iris, and 1,000 generated rows of 50 features, 5 of which tell 4 classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.frame import Part, answer, tell
from benchmarks.metric_part import WORKERS, Asked, Labelled, accuracy, judged, spark_and_fleet, timed
from benchmarks.ml_part import Line

STEPS = 200


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


def measure(asked: Asked) -> Part:
    from sklearn.neighbors import NeighborhoodComponentsAnalysis

    from ps2.algorithms import MetricLearning

    lines, sizes = [], []
    with spark_and_fleet(asked) as spark:
        for name, (rows, rank) in _sets().items():
            train, test = rows.halves(seed=3)
            frame = train.frame(spark)
            estimator = MetricLearning(rank=rank, maxIter=STEPS, pairsPerRow=20)
            on_servers = estimator.copy({estimator.via: "servers", estimator.numWorkers: WORKERS})
            for via in (estimator, on_servers):
                via.copy({estimator.maxIter: 1}).fit(frame)  # Python workers start
            ours: list[float] = []
            servers: list[float] = []
            theirs: list[float] = []
            for _ in range(asked.rounds):
                servers.append(timed(on_servers.fit, frame)[1])
                model, seconds = timed(estimator.fit, frame)
                ours.append(seconds)
                peer = NeighborhoodComponentsAnalysis(n_components=rank, random_state=0)
                _, seconds = timed(peer.fit, train.x, train.y)
                theirs.append(seconds)
            lines.append(Line(f"{name}: {STEPS} steps", "NCA", "s", None, theirs, ours))
            lines.append(Line(f"{name}: {STEPS} steps, via servers", "NCA", "s", None, theirs, servers))
            ways: dict[str, tuple[Any, Any]] = {
                "ours": (model.metric.components, model.metric.transform),
                "NCA": (peer.components_, peer.transform),
                "Euclidean": (np.eye(rows.x.shape[1]), lambda x: x),
            }
            for way, (components, transform) in ways.items():
                score = accuracy(transform, train, test)
                told = judged(components, train), judged(components, test)
                tell(f"{name}, {way}: objective {told[0]:.4f}, {told[1]:.4f} held out, accuracy {score:.3f}")
                sizes.append(
                    {
                        "rows": name,
                        "way": way,
                        "objective": f"{told[0]:.4f}",
                        "held out": f"{told[1]:.4f}",
                        "3-NN accuracy": f"{score:.3f}",
                    }
                )
    return Part(lines, facts={"workers": WORKERS, "optimizer": "adagrad"}, sizes=sizes)


if __name__ == "__main__":
    answer(Asked, measure)
