"""A worker of k-means: the tasks that the driver sends, and how a worker does them.

A restarted worker can compute everything from its task and the servers. It caches each row's nearest candidate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ps2.algorithms.clusters import kernels, start
from ps2.algorithms.clusters.model import Points
from ps2.algorithms.clusters.plan import KMeansPlan
from ps2.algorithms.clusters.start import PackedRows
from ps2.algorithms.frame.memory import check_worker
from ps2.algorithms.frame.powers_of_two import shifted
from ps2.algorithms.frame.program import Task
from ps2.algorithms.training import row_draws
from ps2.algorithms.training.reading import Reading
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.data.rows import LocalRows
from ps2.ops.blocks import narrow_unsigned
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s
from ps2.server.memory import free_bytes

Array = npt.NDArray[Any]

# Values and weights are rounded so that a sum over all rows needs at most this many of the 53 bits of a float64. Such
# sums are exact, and do not depend on the order of the rows.
DIGITS = 51
# The minimum unit of sums; smaller units might underflow.
MIN_UNIT = 2.0**-1000
# With the cosine distance, float64 rows of norm 1 are rounded to multiples of this value: parallel rows become equal.
DIRECTION_UNIT = 2.0**-42
# The maximum bytes of candidates whose distances are computed together.
CANDIDATE_BYTES = 128 << 20
# If more than this fraction of the sums may be nonzero, all sums are sent as a dense array, without cluster indices.
DENSE_FRACTION = 0.5


@dataclass(frozen=True, eq=False)
class ServerVectors:
    """Handles to the vectors and matrices on the servers; picklable.

    Attributes:
        centres: the centres, with layout "column": a column is a feature, its block has a value for each cluster.
        sums: the sum of the rows of each cluster, with the same layout.
        counts: the sum of the weights of each cluster's rows.
        norms: the squared norm of each centre.
        highs: the largest value of each feature.
        lows: the smallest value of each feature, negated.
        stored_counts: the number of rows that store each feature.
        shifts: the shift that is subtracted from each feature (``ops.shift``).
        max_abs_values: the largest absolute value of each feature after the shift.
    """

    centres: DCVMatrix
    sums: DCVMatrix
    counts: DCV
    norms: DCV
    highs: DCV
    lows: DCV
    stored_counts: DCV
    shifts: DCV
    max_abs_values: DCV


class Scale(NamedTuple):
    """Exponents of powers of two: scaling by powers of two is exact.

    Attributes:
        exponent: values are divided by 2 ** exponent.
        weight_exponent: weights are divided by 2 ** weight_exponent.
        row_exponent: the number of rows is below 2 ** row_exponent.
    """

    exponent: int
    weight_exponent: int
    row_exponent: int


@dataclass(frozen=True, eq=False)
class Survey(Task):
    """Report the number of rows and the largest weight; update the features' ranges on the servers."""


@dataclass(frozen=True, eq=False)
class RankRows(Task):
    """Report the smallest ranks, which are random priorities of rows (``row_draws``), and the hashes of these rows.

    ``draw`` is the number of the draw, from 0; ``candidates`` are the rows of earlier draws.
    """

    scale: Scale
    draw: int
    candidates: PackedRows | None


@dataclass(frozen=True, eq=False)
class CollectDraw(Task):
    """Report the rows of a draw: those with ranks up to ``last_rank``."""

    scale: Scale
    draw: int
    candidates: PackedRows | None
    last_rank: float


@dataclass(frozen=True, eq=False)
class WeighCandidates(Task):
    """Report the weight of each candidate: the summed weight of the rows nearest to it."""

    scale: Scale
    candidates: PackedRows


@dataclass(frozen=True, eq=False)
class PlaceCentres(Task):
    """Write the rows with the hashes ``chosen`` to the servers as the first centres."""

    scale: Scale
    chosen: npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Assign(Task):
    """Assign rows to the nearest centres, of which there may be fewer than k; report the cost, add rows to the sums."""

    scale: Scale
    clusters: int


