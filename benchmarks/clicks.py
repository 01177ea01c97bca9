"""Generated click logs: the sparse rows that the benchmarks train on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.libsvm import Block
from ps2.algorithms.logistic_math import CompactRows, LocalBlock, compact, compact_block, evaluate, sample_rows

# Of the values of a field, the share of the k most popular is (k / all) ** (1 / SKEW).
SKEW = 3.0


@dataclass(frozen=True)
class Problem:
    """What is trained, whatever the number of features.

    Attributes:
        rows: of the data set, over all partitions.
        fields: entries of each row; a field has one of its many values in each row.
        fraction: share of the rows that a step samples.
        lr: Adam's learning rate.
        seed: of data and sampling.
        partitions: of the RDD, and so tasks of a step.
    """

    rows: int = 20_000
    fields: int = 30
    fraction: float = 0.1
    lr: float = 0.02
    seed: int = 0
    partitions: int = 2


@dataclass(frozen=True)
class Clicks:
    """The rows: ``rdd`` has one LocalBlock a partition, cached; ``blocks`` are the same ones in the driver."""

    problem: Problem
    features: int
    rdd: Any
    blocks: tuple[LocalBlock, ...]

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
        total = 0.0
        for block in self.blocks:
            x = sp.csr_array((block.values, block.columns, block.indptr), shape=(len(block.y), len(block.keys)))
            total += evaluate(x, block.y, w[block.keys])[0]
        return total / sum(len(block.y) for block in self.blocks)


def generate(problem: Problem, features: int, rdd_partition: int) -> LocalBlock:
    """Make the rows of one partition: of each field's values, few are popular and many are rare.

    Each field has its own interval of the features, so that popular ones lie in all of them.
    """
    values = features // problem.fields
    rows = problem.rows // problem.partitions
    rng = np.random.default_rng([problem.seed, rdd_partition])
    chosen = (values * rng.random((rows, problem.fields)) ** SKEW).astype(np.int64)
    indices = chosen + values * np.arange(problem.fields)
    truth = np.random.default_rng(problem.seed).standard_normal(features, np.float32) / 2
    labels = rng.random(rows) < 1 / (1 + np.exp(-truth[indices].sum(axis=1)))
    indptr = np.arange(0, indices.size + 1, problem.fields)
    block = Block(labels.astype(np.float64), indptr, indices.reshape(-1), np.ones(indices.size, np.float32))
    return compact_block(block, (0.0, 1.0), intercept=None)


def minibatch(problem: Problem, block: LocalBlock, step: int, rdd_partition: int) -> CompactRows:
    """Sample the rows of one step."""
    return compact(block, sample_rows(len(block.y), problem.fraction, problem.seed, step, rdd_partition))
