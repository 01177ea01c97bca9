"""K-means as a durable program: k-means|| finds the first centres (``start.py``), Lloyd's algorithm moves them.

The result is the same for any number of workers and servers and any distribution of rows: sums of rows are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.clusters import start
from ps2.algorithms.clusters.plan import WORDS, FittedClusters, KMeansPlan
from ps2.algorithms.clusters.start import PackedRows
from ps2.algorithms.clusters.worker import (
    Assign,
    ClusteringWorker,
    CollectDraw,
    PlaceCentres,
    RankRows,
    Scale,
    ServerVectors,
    Survey,
    WeighCandidates,
    draw_size,
)
from ps2.algorithms.frame.memory import check_servers
from ps2.algorithms.frame.powers_of_two import exponent_of, shifted
from ps2.algorithms.frame.program import Ask, Program, Steps, run_program
from ps2.algorithms.training import row_draws
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Record, StepReport
from ps2.algorithms.training.table import Table
from ps2.client.dcv import DCV
from ps2.errors import InputError, LimitError
from ps2.ops.exact_sums import sum_of_shards
from ps2.ops.kernels import Float64s
from ps2.protocol.plain_data import LIMIT_BYTES

Hashes = npt.NDArray[np.uint64]

# The maximum bytes of the candidates, as a fraction of the maximum message.
MAX_MESSAGE_FRACTION = 0.9


def train(
    ps: Any, table: Table, plan: KMeansPlan, on_step: Callable[[StepReport], None] = lambda step: None
) -> FittedClusters:
    """Find clusters, with the centres on the servers; resume the training if the context has restored it."""
    names = CheckpointNames.of(plan.name, ps)
    if not names.finished_clocks:
        centres_text = f"k={plan.clusters:,} and {plan.dim:,} features make {plan.values:,} values of centres, which"
        check_servers(f"{centres_text}, together with their sums, take", plan.fleet_bytes, ps.memory())
    return run_program(ps, KMeansProgram(plan, Record(on_step, WORDS), names, table.columns), table, names)


class KMeansProgram(Program[FittedClusters]):
    """The program of k-means."""

    number = 2  # the version of the program's questions

    def __init__(self, plan: KMeansPlan, record: Record, names: CheckpointNames, columns: ColumnNames) -> None:
        super().__init__(plan, plan.form, record)
        self._columns = columns
        dim, clusters = plan.dim, plan.clusters

        def matrix(dtype: str) -> Any:
            return names.vector(lambda name: DCV.dense(dim, clusters, dtype, layout="column", name=name)).matrix()

        def vector(length: int) -> DCV:
            return names.vector(lambda name: DCV.dense(length, 1, "float64", name=name))

        centres, sums = matrix(plan.dtype), matrix("float64")
        highs, negated_lows = (
            names.vector(lambda name: DCV.dense(dim, 1, "float64", name=name).fill(-np.inf)) for _ in range(2)
        )
        counts, norms = vector(clusters), vector(clusters)
        stored_counts, shifts, max_abs_values = (vector(dim) for _ in range(3))
        feature_vectors = highs, negated_lows, stored_counts, shifts, max_abs_values
        self._vectors = ServerVectors(centres, sums, counts, norms, *feature_vectors)

    def drive(self, ask: Ask) -> Steps[tuple[Scale, list[int]]]:
        scale = yield from self._survey(ask)
        ask.start_timer()
        row_hashes = yield from self._choose_rows(scale)
        yield PlaceCentres(scale, row_hashes)
        ask(self._compute_squared_norms)
        iteration, reason = 0, ""
        while True:  # Lloyd's algorithm; the last clock only assigns rows to the final centres
            report = yield Assign(scale, len(row_hashes))
            ask.record_objective(self._cost(report.cost, scale), report.rows, report.bytes)
            if reason or iteration >= ask.setting(lambda: self.plan.settings.maxIter):
                break
            iteration += 1
            squared_move = ask(self._move_centres)
            if self._is_within_tolerance(squared_move, scale):
                reason = f"no centre moved further than tol={self.plan.settings.tol:g} in iteration {iteration}"
        self.record.reason = reason or f"all {iteration} iterations were made"
        return scale, report.sizes

    def _survey(self, ask: Ask) -> Steps[Scale]:
        """Check the rows; return the powers of two by which rows and weights are divided."""
        report = yield Survey()
        name = self._columns.shown("features")
        if report.without_length:
            raise InputError(
                f"{name}: {report.without_length:,} of {report.rows:,} rows hold zeros alone, which have no cosine "
                "distance from anything; leave them out"
            )
        if not report.weight > 0:
            raise InputError(f"expected at least one weight above 0, got {report.rows:,} rows whose weights are all 0")
        max_value = 0.0  # with cosines, rows have norm 1 and need no scale
        if self.plan.settings.distanceMeasure == "euclidean":
            max_value = ask(partial(self._shift_features, report.rows))
        weight_exponent = 0 if self._columns.weight is None else math.frexp(report.weight)[1]
        return Scale(exponent_of(np.array(max_value)), weight_exponent, math.frexp(report.rows)[1])

    def _shift_features(self, rows: int) -> float:
        """Choose the shift of each feature (``ops.shift``); return the largest absolute value after the shifts."""
        vectors = self._vectors
        features = vectors.highs.zip(vectors.lows, vectors.stored_counts, vectors.max_abs_values, vectors.shifts)
        features.apply("clusters.shift", rows=float(rows))
        return vectors.max_abs_values.max()

    def _choose_rows(self, scale: Scale) -> Steps[Hashes]:
        """Choose the first centres by k-means|| (Bahmani et al., 2012, Algorithm 2); return the hashes of their rows.

        A draw takes two clocks. In the first, workers give their rows random ranks, which are more often small for rows
        far from all candidates, and report the smallest. In the second, they report the draw's rows.
        """
        plan, settings = self.plan, self.plan.settings
        if settings.initMode == "random":
            chosen: Hashes = yield RankRows(scale, 0, None).then(partial(_first_ids, plan.clusters))
            return chosen
        candidates: PackedRows | None = None
        for draw in range(settings.initSteps + 1):  # lines 1 to 6; draw 0 draws one row
            last_rank = yield RankRows(scale, draw, candidates).then(partial(_last_rank, draw_size(plan, draw)))
            if last_rank < 0:  # the cost is 0: each row equals a candidate
                break
            collect = CollectDraw(scale, draw, candidates, last_rank)
            drawn_rows = yield collect.then(lambda report: start.drop_duplicates(vars(report)))
            candidates = start.concatenate([*([] if candidates is None else [candidates]), dict(vars(drawn_rows))])
            self._check_size(candidates)
        assert candidates is not None
        report = yield WeighCandidates(scale, candidates)  # line 7
        rows, ids = start.unpack(candidates, plan.dim), candidates["ids"]
        return ids[start.plus_plus(rows, report.weights, plan.clusters, plan.seed)]  # line 8

    def _check_size(self, candidates: PackedRows) -> None:
        """Raise LimitError if the candidates are too large for a message to the workers."""
        size_bytes = sum(array.nbytes for array in candidates.values())
        if size_bytes > MAX_MESSAGE_FRACTION * LIMIT_BYTES:
            raise LimitError(
                f"initMode: 'k-means||' has found {len(candidates['ids']):,} candidates for k="
                f"{self.plan.clusters:,} first centres. They take {size_bytes:,} bytes, but a message to the workers "
                f"has at most {LIMIT_BYTES:,}; use 'random'"
            )

    def _compute_squared_norms(self) -> None:
        self._vectors.norms.push(sum_of_shards(self._vectors.centres.apply("clusters.squares"), 1)[0])

    def _cost(self, worker_sums: Float64s, scale: Scale) -> float:
        """Return the sum of squared distances, or of cosine distances, of all workers' rows."""
        cost = math.fsum(worker_sums.reshape(-1))
        if self.plan.settings.distanceMeasure == "cosine":
            cost /= 2.0  # 1 - cos(x, c) = |x - c|^2 / 2 for vectors of norm 1
        with np.errstate(over="ignore"):
            return float(np.ldexp(cost, 2 * scale.exponent + scale.weight_exponent))

    def _move_centres(self) -> float:
        """Move the centres to the means of their rows; return the largest squared distance that a centre moved.

        A centre without rows does not move.
        """
        vectors = self._vectors
        divisors: Float64s = vectors.counts.pull()
        if self.plan.settings.distanceMeasure == "cosine":
            squared_norms = sum_of_shards(vectors.sums.apply("clusters.squares"), 1)[0]
            divisors = np.where(divisors > 0, np.sqrt(squared_norms), 0.0)
        shard_sums = vectors.centres.apply("clusters.move", sums=vectors.sums, divisors=divisors)
        squared_norms, squared_moves = sum_of_shards(shard_sums, 2)
        vectors.norms.push(squared_norms)
        vectors.counts.zero()
        return float(squared_moves.max())

    def _is_within_tolerance(self, squared_move: float, scale: Scale) -> bool:
        limit = self.plan.settings.tol
        if self.plan.settings.distanceMeasure == "cosine":
            return squared_move / 2.0 <= limit
        return math.sqrt(squared_move) <= float(shifted(np.array(limit), -scale.exponent))

    def worker(self) -> Callable[[Reading], ClusteringWorker]:
        return partial(ClusteringWorker, self.plan, self._vectors)

    def result(self, returned: tuple[Scale, Any]) -> FittedClusters:
        (scale, sizes), plan = returned, self.plan
        centres = self._vectors.centres.pull(columns=np.arange(plan.dim))[:, : len(sizes)].T
        centres = (shifted(centres, scale.exponent) + self._vectors.shifts.pull()).astype(plan.dtype)
        return FittedClusters(centres, sizes, self.record.history())

    def free(self) -> None:
        for vector in vars(self._vectors).values():
            vector.free()


def _first_ids(count: int, report: Any) -> Hashes:
    """Return the hashes of the ``count`` rows with the smallest ranks."""
    ids: Hashes = report.ids
    return ids[row_draws.smallest(report.ranks, ids, count)]


def _last_rank(count: int, report: Any) -> float:
    """Return the ``count``-th smallest rank, or the largest if there are fewer; -1: no row has a rank."""
    smallest = row_draws.smallest(report.ranks, report.ids, count)
    return float(report.ranks[smallest[-1]]) if len(smallest) else -1.0
