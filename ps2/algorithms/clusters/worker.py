"""A worker of k-means: the tasks that the driver sends, and how a worker does them.

A restarted worker can compute everything from its task and the servers. It caches each row's nearest candidate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
from ps2.algorithms.training.reading import Reading, SpillableReading
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix
from ps2.data.block_file import StoredArray
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows
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

    def __init__(self, plan: KMeansPlan, vectors: ServerVectors, reading: Reading | SpillableReading) -> None:
        rows = reading.training
        rows = rows if len(rows) else rows.chosen(np.arange(0))  # also an empty file makes a block
        content = f"k={plan.clusters:,}: the rows of one worker use {len(rows.keys):,} features, whose centres take"
        check_worker(content, plan.worker_bytes(len(rows.keys)), free_bytes())
        self._plan, self._vectors, self._rows = plan, vectors, rows
        if plan.settings.distanceMeasure == "cosine":
            self._rows = rows.mapped(_directions)
        self._prepared: Any = None
        # The number of candidates that ``_find_nearest`` has already compared with the rows.
        self._num_candidates = 0
        # Each row's nearest candidate, and the squared distance to it.
        self._nearest, self._distances = (rows.new_array(len(rows), dtype) for dtype in (np.int64, np.float64))

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
                worker.report(self._smallest_ranks(task.draw), "concat")
            case CollectDraw():
                parts = (
                    self._distinct(block, self._ranks(block, task.draw) <= task.last_rank)
                    for block in self._prepared.blocks()
                )
                worker.report(start.drop_duplicates(start.concatenate(list(parts))), "concat")
            case WeighCandidates():
                weights = np.zeros(len(task.candidates["sizes"]))
                for block in self._prepared.blocks():
                    weights += np.bincount(self._nearest[block.rows], block.weights, len(weights))
                worker.report({"weights": weights})
            case PlaceCentres():
                self._place_centres(task.chosen)
            case Assign():
                self._assign(worker, task.clusters)

    def _survey(self, worker: Any) -> None:
        rows, vectors = self._rows, self._vectors
        highs, negated_lows = (np.full(len(rows.keys), -np.inf) for _ in range(2))
        stored_counts, num_zero_rows, weight = np.zeros(len(rows.keys)), 0, 0.0
        for block in rows.blocks():
            np.maximum.at(highs, block.x.indices, block.x.data)
            np.maximum.at(negated_lows, block.x.indices, -block.x.data)
            stored_counts += np.bincount(block.x.indices, minlength=len(rows.keys))
            weight = max(weight, 1.0 if block.weights is None else float(block.weights.max(initial=0.0)))
            if self._plan.settings.distanceMeasure == "cosine":
                num_zero_rows += kernels.normalize(readable(block.x.indptr), block.x.data.copy())
        for vector, max_values in ((vectors.highs, highs), (vectors.lows, negated_lows)):
            vector.zip().apply("clusters.raise_to", slots=rows.keys, values=max_values)
        vectors.stored_counts.add(stored_counts, rows.keys)
        worker.report({"weight": weight}, "max")
        worker.report({"rows": len(rows), "without_length": num_zero_rows})

    @cached_property
    def _ids(self) -> StoredArray:
        """The hash of each row."""
        rows, begin = self._rows, 0
        ids = rows.new_array(len(rows), np.uint64)
        for block in rows.blocks():
            ids[begin : begin + len(block)][:] = row_draws.hashes(block.x, rows.keys)
            begin += len(block)
        return ids

    def _ranks(self, block: Block, draw: int) -> Float64s:
        """Return random ranks of rows by their weights; after draw 0, by weight times squared distance."""
        weights = block.weights * self._distances[block.rows] if draw else block.weights
        return row_draws.priorities(self._ids[block.rows], weights, self._plan.seed, draw)

    def _smallest_ranks(self, draw: int) -> dict[str, Array]:
        """Return the smallest ranks of a draw, and the hashes of their rows."""
        count = draw_size(self._plan, draw)
        ranks, ids = np.zeros(0), np.zeros(0, np.uint64)
        for block in self._prepared.blocks():
            ranks = np.concatenate([ranks, self._ranks(block, draw)])
            ids = np.concatenate([ids, self._ids[block.rows]])
            smallest = row_draws.smallest(ranks, ids, count)
            ranks, ids = ranks[smallest], ids[smallest]
        return {"ranks": ranks, "ids": ids}

    def _distinct(self, block: Block, mask: Array) -> PackedRows:
        """Return the rows of a mask without duplicates, in ascending order of their hashes."""
        indices, ids = np.flatnonzero(mask), self._ids[block.rows]
        distinct = indices[np.unique(ids[indices], return_index=True)[1]]
        return start.pack(block.points.x[distinct], self._rows.keys, ids[distinct])

    def _find_nearest(self, candidates: Any) -> None:
        """Update each row's nearest candidate, if there are new candidates."""
        if candidates is None or len(candidates["sizes"]) == self._num_candidates:
            return
        new_candidates = start.unpack(candidates, self._plan.dim)[self._num_candidates :]
        dtype = self._plan.dtype
        width = max(1, CANDIDATE_BYTES // (np.dtype(dtype).itemsize * max(1, len(self._rows.keys))))
        for begin in range(0, new_candidates.shape[0], width):
            part = new_candidates[begin : begin + width]
            squares = np.asarray((part * part).sum(axis=1, dtype=np.float64)).reshape(-1)
            centres = np.ascontiguousarray(part[:, self._rows.keys].toarray().T.astype(dtype))
            for block in self._prepared.blocks():
                nearest, distances = block.points.nearest(centres, squares)
                block_nearest, block_distances = self._nearest[block.rows], self._distances[block.rows]
                is_nearer = distances < block_distances if self._num_candidates + begin else slice(None)
                block_nearest[is_nearer] = nearest[is_nearer] + self._num_candidates + begin
                block_distances[is_nearer] = distances[is_nearer]
        self._num_candidates = len(candidates["sizes"])

    def _place_centres(self, chosen: npt.NDArray[np.uint64]) -> None:
        """Write the rows with the chosen hashes to the servers as centres, in the order of the hashes."""
        parts = (self._distinct(block, np.isin(self._ids[block.rows], chosen)) for block in self._prepared.blocks())
        rows = start.drop_duplicates(start.concatenate(list(parts)))
        order = np.argsort(chosen)
        numbers = order[np.searchsorted(chosen[order], rows["ids"])]
        columns = start.unpack(rows, self._plan.dim).tocsc()
        sizes = np.diff(columns.indptr)
        used = np.flatnonzero(sizes)
        self._vectors.centres.apply(
            "clusters.place",
            slots=used,
            sizes=_narrow(sizes[used]),
            clusters=_narrow(numbers[columns.indices]),
            values=columns.data,
        )

    def _assign(self, worker: Any, clusters: int) -> None:
        vectors, keys = self._vectors, self._rows.keys
        with batch():
            pulled = vectors.centres.pull(columns=keys), vectors.norms.pull()
        centres, squares = pulled[0].result()[:, :clusters], pulled[1].result()[:clusters]
        sums = ClusterSums(self._prepared, self._plan.clusters)
        counts, sizes, cost = np.zeros(self._plan.clusters), np.zeros(clusters, np.int64), (0.0, 0.0)
        for block in self._prepared.blocks():
            assignments, distances = block.points.nearest(centres, squares)
            counts += np.bincount(assignments, block.weights, len(counts))
            sizes += np.bincount(assignments, minlength=clusters)
            cost = kernels.total(readable(distances), block.weights, cost)
            sums.add(block, readable(assignments))
        with batch():
            sum_bytes = sums.send(vectors.sums, keys)
            vectors.counts.add(counts)
        worker.report({"cost": np.array([cost])}, "concat")
        moved_bytes = centres.nbytes + squares.nbytes + counts.nbytes + sum_bytes
        worker.report({"rows": len(self._rows), "bytes": moved_bytes, "sizes": sizes})


@dataclass(frozen=True, eq=False)
class Block:
    """Some of a worker's rows, shifted and scaled.

    Attributes:
        rows: the rows' positions among the worker's rows.
        weights: the scaled weights, rounded to multiples of a unit, so their sums are exact (``DIGITS``).
    """

    rows: slice
    points: Points
    weights: Float64s

    @cached_property
    def columns(self) -> Any:
        """The rows in CSC form."""
        return self.points.x.tocsc()


class _Prepared:
    """A worker's rows, shifted and scaled.

    Attributes:
        rows: the rows.
        units: for each column, a unit; value * weight is rounded to its multiples, so sums are exact.
    """

    def __init__(self, rows: KeptRows, plan: KMeansPlan, vectors: ServerVectors, scale: Scale) -> None:
        self.rows = rows.mapped(partial(_scaled, vectors.shifts.pull(rows.keys), scale))
        self._dim, self._scale = plan.dim, scale
        if plan.settings.distanceMeasure == "cosine":
            exponents = np.zeros(len(rows.keys), np.int64)
        else:
            max_abs_values = shifted(vectors.max_abs_values.pull(rows.keys), -scale.exponent)
            exponents = np.frexp(max_abs_values)[1].astype(np.int64)
        self.units = readable(np.maximum(np.ldexp(1.0, exponents + scale.row_exponent - DIGITS), MIN_UNIT))
        # All rows, if they are in memory.
        self._block = self._read(self.rows, 0) if isinstance(self.rows, LocalRows) else None

    def blocks(self) -> Iterator[Block]:
        """Yield all rows in order."""
        if self._block is not None:
            yield self._block
            return
        begin = 0
        for rows in self.rows.blocks():
            yield self._read(rows, begin)
            begin += len(rows)

    def _read(self, rows: LocalRows, begin: int) -> Block:
        weights = np.ones(len(rows)) if rows.weights is None else shifted(rows.weights, -self._scale.weight_exponent)
        unit = 2.0 ** (self._scale.row_exponent - DIGITS)
        points, weights = Points(rows.x, self._dim), readable(np.rint(weights / unit) * unit)
        return Block(slice(begin, begin + len(rows)), points, weights)


class ClusterSums:
    """The sums of the rows of each cluster."""

    def __init__(self, prepared: _Prepared, clusters: int) -> None:
        rows, self._units = prepared.rows, prepared.units
        shape = len(rows.keys), clusters
        self._is_dense = rows.entries > DENSE_FRACTION * shape[0] * shape[1]
        # The sums, shape (columns, clusters); None: all rows are in one block, whose sums are made as lists.
        self._sums = np.zeros(shape) if self._is_dense or not isinstance(rows, LocalRows) else None
        # Each column's number of nonzero sums, and each nonzero sum's cluster and value.
        self._lists: tuple[Array, Array, Array] = np.zeros(shape[0], np.int32), np.empty(0, np.int32), np.empty(0)
        self._clusters = clusters

    def add(self, block: Block, assignments: Int64s) -> None:
        """Add the rows of a block to the sums of their clusters."""
        weighted = block.weights, assignments, self._units
        if self._sums is not None:
            x = block.points.x
            kernels.sum_rows(readable(x.indptr), readable(x.indices), readable(x.data), *weighted, self._sums)
            return
        x = block.columns
        sizes, clusters, values = self._lists[0], np.empty(x.nnz, np.int32), np.empty(x.nnz)
        entries = readable(x.indptr), readable(x.indices), readable(x.data)
        count = kernels.sum_columns(*entries, *weighted, sizes, clusters, values, self._clusters)
        self._lists = sizes, clusters[:count], values[:count]

    def send(self, sums: DCVMatrix, keys: Int64s) -> int:
        """Add the sums on the servers; return their bytes."""
        if self._is_dense:
            assert self._sums is not None
            sums.add(columns=keys, values=self._sums)
            return self._sums.nbytes
        sizes, clusters, values = self._lists
        if self._sums is not None:
            columns, clusters = np.nonzero(self._sums)
            sizes, values = np.bincount(columns, minlength=len(keys)), self._sums[columns, clusters]
        used = sizes > 0
        sent_sizes, sent_clusters = _narrow(sizes[used]), _narrow(clusters)
        sums.apply("clusters.gather", slots=keys[used], sizes=sent_sizes, clusters=sent_clusters, values=values)
        return sent_sizes.nbytes + sent_clusters.nbytes + values.nbytes


def _directions(rows: LocalRows) -> LocalRows:
    """Return rows scaled to norm 1, without their labels."""
    data = rows.x.data.copy()
    kernels.normalize(readable(rows.x.indptr), data)
    if data.dtype == np.float64:
        data = np.rint(data / DIRECTION_UNIT) * DIRECTION_UNIT
    x = type(rows.x)((data, rows.x.indices, rows.x.indptr), shape=rows.x.shape)
    return LocalRows(rows.keys, x, None, rows.weights)


def _scaled(shifts: Float64s, scale: Scale, rows: LocalRows) -> LocalRows:
    """Return rows whose values are shifted, and divided by the scale."""
    if not scale.exponent and not shifts.any():
        return rows
    x = rows.x
    data = shifted(x.data - shifts[x.indices], -scale.exponent).astype(x.dtype)
    return replace(rows, x=type(x)((data, x.indices, x.indptr), shape=x.shape))


def draw_size(plan: KMeansPlan, draw: int) -> int:
    """Return the number of rows of a draw: 1 in draw 0, 2 k in later draws; with "random", k in the only draw."""
    if plan.settings.initMode == "random":
        return plan.clusters
    return 2 * plan.clusters if draw else 1


def _narrow(values: Array) -> Array:
    return narrow_unsigned(values, int(values.max(initial=0)))
