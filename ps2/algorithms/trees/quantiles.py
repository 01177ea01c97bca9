"""The first clocks of a training of trees, which find the cut points of features.

Workers add integer weights to the servers' sums. Features with categories need no cut points: each category is a bin.

In clock 0, workers count the rows that store each feature. A feature that is too rare to split a node gets no cut
points. In clock 1, workers add the values of features that have few, by the upper half of the values' bits, and in
clock 2, where values share their upper half, by the lower half. From clock 3 on, they add the weights of the other
features by cells. Each of these clocks, called turns, cuts the cells that were too heavy. After the last turn, a heavy
cell has one value. The driver only reads sums, so cut points do not depend on the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from ps2.algorithms.frame.program import Ask, Steps
from ps2.algorithms.training.checkpoint_names import UNNAMED, CheckpointNames
from ps2.algorithms.trees import cut_points
from ps2.algorithms.trees.ascending import are_in, distinct_of, runs
from ps2.algorithms.trees.binning import Bins, bins_of, categories_of
from ps2.algorithms.trees.binning_kernels import count_values
from ps2.algorithms.trees.cut_points import (
    BITS,
    COARSE_BITS,
    ZERO,
    Cells,
    Distinct,
    FeatureColumns,
    Refinement,
    children,
    cuts_of_few,
    cuts_of_many,
    distinct,
    unit_of,
    value_counts,
    whole,
)
from ps2.algorithms.trees.driver_messages import AddCells, AddLowerHalves, AddValues, CountRows, CutPointTask
from ps2.algorithms.trees.layout import Array
from ps2.algorithms.trees.local_vectors import LocalDense, LocalSparse
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.rows import dense_of, is_dense
from ps2.array_types import Int64s
from ps2.client.dcv import DCV
from ps2.client.handle import free_all
from ps2.data.rows import LocalRows
from ps2.ops.guards import readable

# The number of turns.
TURNS = 6
# A key has two parts: a feature and the upper half of a value's bits; the number of such a key and the lower half; or a
# feature and the number of a cell.
FEATURE_BITS = 32
HALF_BITS = np.uint64(32)
LOW = (1 << FEATURE_BITS) - 1
# The number of features whose cells are handled together; each has 4,096 in the first turn.
CHUNK = 256
# The maximum bytes of cells that are cached between turns; other cells are computed again.
MAX_CACHE_BYTES = 1 << 28
# The number of bits of the mean weight as an integer; and a number that is added to the integer weight of each row.
WEIGHT_BITS = 8
ROW_COUNT = 1 << WEIGHT_BITS

# A vector to which workers add: on the servers, or in the process of the only worker.
SumsVector = DCV | LocalDense | LocalSparse
# Functions that make a dense vector, by dimension and dtype, and a sparse vector, by dimension.
Vectors = tuple[Callable[[int, str], SumsVector], Callable[[int], SumsVector]]


@dataclass(frozen=True, eq=False)
class Quantiles:
    """Sums of all workers, from which cut points are made; picklable.

    Attributes:
        problem: the features are described there.
        bins: the maximum number of bins of a numeric feature, without the bin of missing values.
        weight_unit: the weight that 1 of an integer weight stands for; 0: each row counts 1.
        min_rows: a feature gets cut points if at least this many rows store it.
        stored: the number of rows that store each feature, int64.
        total: the weight of all rows, int64, shape (1,).
        missing: the weight of each feature's stored missing values, int64.
        many: above 0 for a feature with more values than bins, int32.
        values: the weights by feature and upper half, sparse, int64.
        numbers: the number, from 1 on, of each key of ``values`` that several values share, sparse, int64.
        lows: the weights of these values by number and lower half, sparse, int64.
        turns: for each turn, the weights by feature and cell, sparse, int64.
        heavy: the number of features whose cells the next turn cuts, int64, shape (1,).
        _cached: for groups of features, the cells after a number of turns. A repeated turn adds the same sums.
    """

    problem: TreeProblem
    bins: int
    weight_unit: float
    min_rows: int
    stored: SumsVector
    total: SumsVector
    missing: SumsVector
    many: SumsVector
    values: SumsVector
    numbers: SumsVector
    lows: SumsVector
    turns: tuple[SumsVector, ...]
    heavy: SumsVector
    _cached: dict[bytes, tuple[int, Cells]] = field(default_factory=dict)

    @staticmethod
    def make(
        problem: TreeProblem, bins: int, mean_weight: float | None, names: CheckpointNames = UNNAMED, min_rows: int = 0
    ) -> Quantiles:
        """Make zero sums, or find those of a resumed training; mean_weight None: all weights are 1."""

        def dense(dim: int, dtype: str) -> DCV:
            return names.vector(lambda name: DCV.dense(dim, 1, dtype, name=name))

        def sparse(dim: int) -> DCV:
            return names.vector(lambda name: DCV.sparse(dim, 1, "int64", name=name))

        return Quantiles._of(problem, bins, mean_weight, min_rows, (dense, sparse))

    @staticmethod
    def in_process(problem: TreeProblem, bins: int, mean_weight: float | None, min_rows: int = 0) -> Quantiles:
        """Make zero sums in this process, for a worker that has all rows; see ``make``."""
        return Quantiles._of(problem, bins, mean_weight, min_rows, (LocalDense, lambda _: LocalSparse()))

    @staticmethod
    def _of(problem: TreeProblem, bins: int, mean_weight: float | None, min_rows: int, vectors: Vectors) -> Quantiles:
        """Make the vectors; their names in checkpoints follow from the order of these calls."""
        dim, (dense, sparse), keys = problem.dim, vectors, problem.dim << FEATURE_BITS
        unit = 0.0 if mean_weight is None else unit_of(mean_weight, WEIGHT_BITS)
        by_feature = dense(dim, "int64"), dense(1, "int64"), dense(dim, "int64"), dense(dim, "int32")
        by_key = sparse(keys), sparse(keys), sparse(2**63), tuple(sparse(keys) for _ in range(TURNS))
        return Quantiles(problem, bins, unit, min_rows, *by_feature, *by_key, dense(1, "int64"))

    def free(self) -> None:
        free_all([vector for vector in (*vars(self).values(), *self.turns) if isinstance(vector, DCV)])

    # -- workers ---------------------------------------------------------------------------------------------------

    def find_bins(self, rows: LocalRows) -> tuple[Bins, FeatureColumns | None]:
        """Find the bins where this process has all rows; return them, and the columns of dense rows."""
        self.count(rows)
        used = self.common(rows)
        by_feature = RowsByFeature.of(self, used)
        by_feature.add_total()
        few = by_feature.numeric
        stored = np.bincount(few.features, few.weights, self.problem.dim).astype(np.int64)
        absent = self._zeros(np.arange(self.problem.dim), stored)
        self.many.add(np.ones(len(few.many), np.int32), few.many)
        many = self._set_many(few, absent)
        for turn in range(TURNS):
            by_feature.add_cells(turn)
            if turn < TURNS - 1:
                self.find_heavy(turn + 1)
        return self._cut(few.without(many, len(few.features)), absent), by_feature.dense_columns(rows, used)

    def count(self, rows: LocalRows) -> None:
        """Count the rows that store each feature, and add the weight of missing values, also of rare features."""
        stored = np.zeros(len(rows.keys), np.int64)
        has_missing = count_values(readable(rows.x.indices), readable(rows.x.data), stored)
        self.stored.add(stored, rows.keys)
        if has_missing:
            RowsByFeature.of(self, rows).add_missing()

    def common(self, rows: LocalRows) -> LocalRows:
        """Return the rows without the features that are too rare."""
        common = np.flatnonzero(self.stored.pull(rows.keys) >= self.min_rows)
        if len(common) == len(rows.keys):
            return rows
        return LocalRows(rows.keys[common], rows.x[:, common], rows.y, rows.weights)

    # -- the driver ------------------------------------------------------------------------------------------------

    def find_cut_points(self, ask: Ask) -> Steps[None]:
        """Let the workers add the sums that ``cut`` needs, clock by clock."""
        yield CountRows()
        yield AddValues()
        ask(self.number_values)
        yield AddLowerHalves()
        ask(self.find_many)
        for turn in range(TURNS):
            yield AddCells(turn)
            if turn + 1 < TURNS:
                ask(partial(self.find_heavy, turn + 1))

    def number_values(self) -> None:
        """Number the keys that several values share, except those of features with many values."""
        many = self._set_many(*self._values(np.empty(0, np.int64)))
        keys, _ = self.numbers.pull()
        few = ~are_in(keys >> FEATURE_BITS, many, self.problem.dim)
        if len(keys):
            self.numbers.push(np.where(few, np.cumsum(few), 0), keys)

    def find_many(self) -> None:
        """Find the features that have more values than bins."""
        self._set_many(*self._values(np.empty(0, np.int64)))

    def _set_many(self, values: Distinct, absent: Int64s) -> Int64s:
        """Mark the features with more values than bins, and return them; for the args, see ``value_counts``."""
        many = np.flatnonzero((self.many.pull() > 0) | (value_counts(values, absent) > self.bins))
        self.many.zero()
        if len(many):
            self.many.push(np.ones(len(many), np.int32), many)
        return many

    def find_heavy(self, turn: int) -> None:
        """Count the features whose cells the next turn cuts; turn: the number of turns so far."""
        many = np.flatnonzero(self.many.pull())
        if turn == 1 and len(many) and self.problem.absent == "zero":
            # Rows that do not store a feature count in the cell of zeros.
            keys, weights = self.turns[0].pull()
            absent = self._zeros(many, _sums_of(keys, weights, many))
            self.turns[0].add(absent, (many << FEATURE_BITS) + (int(ZERO) >> (BITS - COARSE_BITS)))
        heavy = 0
        if len(many) and (turn == 1 or self.heavy.pull()[0]):
            for _, cells in self._cells(many, turn):
                heavy += int((np.diff(Refinement.of(cells, self.bins, turn).cell_begin) > 0).sum())
        self.heavy.push(np.array([heavy]))

    def cut(self) -> Bins:
        """Return the bins, after the last turn."""
        return self._cut(*self._values(np.flatnonzero(self.many.pull())))

    def _cut(self, few: Distinct, absent: Int64s) -> Bins:
        """Return the bins; for the args, see ``cuts_of_few``."""
        many = np.flatnonzero(self.many.pull())
        value_cuts, begins = cuts_of_few(few, absent)
        categories, category_features = categories_of(self.problem)
        cuts = [value_cuts, categories]
        features = [np.repeat(np.arange(self.problem.dim), np.diff(begins)), category_features]
        for chunk, cells in self._cells(many, TURNS):
            cell_cuts, sizes = cuts_of_many(cells, self.bins)
            cuts.append(cell_cuts)
            features.append(np.repeat(chunk, sizes))
        feature = np.concatenate(features)
        offsets = np.append(0, np.cumsum(np.bincount(feature, minlength=self.problem.dim)))
        missing = (self.missing.pull() > 0) | (self.problem.absent == "missing")
        return bins_of(self.problem, np.concatenate(cuts)[np.argsort(feature, kind="stable")], offsets, missing)

    def _zeros(self, features: Int64s, stored: Int64s) -> Int64s:
        """Return the weight of each feature's zeros that rows do not store; stored: the weight of the stored values."""
        if self.problem.absent == "missing":
            return np.zeros(len(features), np.int64)
        return self.total.pull()[0] - self.missing.pull()[features] - stored

    def _values(self, many: Int64s) -> tuple[Distinct, Int64s]:
        """Return the values of all features except ``many``, and the weight of zeros that rows do not store."""
        keys, weights = self.values.pull()
        stored = np.bincount(keys >> FEATURE_BITS, weights, self.problem.dim).astype(np.int64)
        absent = self._zeros(np.arange(self.problem.dim), stored)
        bits = (keys & LOW).astype(np.uint64) << HALF_BITS
        features, low_keys = keys >> FEATURE_BITS, self.lows.pull()
        if len(low_keys[0]):
            # Numbered keys are replaced by the values that share them.
            numbered, numbers = self.numbers.pull()
            numbered = numbered[numbers > 0]  # in the order of their numbers
            is_single = np.ones(len(keys), np.bool_)
            is_single[np.searchsorted(keys, numbered)] = False
            upper = numbered[(low_keys[0] >> FEATURE_BITS) - 1]
            lows = (upper & LOW).astype(np.uint64) << HALF_BITS | (low_keys[0] & LOW).astype(np.uint64)
            features = np.concatenate([features[is_single], upper >> FEATURE_BITS])
            bits = np.concatenate([bits[is_single], lows])
            weights = np.concatenate([weights[is_single], low_keys[1]])
            order = np.lexsort((bits, features))
            features, bits, weights = features[order], bits[order], weights[order]
        return Distinct(features, bits, weights, many).without(many, len(keys) + len(low_keys[0])), absent

    def _cells(self, many: Int64s, turns: int) -> Iterator[tuple[Int64s, Cells]]:
        """Yield chunks of features, and their cells after a number of turns."""
        pulled: dict[int, tuple[Int64s, Int64s]] = {}
        for begin in range(0, len(many), CHUNK):
            chunk = many[begin : begin + CHUNK]
            name = chunk.tobytes()
            first, cells = self._cached.get(name, (0, Cells.whole(len(chunk))))
            if first > turns:
                first, cells = 0, Cells.whole(len(chunk))
            for turn in range(first, turns):
                if turn not in pulled:
                    pulled[turn] = self.turns[turn].pull()
                keys, weights = pulled[turn]
                refinement = Refinement.of(cells, self.bins, turn)
                span = _span_of(keys, chunk)
                index = np.searchsorted(chunk, keys[span] >> FEATURE_BITS)
                children_of_cells = refinement.begin[index] + (keys[span] & LOW)
                cells = cells.refine(refinement, children_of_cells, weights[span])
            self._cache(name, turns, cells)
            yield chunk, cells

    def forget_cells(self) -> None:
        """Clear the cache: the sums of earlier turns may have been read while the fleet rolled back."""
        self._cached.clear()

    def _cache(self, name: bytes, turns: int, cells: Cells) -> None:
        """Cache the cells of a chunk after a number of turns, if there is memory for them."""
        self._cached.pop(name, None)
        if cells.nbytes + sum(cached.nbytes for _, cached in self._cached.values()) <= MAX_CACHE_BYTES:
            self._cached[name] = turns, cells


