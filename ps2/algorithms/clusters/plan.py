"""A training of k-means, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from ps2.algorithms.clusters.settings import KMeansSettings
from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.record import TrainingHistory, Words
from ps2.data.rows import Float
from ps2.errors import LimitError
from ps2.ops.kernels import Int64s

# From this many numbers on, centres are float32, and so are rows while the model is trained.
MIN_FLOAT32_NUMBERS = 1 << 22
# Bytes of a sum.
SUM_BYTES = 8
# Numbers that the servers keep for each feature.
NUMBERS_PER_FEATURE = 5
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
        """The number of numbers in all centres."""
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

    def worker_bytes(self, features: int) -> int:
        """Return the minimum bytes of a worker whose rows use this many features."""
        return self.clusters * features * (8 if self.dtype == "float64" else 4)


@dataclass(frozen=True, eq=False)
class FittedClusters:
    """The result of a training.

    Attributes:
        centres: float32 or float64, shape (clusters, dim).
        sizes: the number of rows in each cluster.
        history: the training's history; the objective is the cost.
    """

    centres: npt.NDArray[Any]
    sizes: Int64s
    history: TrainingHistory


def check_fleet(plan: KMeansPlan, servers: Sequence[tuple[int, int]]) -> None:
    """Raise LimitError if centres and their sums do not fit the servers.

    Args:
        servers: the memory limit of each server, and the bytes that it uses.
    """
    left = sum(max(0, limit - used) for limit, used in servers)
    if plan.fleet_bytes > left:
        raise LimitError(
            f"k={plan.clusters:,} and {plan.dim:,} features make {plan.numbers:,} numbers of centres, which "
            f"take {plan.fleet_bytes:,} bytes with their sums, and {left:,} are left on the {len(servers)} servers; "
            "start more servers, or with a larger memory limit"
        )


def check_worker(plan: KMeansPlan, features: int, left_bytes: int) -> None:
    """Raise LimitError if a worker has too little memory for the centres at the features that its rows use."""
    needed = plan.worker_bytes(features)
    if needed > left_bytes:
        raise LimitError(
            f"k={plan.clusters:,}: the rows of one worker use {features:,} features, at which the centres take "
            f"{needed:,} bytes, and {left_bytes:,} are left on its machine; use machines with more memory"
        )
