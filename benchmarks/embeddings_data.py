"""BlogCatalog, and the quality of vectors of its vertices: prediction of labels and of hidden links."""

from __future__ import annotations

import gzip
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from benchmarks.trees_data import file_in

Array = npt.NDArray[Any]
EDGES, LABELS = "blogcatalog.edges.txt.gz", "blogcatalog.labels.txt.gz"
SPLITS = 5
SEED = 7


def edges(folder: str) -> Array:
    """Return the 333,983 distinct edges, shape (n, 2)."""
    with gzip.open(file_in(folder, EDGES), "rb") as file:
        return np.array(file.read().split(), np.int64).reshape(-1, 2)


def labels(folder: str) -> tuple[Array, sp.csr_array]:
    """Return the labelled vertices, and a 0/1 matrix of labels, shape (vertices, 39); a vertex may have several."""
    with gzip.open(file_in(folder, LABELS), "rt") as file:
        lines = [list(map(int, line.split())) for line in file if line.strip()]
    vertices = np.array([line[0] for line in lines])
    rows = np.repeat(np.arange(len(lines)), [len(line) - 1 for line in lines])
    columns = np.array([label for line in lines for label in line[1:]])
    found, columns = np.unique(columns, return_inverse=True)
    return vertices, sp.csr_array((np.ones(len(rows), np.int8), (rows, columns)), shape=(len(lines), len(found)))


def framed(spark: Any, pairs: Array, partitions: int = 2) -> Any:
    """Return edges as a cached DataFrame of src and dst."""
    import pandas as pd

    frame = spark.createDataFrame(pd.DataFrame({"src": pairs[:, 0], "dst": pairs[:, 1]}))
    frame = frame.repartition(partitions).persist()
    frame.count()
    return frame


def f1(vectors: Array, wanted: sp.csr_array, share: float, splits: int = SPLITS) -> tuple[float, float]:
    """Return Macro-F1 and Micro-F1, in percent, of one logistic regression a label, trained on a share of the vertices.

    The protocol is that of DeepWalk's authors (``scoring.py``): for each vertex, as many labels are predicted as it
    has. Returns the mean of several splits.

    Args:
        vectors: shape (vertices, d), of the vertices that have labels.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score
    from sklearn.multiclass import OneVsRestClassifier

    dense, found = wanted.toarray(), []
    for split in range(splits):
        order = np.random.default_rng([SEED, split]).permutation(len(vectors))
        train, test = np.split(order, [int(share * len(order))])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a rare label may be in no vertex of the split
            model = OneVsRestClassifier(LogisticRegression(solver="liblinear")).fit(vectors[train], dense[train])
        chances = model.predict_proba(vectors[test])
        ranks = np.argsort(np.argsort(-chances, axis=1), axis=1)
        predicted = ranks < dense[test].sum(axis=1)[:, None]
        found.append(
            [100 * f1_score(dense[test], predicted, average=kind, zero_division=0.0) for kind in ("macro", "micro")]
        )
    macro, micro = np.mean(found, axis=0)
    return float(macro), float(micro)


def hidden(pairs: Array, share: float) -> tuple[Array, Array, Array]:
    """Hide some edges for link prediction.

    Returns:
        Edges to learn from; hidden edges between vertices of these; as many pairs of vertices without an edge.
    """
    rng = np.random.default_rng(SEED)
    held = rng.random(len(pairs)) < share
    train, test = pairs[~held], pairs[held]
    known = np.zeros(pairs.max() + 1, bool)
    known[train] = True
    test = test[known[test].all(axis=1)]
    width = len(known)
    there = np.unique(np.concatenate([pairs[:, 0] * width + pairs[:, 1], pairs[:, 1] * width + pairs[:, 0]]))
    vertices = np.flatnonzero(known)
    drawn = rng.choice(vertices, (2 * len(test) + 1000, 2))
    is_none = (drawn[:, 0] != drawn[:, 1]) & ~np.isin(drawn[:, 0] * width + drawn[:, 1], there)
    return train, test, drawn[is_none][: len(test)]


def auc(positive: Array, negative: Array) -> float:
    """Return the probability that a hidden edge has a larger score than a pair without an edge."""
    from scipy.stats import rankdata

    n, m = len(positive), len(negative)
    ranks = rankdata(np.concatenate([positive, negative]))
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))
