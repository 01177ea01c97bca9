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

# If the centres have at least this many values, centres and rows are float32 during the training, else float64.
MIN_FLOAT32_VALUES = 1 << 22
# The bytes of a value of a cluster's sums, float64.
SUM_BYTES = 8
# The number of statistics of each feature on the servers: highs, lows, counts, shifts, max_abs_values
# (``ServerVectors``).
VALUES_PER_FEATURE = 5
# The cost of a stored value in a clock, in seconds, of dense and sparse rows (decision 61): (fixed, per cluster).
DENSE_S, SPARSE_S = (2.5e-9, 0.14e-9), (10e-9, 0.4e-9)
# The approximate number of clocks that belong neither to iterations nor to rounds of k-means||.
OTHER_CLOCKS = 6
WORDS = Words("iteration", "cost")


@dataclass(frozen=True, kw_only=True)
class KMeansPlan(Plan[KMeansSettings]):
    """The plan of a k-means training: the settings, ``dim`` features, and ``clusters``, at most the number of rows."""

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
        """The number of features, and the dtype, that rows must have."""
        return Form(self.dim, dtype=self.dtype)

    @property
    def fleet_bytes(self) -> int:
        """The bytes on all servers together: centres, sums, and statistics of features and clusters."""
        value_bytes = SUM_BYTES + (8 if self.dtype == "float64" else 4)
        return self.values * value_bytes + SUM_BYTES * (VALUES_PER_FEATURE * self.dim + 2 * self.clusters)

    def work(self, rows: int, entries: float) -> Work:
        """Return the training's work for the cost model; ``entries`` is the number of stored values plus rows."""
        clocks = self.settings.maxIter + 2 * self.settings.initSteps + OTHER_CLOCKS
        value_s, cluster_s = DENSE_S if entries >= rows * (self.dim + 1) else SPARSE_S
        return Work.of_clocks(entries, self.values, clocks, value_s + cluster_s * self.clusters)

    def worker_bytes(self, features: int) -> int:
        """Return the bytes of the centres in a worker whose rows use this many features."""
        return self.clusters * features * (8 if self.dtype == "float64" else 4)


@dataclass(frozen=True, eq=False)
class FittedClusters:
    """The result of a training: centres, shape (clusters, dim), and the number of rows in each cluster."""

    centres: npt.NDArray[Any]
    sizes: Int64s
    history: TrainingHistory