@dataclass(frozen=True, eq=False)
class RowsByFeature:
    """A worker's rows by feature; features: the feature of each column; weights: integers; empty: each row counts 1."""

    sums: Quantiles
    columns: FeatureColumns
    features: Int64s
    weights: Int64s

    @staticmethod
    def of(sums: Quantiles, rows: LocalRows) -> RowsByFeature:
        weights = np.empty(0, np.int64)
        if sums.weight_unit and rows.weights is not None:
            # Without ROW_COUNT, there would be no cut between rows of small weights.
            weights = ROW_COUNT + whole(rows.weights, sums.weight_unit)
        dim = sums.problem.dim
        if is_dense(rows.x, dim):
            x = dense_of(rows, dim, sums.problem.absent)
            return RowsByFeature(sums, FeatureColumns.of_dense(x), np.arange(dim), readable(weights))
        return RowsByFeature(sums, FeatureColumns.of_sparse(rows.x), rows.keys, readable(weights))

    def add_missing(self) -> None:
        missing_weights = cut_points.missing(self.columns, self.weights)
        filled = np.flatnonzero(missing_weights)
        self.sums.missing.add(missing_weights[filled], self.features[filled])

    def do(self, task: CutPointTask) -> None:
        """Do a task, except ``CountRows``."""
        if isinstance(task, AddCells):
            self.add_cells(task.turn)
        elif isinstance(task, AddValues):
            self._add_values()
        else:
            self._add_lows()

    def dense_columns(self, rows: LocalRows, used: LocalRows) -> FeatureColumns | None:
        """Return the columns if they are dense and have all features of the rows; used: the rows in the columns."""
        return self.columns if used is rows and self.columns.dense else None

    @cached_property
    def numeric(self) -> Distinct:
        """The values of numeric features that have few values in these rows; features have their global numbers."""
        values = distinct(self.columns, self.sums.bins, self.weights)
        categories = np.array(list(self.sums.problem.categories), np.int64)
        dim = self.sums.problem.dim
        is_numeric = ~are_in(self.features[values.features], categories, dim)
        many = self.features[values.many]
        numbers = self.features[values.features[is_numeric]]
        return Distinct(
            numbers, values.bits[is_numeric], values.weights[is_numeric], many[~are_in(many, categories, dim)]
        )

    def add_total(self) -> None:
        """Add the weight of all rows."""
        weight = self.weights.sum() if len(self.weights) else self.columns.count
        self.sums.total.add(np.array([weight], np.int64))

    def _add_values(self) -> None:
        sums, numeric = self.sums, self.numeric
        self.add_total()
        if len(numeric.many):
            sums.many.add(np.ones(len(numeric.many), np.int32), numeric.many)
        keys = _keys(numeric.features, numeric.bits >> HALF_BITS)
        sums.values.add(numeric.weights, keys)
        halves = distinct_of(keys[numeric.bits & np.uint64(LOW) != 0])
        sums.numbers.add(np.ones(len(halves), np.int64), halves)

    def _add_lows(self) -> None:
        numeric, many = self.numeric, np.flatnonzero(self.sums.many.pull())
        few = ~are_in(numeric.features, many, self.sums.problem.dim)
        each = _keys(numeric.features[few], numeric.bits[few] >> HALF_BITS)
        begins = runs(each)
        keys, key_index = each[begins], np.repeat(np.arange(len(begins)), np.diff(begins, append=len(each)))
        numbers = self.sums.numbers.pull(keys)[key_index]
        is_numbered = numbers > 0
        lows = _keys(numbers[is_numbered], numeric.bits[few][is_numbered] & np.uint64(LOW))
        self.sums.lows.add(numeric.weights[few][is_numbered], lows)

    def add_cells(self, turn: int) -> None:
        if turn and not self.sums.heavy.pull()[0]:
            return
        many = self.features[self.sums.many.pull(self.features) > 0]
        for features, cells in self.sums._cells(many, turn):
            refinement = Refinement.of(cells, self.sums.bins, turn)
            local_features = np.searchsorted(self.features, features)
            sums = children(self.columns, local_features, cells, refinement, self.weights)
            filled = np.flatnonzero(sums)
            parent = np.searchsorted(refinement.begin, filled, side="right") - 1
            self.sums.turns[turn].add(sums[filled], _keys(features[parent], filled - refinement.begin[parent]))


def _keys(high: Int64s, low: Array) -> Int64s:
    return (high << FEATURE_BITS) | low.astype(np.int64)


def _span_of(keys: Int64s, features: Int64s) -> slice:
    """Return the slice of sorted keys from the first to the last of some ascending features."""
    begin, end = np.searchsorted(keys, (features[0] << FEATURE_BITS, (features[-1] + 1) << FEATURE_BITS))
    return slice(int(begin), int(end))


def _sums_of(keys: Int64s, weights: Int64s, features: Int64s) -> Int64s:
    """Return the weight of each feature; keys: sorted; features: ascending."""
    ends = np.append(0, np.cumsum(weights))
    begin, end = (np.searchsorted(keys, (features + more) << FEATURE_BITS) for more in (0, 1))
    return ends[end] - ends[begin]