class ClusteringWorker:
    """Does the driver's tasks with the rows of one worker."""

    def __init__(self, plan: KMeansPlan, vectors: ServerVectors, reading: Reading) -> None:
        rows = reading.training
        content = f"k={plan.clusters:,}: the rows of one worker use {len(rows.keys):,} features, whose centres take"
        check_worker(content, plan.worker_bytes(len(rows.keys)), free_bytes())
        self._plan, self._vectors, self._rows = plan, vectors, rows
        self._num_zero_rows = 0
        if plan.settings.distanceMeasure == "cosine":
            data = rows.x.data.copy()
            self._num_zero_rows = kernels.normalize(readable(rows.x.indptr), data)
            if data.dtype == np.float64:
                data = np.rint(data / DIRECTION_UNIT) * DIRECTION_UNIT
            x = type(rows.x)((data, rows.x.indices, rows.x.indptr), shape=rows.x.shape)
            self._rows = LocalRows(rows.keys, x, None, rows.weights)
        self._ids = row_draws.hashes(self._rows.x, self._rows.keys)
        self._prepared: Any = None
        # The number of candidates that ``_find_nearest`` has already compared with the rows.
        self._num_candidates = 0
        self._nearest, self._distances = np.zeros(len(rows), np.int64), np.full(len(rows), np.inf)

    def __call__(self, worker: Any, task: Any) -> None:
        if isinstance(task, Survey):
            self._survey(worker)
            return
        if self._prepared is None:
            self._prepared = _Prepared(self._rows, self._plan, self._vectors, Scale(*task.scale))
        if isinstance(task, (RankRows, CollectDraw, WeighCandidates)):
            self._find_nearest(task.candidates)
        match task:
            case RankRows():
                ranks = self._ranks(task.draw)
                smallest = row_draws.smallest(ranks, self._ids, draw_size(self._plan, task.draw))
                worker.report({"ranks": ranks[smallest], "ids": self._ids[smallest]}, "concat")
            case CollectDraw():
                drawn = self._distinct(np.flatnonzero(self._ranks(task.draw) <= task.last_rank))
                worker.report(start.pack(self._prepared.points.x[drawn], self._rows.keys, self._ids[drawn]), "concat")
            case WeighCandidates():
                weights = np.bincount(self._nearest, self._prepared.weights, len(task.candidates["sizes"]))
                worker.report({"weights": weights})
            case PlaceCentres():
                self._place_centres(task.chosen)
            case Assign():
                self._assign(worker, task.clusters)

    def _survey(self, worker: Any) -> None:
        rows, vectors = self._rows, self._vectors
        for vector, values in ((vectors.highs, rows.x.data), (vectors.lows, -rows.x.data)):
            max_values = np.full(len(rows.keys), -np.inf)
            np.maximum.at(max_values, rows.x.indices, values)
            vector.zip().apply("clusters.raise_to", slots=rows.keys, values=max_values)
        vectors.stored_counts.add(np.bincount(rows.x.indices, minlength=len(rows.keys)).astype(np.float64), rows.keys)
        weight = 1.0 if rows.weights is None else float(rows.weights.max(initial=0.0))
        worker.report({"weight": weight}, "max")
        worker.report({"rows": len(rows), "without_length": self._num_zero_rows})

    def _ranks(self, draw: int) -> Float64s:
        """Return random ranks of the rows by their weights; after draw 0, by weight times squared distance."""
        weights = self._prepared.weights * self._distances if draw else self._prepared.weights
        return row_draws.priorities(self._ids, weights, self._plan.seed, draw)

    def _distinct(self, indices: Int64s) -> Int64s:
        """Return the given rows without duplicates, as indices in ascending order of the rows' hashes."""
        return np.asarray(indices[np.unique(self._ids[indices], return_index=True)[1]])

    def _find_nearest(self, candidates: Any) -> None:
        """Update each row's nearest candidate, if there are new candidates."""
        if candidates is None or len(candidates["sizes"]) == self._num_candidates:
            return
        new_candidates = start.unpack(candidates, self._plan.dim)[self._num_candidates :]
        dtype = self._rows.x.dtype
        width = max(1, CANDIDATE_BYTES // (dtype.itemsize * max(1, len(self._rows.keys))))
        for begin in range(0, new_candidates.shape[0], width):
            block = new_candidates[begin : begin + width]
            squares = np.asarray((block * block).sum(axis=1, dtype=np.float64)).reshape(-1)
            centres = np.ascontiguousarray(block[:, self._rows.keys].toarray().T.astype(dtype))
            nearest, distances = self._prepared.points.nearest(centres, squares)
            is_nearer = distances < self._distances
            self._nearest[is_nearer] = nearest[is_nearer] + self._num_candidates + begin
            self._distances[is_nearer] = distances[is_nearer]
        self._num_candidates = len(candidates["sizes"])

    def _place_centres(self, chosen: npt.NDArray[np.uint64]) -> None:
        """Write the rows with the chosen hashes to the servers as centres, in the order of the hashes."""
        order = np.argsort(chosen)
        positions = np.minimum(np.searchsorted(chosen[order], self._ids), len(chosen) - 1)
        rows = self._distinct(np.flatnonzero(chosen[order][positions] == self._ids))
        columns = self._prepared.points.x[rows].tocsc()
        sizes = np.diff(columns.indptr)
        used = sizes > 0
        self._vectors.centres.apply(
            "clusters.place",
            slots=self._rows.keys[used],
            sizes=_narrow(sizes[used]),
            clusters=_narrow(order[positions[rows]][columns.indices]),
            values=columns.data,
        )

    def _assign(self, worker: Any, clusters: int) -> None:
        prepared, vectors, keys = self._prepared, self._vectors, self._rows.keys
        with batch():
            pulled = vectors.centres.pull(columns=keys), vectors.norms.pull()
        centres, squares = pulled[0].result()[:, :clusters], pulled[1].result()[:clusters]
        assignments, distances = prepared.points.nearest(centres, squares)
        counts: Float64s = np.bincount(assignments, prepared.weights, self._plan.clusters).astype(np.float64)
        sum_bytes = self._add_sums(assignments, counts)
        worker.report({"cost": np.array([kernels.total(readable(distances), prepared.weights)])}, "concat")
        moved_bytes = centres.nbytes + squares.nbytes + counts.nbytes + sum_bytes
        sizes = np.bincount(assignments, minlength=clusters)
        worker.report({"rows": len(self._rows), "bytes": moved_bytes, "sizes": sizes})

    def _add_sums(self, assignments: Int64s, counts: Float64s) -> int:
        """Add the sum and weight of each cluster's rows on the servers, in one batch; return the bytes of the sums."""
        prepared, vectors, keys = self._prepared, self._vectors, self._rows.keys
        x, width = prepared.points.x, self._plan.clusters
        if x.nnz > DENSE_FRACTION * len(keys) * width:
            sums = np.zeros((len(keys), width))
            entries = readable(x.indptr), readable(x.indices), readable(x.data)
            kernels.sum_rows(*entries, prepared.weights, readable(assignments), prepared.units, sums)
            with batch():
                vectors.sums.add(columns=keys, values=sums)
                vectors.counts.add(counts)
            return sums.nbytes
        columns = prepared.columns
        sizes, clusters, values = np.zeros(len(keys), np.int32), np.empty(x.nnz, np.int32), np.empty(x.nnz)
        entries = readable(columns.indptr), readable(columns.indices), readable(columns.data)
        weighted = *entries, prepared.weights, readable(assignments), prepared.units
        count = kernels.sum_columns(*weighted, sizes, clusters, values, width)
        used = sizes > 0
        sent_sizes, sent_clusters = _narrow(sizes[used]), _narrow(clusters[:count])
        with batch():
            vectors.sums.apply(
                "clusters.gather", slots=keys[used], sizes=sent_sizes, clusters=sent_clusters, values=values[:count]
            )
            vectors.counts.add(counts)
        return sent_sizes.nbytes + sent_clusters.nbytes + 8 * count


class _Prepared:
    """A worker's rows and weights, shifted and scaled.

    Attributes:
        weights: the scaled weights, rounded to multiples of a unit, so their sums are exact (``DIGITS``).
        units: for each column, a unit; value * weight is rounded to its multiples for the same reason.
        points: the shifted and scaled rows.
    """

    def __init__(self, rows: LocalRows, plan: KMeansPlan, vectors: ServerVectors, scale: Scale) -> None:
        x, shifts = rows.x, vectors.shifts.pull(rows.keys)
        if scale.exponent or shifts.any():
            data = shifted(x.data - shifts[x.indices], -scale.exponent).astype(x.dtype)
            x = type(x)((data, x.indices, x.indptr), shape=x.shape)
        weights = np.ones(len(rows)) if rows.weights is None else shifted(rows.weights, -scale.weight_exponent)
        unit = 2.0 ** (scale.row_exponent - DIGITS)
        self.weights = readable(np.rint(weights / unit) * unit)
        if plan.settings.distanceMeasure == "cosine":
            exponents = np.zeros(len(rows.keys), np.int64)
        else:
            max_abs_values = shifted(vectors.max_abs_values.pull(rows.keys), -scale.exponent)
            exponents = np.frexp(max_abs_values)[1].astype(np.int64)
        self.units = readable(np.maximum(np.ldexp(1.0, exponents + scale.row_exponent - DIGITS), MIN_UNIT))
        self.points = Points(x, plan.dim)

    @cached_property
    def columns(self) -> Any:
        """The rows in CSC form."""
        return self.points.x.tocsc()


def draw_size(plan: KMeansPlan, draw: int) -> int:
    """Return the number of rows of a draw: 1 in draw 0, 2 k in later draws; with "random", k in the only draw."""
    if plan.settings.initMode == "random":
        return plan.clusters
    return 2 * plan.clusters if draw else 1


def _narrow(values: Array) -> Array:
    return narrow_unsigned(values, int(values.max(initial=0)))
