"""The plan of a k-means training, and its result."""

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

# With this many values or more, the centres are float32, and so are the rows during the training.
MIN_FLOAT32_VALUES = 1 << 22
# Bytes of a sum.
SUM_BYTES = 8
# The number of values that servers keep for each feature: highs, lows, held, shifts and sizes.
VALUES_PER_FEATURE = 5
# Seconds that a clock takes for each stored value: (a fixed part, a part for each cluster), of dense and of sparse rows
# (decision 61).
DENSE_S, SPARSE_S = (2.5e-9, 0.14e-9), (10e-9, 0.4e-9)
# The approximate number of clocks besides those of iterations and of rounds of k-means||.
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
    def values(self) -> int:
        """The number of values in all centres."""
        return self.clusters * self.dim

    @property
    def dtype(self) -> Float:
        """The dtype of centres on the servers, and of rows in the workers."""
        return "float64" if self.values < MIN_FLOAT32_VALUES else "float32"

    @property
    def form(self) -> Form:
        """The form that rows must have."""
        return Form(self.dim, dtype=self.dtype)

    @property
    def fleet_bytes(self) -> int:
        """The bytes on all servers together: centres, sums, and a few numbers for each feature and cluster."""
        number_bytes = SUM_BYTES + (8 if self.dtype == "float64" else 4)
        return self.values * number_bytes + SUM_BYTES * (VALUES_PER_FEATURE * self.dim + 2 * self.clusters)

    def work(self, rows: int, cost: float) -> Work:
        """Return the work of the training; ``cost`` is the number of stored feature values plus the number of rows."""
        clocks = self.settings.maxIter + 2 * self.settings.initSteps + OTHER_CLOCKS
        value_s, cluster_s = DENSE_S if cost >= rows * (self.dim + 1) else SPARSE_S
        return Work.of_clocks(cost, self.values, clocks, value_s + cluster_s * self.clusters)

    def worker_bytes(self, features: int) -> int:
        """Return the bytes of the centres in a worker whose rows use this many features."""
        return self.clusters * features * (8 if self.dtype == "float64" else 4)


@dataclass(frozen=True, eq=False)
class FittedClusters:
    """The result of a training: centres, shape (clusters, dim), and the number of rows in each cluster."""

    centres: npt.NDArray[Any]
    sizes: Int64s
    history: TrainingHistory
