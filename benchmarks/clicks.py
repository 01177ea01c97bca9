"""Generated click logs: the sparse rows that the benchmarks train on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.linear import plan as linear
from ps2.algorithms.linear.losses import MarginLoss
from ps2.data.rows import LocalRows, Rows

LOSS = MarginLoss(linear.Problem("logistic", dim=1, fit_intercept=False))
NO_INTERCEPT = np.zeros(1)
# The k most popular values of a field have the share (k / all) ** (1 / SKEW).
SKEW = 3.0


@dataclass(frozen=True)
class Problem:
    """The training problem, for any number of features.

    Attributes:
        rows: of the data set, over all partitions.
        fields: entries of each row; each row has one of each field's many values.
        fraction: share of the rows that a step samples.
        lr: Adam's learning rate.
        seed: of data and sampling.
        partitions: of the RDD; also the number of tasks of a step.
    """

    rows: int = 20_000
    fields: int = 30
    fraction: float = 0.1
    lr: float = 0.02
    seed: int = 0
    partitions: int = 2


@dataclass(frozen=True)
class Clicks:
    """The rows: ``rdd`` has one LocalRows a partition, cached; ``blocks`` are the same rows in the driver."""

    problem: Problem
    features: int
    rdd: Any
    blocks: tuple[LocalRows, ...]

    @staticmethod
    def make(spark_context: Any, problem: Problem, features: int) -> Clicks:
        """Generate the rows and cache them."""
        numbers = spark_context.parallelize(range(problem.partitions), problem.partitions)
        rdd = numbers.map(lambda number: generate(problem, features, number)).persist()
        return Clicks(problem, features, rdd, tuple(rdd.collect()))

    def loss(self, w: Any) -> float:
        """Return the mean log-loss over all rows.

        Args:
            w: float32, shape (features,).
        """
        total = sum(LOSS.loss(block, w[block.keys], NO_INTERCEPT)[0] for block in self.blocks)
        return total / sum(map(len, self.blocks))


def generate(problem: Problem, features: int, rdd_partition: int) -> LocalRows:
    """Generate the rows of one partition; each field has few popular values and many rare ones.

    Each field has its own interval of the features, so popular features are spread over all of them.
    """
    values = features // problem.fields
    rows = problem.rows // problem.partitions
    rng = np.random.default_rng([problem.seed, rdd_partition])
    chosen = (values * rng.random((rows, problem.fields)) ** SKEW).astype(np.int64)
    indices = chosen + values * np.arange(problem.fields)
    truth = np.random.default_rng(problem.seed).standard_normal(features, np.float32) / 2
    labels = rng.random(rows) < 1 / (1 + np.exp(-truth[indices].sum(axis=1)))
    indptr = np.arange(0, indices.size + 1, problem.fields)
    x = sp.csr_array((np.ones(indices.size, np.float32), indices.reshape(-1), indptr), shape=(rows, features))
    return Rows(x, labels.astype(np.float64)).localize()


def minibatch(problem: Problem, block: LocalRows, step: int, rdd_partition: int) -> LocalRows:
    """Sample the rows of one step."""
    return block.sample(problem.fraction, np.random.default_rng([problem.seed, step, rdd_partition]))


def gradient(rows: LocalRows, w: Any) -> tuple[Any, float]:
    """Return the gradient of the summed log-loss with respect to the weights of the rows' keys, and that loss."""
    result = LOSS.gradient(rows, w, NO_INTERCEPT)
    return result.dw, result.loss
