"""A worker of k-means: its tasks, and what it does for each.

A worker that is started again needs only its task and the servers. It caches the nearest candidate of each row, which
saves time.
"""

from __future__ import annotations

from dataclasses import dataclass
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

# Binary digits of the sum over all rows; weights and values are rounded to its last digit.
DIGITS = 51
# The minimum unit of sums; division by a smaller one might overflow.
MIN_UNIT = 2.0**-1000
# Float64 rows of length 1 are rounded to this unit, so that rows with equal directions become equal.
DIRECTION_UNIT = 2.0**-42
# Maximum bytes of the candidates whose distances are computed together.
CANDIDATE_BYTES = 128 << 20
# If the share of nonzero sums may exceed this, all sums are sent, without cluster numbers.
DENSE_SHARE = 0.5


@dataclass(frozen=True, eq=False)
class ServerVectors:
    """The vectors and matrices on the servers; picklable.

    Attributes:
        centres: layout "column": a column is a feature.
        sums: the sum of the rows of each cluster, in the same layout.
        counts: the summed weight of each cluster's rows.
        norms: the squared length of each centre.
        highs, lows: the largest value of each feature, and its largest negated value.
        held: the number of rows that store each feature.
        shifts: the number that is subtracted from each feature (``clusters.shift``).
        sizes: the largest absolute value of each feature after the subtraction.
    """

    centres: DCVMatrix
    sums: DCVMatrix
    counts: DCV
    norms: DCV
    highs: DCV
    lows: DCV
    held: DCV
    shifts: DCV
    sizes: DCV


class Scale(NamedTuple):
    """Exponents of powers of two; scaling by them changes no digit.

    Attributes:
        exponent: values are divided by ``2**exponent``.
        weights: weights are divided by ``2**weights``.
        rows: the number of rows is below ``2**rows``.
    """

    exponent: int
    weights: int
    rows: int


# -- tasks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Survey(Task):
    """Survey the rows: report their number and largest weight, and raise the features' limits on the servers."""


@dataclass(frozen=True, eq=False)
class RankRows(Task):
    """Rank the rows for a draw: report the ranks and hashes of the first ones. Earlier draws chose the candidates."""

    scale: Scale
    draw: int
    candidates: PackedRows | None


@dataclass(frozen=True, eq=False)
class CollectDraw(Task):
    """Report the rows of a draw: those whose ranks are at most ``last_rank``."""

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
    """Put the rows with the hashes ``chosen`` on the servers, as the first centres."""

    scale: Scale
    chosen: npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Assign(Task):
    """Assign the rows to the nearest centres: report their cost, and add their sums to the servers'."""

    scale: Scale
    clusters: int


# -- work --------------------------------------------------------------------------------------------------------------


