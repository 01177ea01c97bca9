"""The first clocks of a training of trees: cut points of features.

Workers add weights to the servers as whole numbers. Features with categories need no cut points: the categories are
their bins.

In clock 0 workers count the rows that hold each feature. A feature that is too rare to part a node gets no cut points.
In clock 1 workers add the values of features that have few, by the upper half of their bits, and in clock 2, where
needed, by the lower half. From clock 3 on they add the other features' weights by cells. Each clock cuts the cells that
were too heavy; after the last one, no cell holds two heavy values. The driver only looks at sums, so cut points do not
depend on how rows lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from ps2.algorithms.frame.program import Ask, Steps
from ps2.algorithms.training.checkpoint_names import UNNAMED, CheckpointNames
from ps2.algorithms.trees import feature_columns
from ps2.algorithms.trees.ascending import are_in, distinct_of, runs
from ps2.algorithms.trees.binning import Bins, bins_of, categories_of
from ps2.algorithms.trees.binning_kernels import count_values
from ps2.algorithms.trees.cut_points import (
    BITS,
    COARSE_BITS,
    Cells,
    Refinement,
    children,
    cuts_of_few,
    cuts_of_many,
    unit_of,
    value_counts,
    whole,
)
from ps2.algorithms.trees.driver_messages import AddCells, AddLowerHalves, AddValues, CountRows, CutPointTask
from ps2.algorithms.trees.feature_columns import ZERO, Distinct, FeatureColumns, distinct
from ps2.algorithms.trees.layout import Array
from ps2.algorithms.trees.local_vectors import LocalDense, LocalSparse, SumsVector
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.rows import dense_of, is_dense
from ps2.array_types import Int64s
from ps2.client.dcv import DCV
from ps2.client.handle import free_all
from ps2.data.rows import LocalRows
from ps2.ops.guards import readable

# Turns of cutting cells.
TURNS = 6
# A key is a feature and the upper half of a value's bits, the number of such a key and the lower half, or a feature and
# a cell's number.
FEATURE_BITS = 32
HALF_BITS = np.uint64(32)
LOW = (1 << FEATURE_BITS) - 1
# Features whose cells are looked at together: 4,096 in the first turn each.
CHUNK = 256
# The maximum bytes of cells that are cached from turn to turn; others are computed again.
MAX_CACHE_BYTES = 1 << 28
# Bits of the mean weight as a whole number; and the count of each row beside its weight.
WEIGHT_BITS = 8
ROW_COUNT = 1 << WEIGHT_BITS

# The functions that make a dense vector of a dimension and a dtype, and a sparse one of a dimension.
Vectors = tuple[Callable[[int, str], SumsVector], Callable[[int], SumsVector]]


@dataclass(frozen=True, eq=False)
class Quantiles:
    """Sums that workers add to; picklable.

    Attributes:
        problem: the problem, which describes the features.
        bins: the maximum number of bins of a numeric feature, without the bin of missing values.
        weight_unit: the whole number for a weight of 1; 0: each row counts 1.
        min_rows: a feature gets cut points if at least this many rows hold it.
        held: int64, a column for each feature: the number of rows that hold it.
        total: int64, one column: the weight of all rows.
        missing: int64, a column for each feature: the weight of its missing values that rows store.
        many: int32, a column for each feature: above 0 if it has more values than bins.
        values: sparse, int64, the weights by feature and upper half.
        numbers: sparse, int64, the number, from 1 on, of each such key that several values share.
        lows: sparse, int64, the weights of these values by number and lower half.
        turns: for each turn: sparse, int64, the weights by feature and cell.
        heavy: int64, one column: the number of features whose cells the next turn cuts.
        _cached: for some features, the cells after a number of turns; a turn adds the same sums when it is repeated.
    """

    problem: TreeProblem
    bins: int
    weight_unit: float
    min_rows: int
    held: SumsVector
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
        """Make zero sums, or find those of a training that resumes; mean_weight None: all weights are 1."""

        def dense(dim: int, dtype: str) -> DCV:
            return names.give(lambda name: DCV.dense(dim, 1, dtype, name=name))

        def sparse(dim: int) -> DCV:
            return names.give(lambda name: DCV.sparse(dim, 1, "int64", name=name))

        return Quantiles._of(problem, bins, mean_weight, min_rows, (dense, sparse))

    @staticmethod
    def in_process(problem: TreeProblem, bins: int, mean_weight: float | None, min_rows: int = 0) -> Quantiles:
        """Make zero sums in this process, for a worker that has all rows; for the args, see ``make``."""
        return Quantiles._of(problem, bins, mean_weight, min_rows, (LocalDense, lambda _: LocalSparse()))

    @staticmethod
    def _of(problem: TreeProblem, bins: int, mean_weight: float | None, min_rows: int, vectors: Vectors) -> Quantiles:
        """Make the vectors, whose order gives them their names in a checkpoint."""
        dim, (dense, sparse), keys = problem.dim, vectors, problem.dim << FEATURE_BITS
        unit = 0.0 if mean_weight is None else unit_of(mean_weight, WEIGHT_BITS)
        by_feature = dense(dim, "int64"), dense(1, "int64"), dense(dim, "int64"), dense(dim, "int32")
        by_key = sparse(keys), sparse(keys), sparse(2**63), tuple(sparse(keys) for _ in range(TURNS))
        return Quantiles(problem, bins, unit, min_rows, *by_feature, *by_key, dense(1, "int64"))

    def free(self) -> None:
        dense = [self.held, self.total, self.missing, self.many, self.heavy]
        every = [*dense, self.values, self.numbers, self.lows, *self.turns]
        free_all([vector for vector in every if isinstance(vector, DCV)])

    # -- workers ---------------------------------------------------------------------------------------------------

    def find_bins(self, rows: LocalRows) -> tuple[Bins, FeatureColumns | None]:
        """Return the bins of all rows, which this process has, and the columns of dense rows, in one pass."""
        self.count(rows)
        used = self.common(rows)
        part = RowsByFeature.of(self, used)
        part.add_total()
        few = part.numeric
        held = np.bincount(few.features, few.weights, self.problem.dim).astype(np.int64)
        absent = self._zeros(np.arange(self.problem.dim), held)
        self.many.add(np.ones(len(few.many), np.int32), few.many)
        many = self._set_many(few, absent)
        for turn in range(TURNS):
            part.add_cells(turn)
            if turn < TURNS - 1:
                self.find_heavy(turn + 1)
        return self._cut(few.without(many, len(few.features)), absent), part.dense_columns(rows, used)

    def count(self, rows: LocalRows) -> None:
        """Add the number of rows with each feature, and the weight of missing values, which have a bin even if rare."""
        held = np.zeros(len(rows.keys), np.int64)
        is_lacking = count_values(readable(rows.x.indices), readable(rows.x.data), held)
        self.held.add(held, rows.keys)
        if is_lacking:
            RowsByFeature.of(self, rows).add_missing()

    def common(self, rows: LocalRows) -> LocalRows:
        """Return rows without the features that are too rare."""
        common = np.flatnonzero(self.held.pull(rows.keys) >= self.min_rows)
        if len(common) == len(rows.keys):
            return rows
        return LocalRows(rows.keys[common], rows.x[:, common], rows.y, rows.weights)

    # -- the driver ------------------------------------------------------------------------------------------------

    def find_cut_points(self, ask: Ask) -> Steps[None]:
        """Let the workers add the sums for ``cut``, clock by clock."""
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
        """Number the values whose lower halves workers add next."""
        self._number(self._set_many(*self._values(np.empty(0, np.int64))))

    def find_many(self) -> None:
        """Find the features that have more values than bins, by the sums so far."""
        self._set_many(*self._values(np.empty(0, np.int64)))

    def _set_many(self, values: Distinct, absent: Int64s) -> Int64s:
        """Mark and return the features that have more values than bins; for the args, see ``value_counts``."""
        many = np.flatnonzero((self.many.pull() > 0) | (value_counts(values, absent) > self.bins))
        self.many.zero()
        if len(many):
            self.many.push(np.ones(len(many), np.int32), many)
        return many

    def _number(self, many: Int64s) -> None:
        """Number the keys that several values share, except those of features with many values."""
        keys, _ = self.numbers.pull()
        few = ~are_in(keys >> FEATURE_BITS, many, self.problem.dim)
        if len(keys):
            self.numbers.push(np.where(few, np.cumsum(few), 0), keys)

    def find_heavy(self, turn: int) -> None:
        """Count the features whose cells the next turn cuts; turn: the number of turns so far."""
        many = np.flatnonzero(self.many.pull())
        if turn == 1 and len(many) and self.problem.absent == "zero":
            # Rows that do not hold a feature are in the cell of zeros.
            keys, weights = self.turns[0].pull()
            absent = self._zeros(many, _sums_of(keys, weights, many))
            self.turns[0].add(absent, (many << FEATURE_BITS) + (int(ZERO) >> (BITS - COARSE_BITS)))
        heavy = 0
        if len(many) and (turn == 1 or self.heavy.pull()[0]):
            for _, cells in self._cells(many, turn):
                heavy += int((np.diff(Refinement.of(cells, self.bins, turn).cell_begin) > 0).sum())
        self.heavy.push(np.array([heavy]))

    def cut(self) -> Bins:
        """After the last clock: return the bins."""
        return self._cut(*self._values(np.flatnonzero(self.many.pull())))

    def _cut(self, few: Distinct, absent: Int64s) -> Bins:
        """Return the bins; for the args, see ``cuts_of_few``."""
        many = np.flatnonzero(self.many.pull())
        value_cuts, begins = cuts_of_few(few, absent)
        categories, category_features = categories_of(self.problem)
        cuts = [value_cuts, categories]
        features = [np.repeat(np.arange(self.problem.dim), np.diff(begins)), category_features]
        for some, cells in self._cells(many, TURNS):
            cell_cuts, sizes = cuts_of_many(cells, self.bins)
            cuts.append(cell_cuts)
            features.append(np.repeat(some, sizes))
        feature = np.concatenate(features)
        offsets = np.append(0, np.cumsum(np.bincount(feature, minlength=self.problem.dim)))
        missing = (self.missing.pull() > 0) | (self.problem.absent == "missing")
        return bins_of(self.problem, np.concatenate(cuts)[np.argsort(feature, kind="stable")], offsets, missing)

    def _zeros(self, features: Int64s, held: Int64s) -> Int64s:
        """Return the weight of features' zeros that rows do not store; held: the weight of the stored values."""
        if self.problem.absent == "missing":
            return np.zeros(len(features), np.int64)
        return self.total.pull()[0] - self.missing.pull()[features] - held

    def _values(self, many: Int64s) -> tuple[Distinct, Int64s]:
        """Return the values of all features but ``many``, and the weight of zeros that rows do not store."""
        keys, weights = self.values.pull()
        every = np.arange(self.problem.dim)
        held = np.bincount(keys >> FEATURE_BITS, weights, self.problem.dim).astype(np.int64)
        absent = self._zeros(every, held)
        bits = (keys & LOW).astype(np.uint64) << HALF_BITS
        features, low_keys = keys >> FEATURE_BITS, self.lows.pull()
        if len(low_keys[0]):
            # Numbered keys are replaced by the values that share them.
            numbered, numbers = self.numbers.pull()
            numbered = numbered[numbers > 0]  # in this order
            known = np.ones(len(keys), np.bool_)
            known[np.searchsorted(keys, numbered)] = False
            upper = numbered[(low_keys[0] >> FEATURE_BITS) - 1]
            lows = (upper & LOW).astype(np.uint64) << HALF_BITS | (low_keys[0] & LOW).astype(np.uint64)
            features = np.concatenate([features[known], upper >> FEATURE_BITS])
            bits = np.concatenate([bits[known], lows])
            weights = np.concatenate([weights[known], low_keys[1]])
            order = np.lexsort((bits, features))
            features, bits, weights = features[order], bits[order], weights[order]
        return Distinct(features, bits, weights, many).without(many, len(keys) + len(low_keys[0])), absent

    def _cells(self, many: Int64s, turns: int) -> Iterator[tuple[Int64s, Cells]]:
        """Yield some features at a time, and their cells after a number of turns."""
        pulled: dict[int, tuple[Int64s, Int64s]] = {}
        for begin in range(0, len(many), CHUNK):
            some = many[begin : begin + CHUNK]
            name = some.tobytes()
            first, cells = self._cached.get(name, (0, Cells.whole(len(some))))
            if first > turns:
                first, cells = 0, Cells.whole(len(some))
            for turn in range(first, turns):
                if turn not in pulled:
                    pulled[turn] = self.turns[turn].pull()
                keys, weights = pulled[turn]
                refinement = Refinement.of(cells, self.bins, turn)
                span = _span_of(keys, some)
                index = np.searchsorted(some, keys[span] >> FEATURE_BITS)
                children_of_cells = refinement.begin[index] + (keys[span] & LOW)
                cells = cells.refine(refinement, children_of_cells, weights[span])
            self._cache(name, turns, cells)
            yield some, cells

    def forget_cells(self) -> None:
        """Forget the cells of earlier turns: their sums may have been read as the fleet went back."""
        self._cached.clear()

    def _cache(self, name: bytes, turns: int, cells: Cells) -> None:
        """Cache the cells of some features after a number of turns, if there is memory for them."""
        self._cached.pop(name, None)
        if cells.nbytes + sum(cached.nbytes for _, cached in self._cached.values()) <= MAX_CACHE_BYTES:
            self._cached[name] = turns, cells


