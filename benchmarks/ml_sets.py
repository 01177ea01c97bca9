"""a9a and news20-bigram, and what other solvers have found for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from benchmarks.ml_data import Array, Data, load


@dataclass(frozen=True)
class Reference:
    """The optimum of ``1/2 w'w + C sum_i loss_i`` with C = 1 and no intercept, and what it is worth on the test set."""

    objective: float
    accuracy: float
    auc: float | None = None


@dataclass(frozen=True)
class Set:
    """A data set of LIBSVM's: two gzipped files.

    Attributes:
        features: how many.
        logistic: optimum of the logistic loss, by LIBLINEAR.
        squared_hinge: that of the squared hinge loss, likewise.
    """

    name: str
    features: int
    logistic: Reference
    squared_hinge: Reference
    train: str
    test: str

    def load(self, spark: Any, folder: str) -> Data:
        return load(spark, folder, self.train, self.features)

    def load_test(self, spark: Any, folder: str) -> Data:
        return load(spark, folder, self.test, self.features)


# The values are those of the data's own README.
A9A = Set(
    "a9a",
    123,
    Reference(10529.5626, 0.84989, 0.90222),
    Reference(13742.3973, 0.84940),
    "a9a.libsvm.gz",
    "a9a.t.libsvm.gz",
)
NEWS20 = Set(
    "news20-bigram",
    1_691_504,
    Reference(3707.342, 0.90839, 0.97147),
    Reference(1169.194, 0.95088),
    "news20-bigram.train.libsvm.gz",
    "news20-bigram.test.libsvm.gz",
)


def accuracy(margins: Array, y: Array) -> float:
    """Return the share of rows whose margin is on the side of their label."""
    return float(np.mean((margins > 0) == (y > 0)))


def auc(margins: Array, y: Array) -> float:
    """Return the area under the ROC curve; rows of equal margins count half."""
    ranks, positives = rankdata(margins), y > 0
    count = int(positives.sum())
    return float((ranks[positives].sum() - count * (count + 1) / 2) / (count * (len(y) - count)))