class ClusteringWorker:
    """Carries out tasks on the rows of a worker."""

    def __init__(self, plan: KMeansPlan, vectors: ServerVectors, reading: Reading) -> None:
        rows = reading.training
        what = f"k={plan.clusters:,}: the rows of one worker use {len(rows.keys):,} features, and their centres take"
        check_worker(what, plan.worker_bytes(len(rows.keys)), free_bytes())
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
        self._scaled: _ScaledRows | None = None
        self._num_candidates = 0  # ``_nearest`` is the index of each row's nearest candidate
        self._nearest, self._distances = np.zeros(len(rows), np.int64), np.full(len(rows), np.inf)

    def __call__(self, worker: Any, task: Any) -> None:
        if isinstance(task, Survey):
            self._survey(worker)
            return
        if self._scaled is None:
            self._scaled = _ScaledRows.of(self._rows, self._plan, self._vectors, Scale(*task.scale))
        if isinstance(task, (RankRows, CollectDraw, WeighCandidates)):
            self._find_nearest(task.candidates)
        match task:
            case RankRows():
                ranks = self._ranks(task.draw)
                first = row_draws.smallest(ranks, self._ids, draw_size(self._plan, task.draw))
                worker.report({"ranks": ranks[first], "ids": self._ids[first]}, "concat")
            case CollectDraw():
                rows = self._distinct(np.flatnonzero(self._ranks(task.draw) <= task.last_rank))
                worker.report(start.packed(self._scaled.points.x[rows], self._rows.keys, self._ids[rows]), "concat")
            case WeighCandidates():
                weights = np.bincount(self._nearest, self._scaled.weights, len(task.candidates["sizes"]))
                worker.report({"weights": weights})
            case PlaceCentres():
                self._place_centres(task.chosen)
            case Assign():
                self._assign(worker, task.clusters)

    def _survey(self, worker: Any) -> None:
        rows, vectors = self._rows, self._vectors
        for vector, values in ((vectors.highs, rows.x.data), (vectors.lows, -rows.x.data)):
            largest = np.full(len(rows.keys), -np.inf)
            np.maximum.at(largest, rows.x.indices, values)
            vector.zip().apply("clusters.raise_to", slots=rows.keys, values=largest)
        vectors.held.add(np.bincount(rows.x.indices, minlength=len(rows.keys)).astype(np.float64), rows.keys)
        weight = 1.0 if rows.weights is None else float(rows.weights.max(initial=0.0))
        worker.report({"weight": weight}, "max")
        worker.report({"rows": len(rows), "without_length": self._num_zero_rows})

    def _ranks(self, draw: int) -> Float64s:
        """Return the ranks of rows in a draw: by weight in draw 0, by their shares of the cost in later draws."""
        assert self._scaled is not None
        weights = self._scaled.weights * self._distances if draw else self._scaled.weights
        return row_draws.priorities(self._ids, weights, self._plan.seed, draw)

    def _distinct(self, numbers: Int64s) -> Int64s:
        """Return the first of each set of equal rows, by ascending hash."""
        return np.asarray(numbers[np.unique(self._ids[numbers], return_index=True)[1]])

    def _find_nearest(self, candidates: Any) -> None:
        """Update the nearest candidate of each row, if there are new candidates."""
        if candidates is None or len(candidates["sizes"]) == self._num_candidates:
            return
        assert self._scaled is not None
        new = start.unpacked(candidates, self._plan.dim)[self._num_candidates :]
        dtype = self._rows.x.dtype
        width = max(1, CANDIDATE_BYTES // (dtype.itemsize * max(1, len(self._rows.keys))))
        for begin in range(0, new.shape[0], width):
            block = new[begin : begin + width]
            lengths = np.asarray((block * block).sum(axis=1, dtype=np.float64)).reshape(-1)
            centres = np.ascontiguousarray(block[:, self._rows.keys].toarray().T.astype(dtype))
            nearest, distances = self._scaled.points.nearest(centres, lengths)
            nearer = distances < self._distances
            self._nearest[nearer] = nearest[nearer] + self._num_candidates + begin
            self._distances[nearer] = distances[nearer]
        self._num_candidates = len(candidates["sizes"])

    def _place_centres(self, chosen: npt.NDArray[np.uint64]) -> None:
        """Put the first centres on the servers: the rows whose hashes are in ``chosen``, in the order of ``chosen``."""
        assert self._scaled is not None
        order = np.argsort(chosen)
        positions = np.minimum(np.searchsorted(chosen[order], self._ids), len(chosen) - 1)
        rows = self._distinct(np.flatnonzero(chosen[order][positions] == self._ids))
        columns = self._scaled.points.x[rows].tocsc()
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
        scaled, vectors, keys = self._scaled, self._vectors, self._rows.keys
        assert scaled is not None
        with batch():
            pulled = vectors.centres.pull(columns=keys), vectors.norms.pull()
        centres, norms = pulled[0].result()[:, :clusters], pulled[1].result()[:clusters]
        assigned, distances = scaled.points.nearest(centres, norms)
        counts: Float64s = np.bincount(assigned, scaled.weights, self._plan.clusters).astype(np.float64)
        sum_bytes = self._add_sums(assigned, counts)
        worker.report({"cost": np.array([kernels.total(readable(distances), scaled.weights)])}, "concat")
        moved_bytes = centres.nbytes + norms.nbytes + counts.nbytes + sum_bytes
        sizes = np.bincount(assigned, minlength=clusters)
        worker.report({"rows": len(self._rows), "bytes": moved_bytes, "sizes": sizes})

    def _add_sums(self, assigned: Int64s, counts: Float64s) -> int:
        """Add sums of rows by cluster, and their counts, in one request; return the bytes of the sums."""
        scaled, vectors, keys = self._scaled, self._vectors, self._rows.keys
        assert scaled is not None
        x, width = scaled.points.x, self._plan.clusters
        if x.nnz > DENSE_SHARE * len(keys) * width:
            sums = np.zeros((len(keys), width))
            entries = readable(x.indptr), readable(x.indices), readable(x.data)
            kernels.sum_rows(*entries, scaled.weights, readable(assigned), scaled.units, sums)
            with batch():
                vectors.sums.add(columns=keys, values=sums)
                vectors.counts.add(counts)
            return sums.nbytes
        columns = scaled.columns()
        sizes, clusters, values = np.zeros(len(keys), np.int32), np.empty(x.nnz, np.int32), np.empty(x.nnz)
        entries = readable(columns.indptr), readable(columns.indices), readable(columns.data)
        weighted = *entries, scaled.weights, readable(assigned), scaled.units
        count = kernels.sum_columns(*weighted, sizes, clusters, values, width)
        used = sizes > 0
        sent_sizes, sent_clusters = _narrow(sizes[used]), _narrow(clusters[:count])
        with batch():
            vectors.sums.apply(
                "clusters.gather", slots=keys[used], sizes=sent_sizes, clusters=sent_clusters, values=values[:count]
            )
            vectors.counts.add(counts)
        return sent_sizes.nbytes + sent_clusters.nbytes + 8 * count


class _ScaledRows:
    """Rows without their offsets, and weights, scaled.

    Attributes:
        weights: the weights of rows, as multiples of a unit, so that sums are exact.
        units: the unit of each column; sums of values times weights are multiples of it, so they are exact.
    """

    def __init__(self, points: Points, weights: Float64s, units: Float64s) -> None:
        self.points, self.weights, self.units = points, readable(weights), readable(units)
        self._columns: Any = None

    @staticmethod
    def of(rows: LocalRows, plan: KMeansPlan, vectors: ServerVectors, scale: Scale) -> _ScaledRows:
        x, shifts = rows.x, vectors.shifts.pull(rows.keys)
        if scale.exponent or shifts.any():
            data = shifted(x.data - shifts[x.indices], -scale.exponent).astype(x.dtype)
            x = type(x)((data, x.indices, x.indptr), shape=x.shape)
        weights = np.ones(len(rows)) if rows.weights is None else shifted(rows.weights, -scale.weights)
        unit = 2.0 ** (scale.rows - DIGITS)
        weights = np.rint(weights / unit) * unit
        if plan.settings.distanceMeasure == "cosine":
            largest = np.zeros(len(rows.keys), np.int64)
        else:
            sizes = shifted(vectors.sizes.pull(rows.keys), -scale.exponent)
            largest = np.frexp(sizes)[1].astype(np.int64)
        units = np.maximum(np.ldexp(1.0, largest + scale.rows - DIGITS), MIN_UNIT)
        return _ScaledRows(Points.of(x, plan.dim), weights, units)

    def columns(self) -> Any:
        """Return the rows' matrix column by column."""
        if self._columns is None:
            self._columns = self.points.x.tocsc()
        return self._columns


def draw_size(plan: KMeansPlan, draw: int) -> int:
    """Return how many rows a draw takes: the first centre, or all of them ("random"), then candidates."""
    if plan.settings.initMode == "random":
        return plan.clusters
    return 2 * plan.clusters if draw else 1


def _narrow(numbers: Array) -> Array:
    return narrow_unsigned(numbers, int(numbers.max(initial=0)))
