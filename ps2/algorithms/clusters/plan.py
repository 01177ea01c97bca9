"""A training of k-means, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from ps2.algorithms.clusters.settings import KMeansSettings
from ps2.algorithms.frame.placement import Work
from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.record import TrainingHistory, Words
from ps2.data.rows import Float
from ps2.ops.kernels import Int64s

# If centres have at least this many values, centres and the rows in training are float32.
MIN_FLOAT32_NUMBERS = 1 << 22
# Bytes of a sum.
SUM_BYTES = 8
# Numbers that the servers keep for each feature.
NUMBERS_PER_FEATURE = 5
# The seconds of computation per stored value and clock, in dense and in sparse rows: a constant part, and a part per
# cluster (decision 61).
DENSE_S, SPARSE_S = (2.5e-9, 0.14e-9), (10e-9, 0.4e-9)
# The approximate number of clocks besides iterations and draws.
OTHER_CLOCKS = 6
WORDS = Words("iteration", "cost")


@dataclass(frozen=True, kw_only=True)
class KMeansPlan(Plan[KMeansSettings]):
    """A training of k-means.

    Attributes:
        dim: the number of features.
        clusters: the number of clusters, at most the number of rows.
    """

    dim: int
    clusters: int

    @property
    def numbers(self) -> int:
        """The number of values in all centres."""
        return self.clusters * self.dim

    @property
    def dtype(self) -> Float:
        """The dtype of centres on the servers, and of rows in the workers."""
        return "float64" if self.numbers < MIN_FLOAT32_NUMBERS else "float32"

    @property
    def form(self) -> Form:
        """The form that rows must have."""
        return Form(self.dim, dtype=self.dtype)

    @property
    def fleet_bytes(self) -> int:
        """The bytes on all servers together: centres, sums, and a few numbers for each feature and cluster."""
        each = SUM_BYTES + (8 if self.dtype == "float64" else 4)
        return self.numbers * each + SUM_BYTES * (NUMBERS_PER_FEATURE * self.dim + 2 * self.clusters)

    def work(self, rows: int, cost: float) -> Work:
        """Return the work of the training; ``cost`` is the number of stored feature values plus the number of rows."""
        clocks = self.settings.maxIter + 2 * self.settings.initSteps + OTHER_CLOCKS
        value_s, cluster_s = DENSE_S if cost >= rows * (self.dim + 1) else SPARSE_S
        return Work.of_clocks(cost, self.numbers, clocks, value_s + cluster_s * self.clusters)

    def worker_bytes(self, features: int) -> int:
        """Return the minimum bytes of a worker whose rows use this many features."""
        return self.clusters * features * (8 if self.dtype == "float64" else 4)


@dataclass(frozen=True, eq=False)
class FittedClusters:
    """The result of a training: centres, shape (clusters, dim), and the number of rows in each cluster."""

    centres: npt.NDArray[Any]
    sizes: Int64s
    history: TrainingHistory
