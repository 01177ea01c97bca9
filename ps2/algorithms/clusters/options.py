"""What a k-means training is asked, and what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy.typing as npt

from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.record import TrainingHistory, Words
from ps2.data.rows import Float
from ps2.errors import LimitError
from ps2.ops.kernels import Int64s

StartName = Literal["k-means||", "random"]
DistanceName = Literal["euclidean", "cosine"]

# From so many numbers on, centres are float32, and so are rows while the model is trained.
FLOAT32_FROM = 1 << 22
# Bytes of a sum.
SUM_BYTES = 8
# Numbers that servers have of each feature.
OF_FEATURE = 5
# Oversampling of the start: candidates of a round, by cluster (Bahmani et al., section 5).
CANDIDATES = 2
WORDS = Words("iteration", "cost")


@dataclass(frozen=True)
class KMeansOptions:
    """How to find clusters.

    Attributes:
        clusters: k; no more than there are rows.
        start: how the first centres are found.
        rounds: of "k-means||".
        iterations: moves of the centres at most.
        tolerance: the training ends when no centre moves further.
        distance: between rows and centres.
        seed: of the start.
        name: of the training, under which another driver continues it; "": none does.
        dim: number of features; 0: not known yet.
    """

    clusters: int
    start: StartName = "k-means||"
    rounds: int = 2
    iterations: int = 20
    tolerance: float = 1e-4
    distance: DistanceName = "euclidean"
    seed: int = 0
    name: str = ""
    dim: int = 0

    @property
    def numbers(self) -> int:
        """How many numbers all centres have."""
        return self.clusters * self.dim

    @property
    def dtype(self) -> Float:
        """The dtype of centres on the servers, and of rows in the workers."""
        return "float64" if self.numbers < FLOAT32_FROM else "float32"

    @property
    def form(self) -> Form:
        """The form that rows must have."""
        return Form(self.dim, dtype=self.dtype)

    @property
    def fleet_bytes(self) -> int:
        """The bytes on all servers together: of centres and sums, and of a few numbers by feature and cluster."""
        each = SUM_BYTES + (8 if self.dtype == "float64" else 4)
        return self.numbers * each + SUM_BYTES * (OF_FEATURE * self.dim + 2 * self.clusters)

    def worker_bytes(self, features: int) -> int:
        """Return the least bytes of a worker whose rows use so many features."""
        return self.clusters * features * (8 if self.dtype == "float64" else 4)


@dataclass(frozen=True, eq=False)
class FittedClusters:
    """The result of a training.

    Attributes:
        centres: float32 or float64, shape (clusters, dim).
        sizes: rows of each cluster.
        history: how it went; the objective is the cost.
    """

    centres: npt.NDArray[Any]
    sizes: Int64s
    history: TrainingHistory


def check_fleet(options: KMeansOptions, servers: Sequence[tuple[int, int]]) -> None:
    """Raise LimitError if centres and their sums cannot fit servers.

    Args:
        servers: of each one, the limit of its memory, and the bytes in use.
    """
    left = sum(max(0, limit - taken) for limit, taken in servers)
    if options.fleet_bytes > left:
        raise LimitError(
            f"k={options.clusters:,} and {options.dim:,} features make {options.numbers:,} numbers of centres, which "
            f"take {options.fleet_bytes:,} bytes with their sums, and {left:,} are left on the {len(servers)} servers; "
            "start more servers, or with a larger memory limit"
        )


def check_worker(options: KMeansOptions, features: int, left_bytes: int) -> None:
    """Raise LimitError if a worker has too little memory for the centres at the features that its rows use."""
    needed = options.worker_bytes(features)
    if needed > left_bytes:
        raise LimitError(
            f"k={options.clusters:,}: the rows of one worker use {features:,} features, at which the centres take "
            f"{needed:,} bytes, and {left_bytes:,} are left on its machine; use machines with more memory"
        )