@dataclass(frozen=True, eq=False)
class RowsByFeature:
    """A worker's rows by feature; features: the number of each of the columns; weights: whole numbers, or empty."""

    sums: Quantiles
    columns: FeatureColumns
    features: Int64s
    weights: Int64s

    @staticmethod
    def of(sums: Quantiles, rows: LocalRows) -> RowsByFeature:
        weights = np.empty(0, np.int64)
        if sums.weight_unit and rows.weights is not None:
            # Else rows that weigh little beside others would have no cut among them.
            weights = ROW_COUNT + whole(rows.weights, sums.weight_unit)
        dim = sums.problem.dim
        if is_dense(rows.x, dim):
            x = dense_of(rows, dim, sums.problem.absent)
            return RowsByFeature(sums, FeatureColumns.of_dense(x), np.arange(dim), readable(weights))
        return RowsByFeature(sums, FeatureColumns.of_sparse(rows.x), rows.keys, readable(weights))

    def add_missing(self) -> None:
        lacking = feature_columns.missing(self.columns, self.weights)
        some = np.flatnonzero(lacking)
        self.sums.missing.add(lacking[some], self.features[some])

    def do(self, task: CutPointTask) -> None:
        """Do a task after the first."""
        if isinstance(task, AddCells):
            self.add_cells(task.turn)
        elif isinstance(task, AddValues):
            self._add_values()
        else:
            self._add_lows()

    def dense_columns(self, rows: LocalRows, used: LocalRows) -> FeatureColumns | None:
        """Return the columns if they are dense and have all features of the rows; used: the rows of the columns."""
        return self.columns if used is rows and self.columns.dense else None

    @cached_property
    def numeric(self) -> Distinct:
        """The values of numeric features with few values in these rows; features are numbered as in all workers."""
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
    """Return the slice of sorted keys that has those of some ascending features; no features between them have keys."""
    begin, end = np.searchsorted(keys, (features[0] << FEATURE_BITS, (features[-1] + 1) << FEATURE_BITS))
    return slice(int(begin), int(end))


def _sums_of(keys: Int64s, weights: Int64s, features: Int64s) -> Int64s:
    """Return the weight of each of some ascending features in sorted keys."""
    ends = np.append(0, np.cumsum(weights))
    begin, end = (np.searchsorted(keys, (features + more) << FEATURE_BITS) for more in (0, 1))
    return ends[end] - ends[begin]
