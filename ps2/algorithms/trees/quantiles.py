"""The first clocks of a training of trees, which find the cut points of features.

Workers add integer weights to sums on the servers. Categorical features need no cut points: each category is a bin. If
a feature has too many categories, workers add the weight of each in clock 1, and the heaviest become bins.

In clock 0, workers count the rows that store each feature. A feature that too few rows store to split a node gets no
cut points. In clocks 1 and 2, workers add the weights of the distinct values of features that have few: in clock 1 by
the upper half of the values' bits, and in clock 2, for values that share their upper half, by the lower half. The later
clocks, called turns, add the weights of the other features by cells. Each turn divides the cells that are too heavy.
After the last turn, a heavy cell contains one value. The driver only reads sums, so cut points do not depend on the
order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from ps2.algorithms.frame.program import Ask, Steps
from ps2.algorithms.training.checkpoint_names import UNNAMED, CheckpointNames
from ps2.algorithms.trees import cut_points
from ps2.algorithms.trees.ascending import is_member, run_starts, unique_sorted
from ps2.algorithms.trees.binning import Bins, bins_of, categories_of
from ps2.algorithms.trees.binning_kernels import count_values
from ps2.algorithms.trees.cut_points import (
    BITS,
    COARSE_BITS,
    FEATURE_BITS,
    ZERO,
    Cells,
    DistinctValues,
    FeatureColumns,
    Refinement,
    child_weights,
    cuts_between_values,
    cuts_of_cells,
    feature_span,
    feature_sums,
    frequent_categories,
    from_bits,
    make_keys,
    sum_values,
    unit_of,
    value_counts,
    value_weights,
)
from ps2.algorithms.trees.driver_messages import AddCells, AddLowerHalves, AddValues, CountRows, CutPointTask
from ps2.algorithms.trees.layout import MAX_CATEGORIES
from ps2.algorithms.trees.local_vectors import LocalDense, LocalSparse
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.row_blocks import WEIGHT_BITS, ColumnBlocks
from ps2.array_types import Float64s, Int64s
from ps2.client.dcv import DCV
from ps2.client.handle import free_all
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows, SpilledRows
from ps2.ops.guards import readable

# The number of turns.
TURNS = 6
# A key has two parts of 32 bits: a feature and the upper half of a value's bits; the number of such a key and the lower
# half; or a feature and the index of a cell among the feature's child cells.
HALF_BITS = np.uint64(32)
LOW_MASK = (1 << FEATURE_BITS) - 1
# The number of features whose cells are handled together; each may have some 10,000, and temporary arrays of them.
CHUNK = 16
# The maximum bytes of cells that are cached between turns; cells that are not cached are computed again.
MAX_CACHE_BYTES = 1 << 28
# The number of child cells whose weights one pass over rows in a file sums.
MAX_CHILDREN = 1 << 23

# A vector to which workers add: on the servers, or in the process of the only worker.
SumsVector = DCV | LocalDense | LocalSparse
# Functions that make a dense vector, by dimension and dtype, and a sparse vector, by dimension.
Vectors = tuple[Callable[[int, str], SumsVector], Callable[[int], SumsVector]]


@dataclass(frozen=True, eq=False)
class Quantiles:
    """Sums of all workers, from which cut points are made; picklable.

    Attributes:
        max_bins: the maximum number of bins of a numeric feature, without the bin of missing values.
        weight_unit: the weight that 1 in an integer weight stands for; 0: each row counts 1.
        min_rows: a feature gets cut points if at least this many rows store it.
        stored_rows: the number of rows that store each feature, int64.
        total_weight: the weight of all rows, int64, shape (1,).
        missing_weights: the weight of each feature's stored missing values, int64.
        many_valued: above 0 for a feature with more distinct values than bins, int32.
        upper_halves: the weights by feature and upper half of the value's bits, sparse, int64.
        half_numbers: the number, from 1 on, of each key of ``upper_halves`` that several values share, sparse, int64.
        lower_halves: the weights of these values by this number and lower half, sparse, int64.
        cell_weights: for each turn, the weights by feature and cell, sparse, int64.
        num_heavy: the number of features whose cells the next turn cuts, int64, shape (1,).
        category_weights: the weights by feature and stored category, of ``TreeProblem.folded``, sparse, int64.
        _cached: by chunk of features: a number of turns, and the cells after them, which are the same if a turn is
            repeated.
    """

    problem: TreeProblem
    max_bins: int
    weight_unit: float
    min_rows: int
    stored_rows: SumsVector
    total_weight: SumsVector
    missing_weights: SumsVector
    many_valued: SumsVector
    upper_halves: SumsVector
    half_numbers: SumsVector
    lower_halves: SumsVector
    cell_weights: tuple[SumsVector, ...]
    num_heavy: SumsVector
    category_weights: SumsVector
    _cached: dict[bytes, tuple[int, Cells]] = field(default_factory=dict)

    @staticmethod
    def make(
        problem: TreeProblem, bins: int, mean_weight: float | None, names: CheckpointNames = UNNAMED, min_rows: int = 0
    ) -> Quantiles:
        """Make vectors of zeros, or find those of a resumed training; mean_weight None: all weights are 1."""

        def dense(dim: int, dtype: str) -> DCV:
            return names.vector(lambda name: DCV.dense(dim, 1, dtype, name=name))

        def sparse(dim: int) -> DCV:
            return names.vector(lambda name: DCV.sparse(dim, 1, "int64", name=name))

        return Quantiles._make(problem, bins, mean_weight, min_rows, (dense, sparse))

    @staticmethod
    def in_process(problem: TreeProblem, bins: int, mean_weight: float | None, min_rows: int = 0) -> Quantiles:
        """Make vectors of zeros in this process, for a worker that has all rows; see ``make``."""
        return Quantiles._make(problem, bins, mean_weight, min_rows, (LocalDense, lambda _: LocalSparse()))

    @staticmethod
    def _make(problem: TreeProblem, bins: int, mean_weight: float | None, min_rows: int, vectors: Vectors) -> Quantiles:
        """Make the vectors; their names in checkpoints follow from the order of these calls."""
        dim, (dense, sparse), keys = problem.dim, vectors, problem.dim << FEATURE_BITS
        unit = 0.0 if mean_weight is None else unit_of(mean_weight, WEIGHT_BITS)
        by_feature = dense(dim, "int64"), dense(1, "int64"), dense(dim, "int64"), dense(dim, "int32")
        by_key = sparse(keys), sparse(keys), sparse(2**63), tuple(sparse(keys) for _ in range(TURNS))
        return Quantiles(problem, bins, unit, min_rows, *by_feature, *by_key, dense(1, "int64"), sparse(keys))

    def free(self) -> None:
        free_all([vector for vector in (*vars(self).values(), *self.cell_weights) if isinstance(vector, DCV)])

    def find_bins(self, rows: KeptRows) -> tuple[Bins, FeatureColumns | None]:
        """Find the bins where this process has all rows; return them, and the columns of dense rows."""
        self.count(rows)
        common_rows = self.without_rare_features(rows)
        by_feature = RowsByFeature.make(self, common_rows)
        by_feature.add_total()
        by_feature.add_categories()
        values = by_feature.numeric_values
        stored = np.bincount(values.features, values.weights, self.problem.dim).astype(np.int64)
        unstored_zeros = self._unstored_zeros(np.arange(self.problem.dim), stored)
        self.many_valued.add(np.ones(len(values.many_valued), np.int32), values.many_valued)
        many_valued = self._set_many(values, unstored_zeros)
        for turn in range(TURNS):
            by_feature.add_cells(turn)
            if turn < TURNS - 1:
                self.find_heavy(turn + 1)
        bins = self._cut(values.without(many_valued, len(values.features)), unstored_zeros)
        return bins, by_feature.dense_columns(rows, common_rows)

    def count(self, rows: KeptRows) -> None:
        """Count the rows that store each feature, and add the weight of missing values, also of rare features."""
        stored, has_missing = np.zeros(len(rows.keys), np.int64), False
        for block in rows.blocks():
            has_missing |= count_values(readable(block.x.indices), readable(block.x.data), stored)
        self.stored_rows.add(stored, rows.keys)
        if has_missing:
            RowsByFeature.make(self, rows).add_missing()

    def without_rare_features(self, rows: KeptRows) -> KeptRows:
        """Return the rows without the features that fewer than ``min_rows`` rows store."""
        common = np.flatnonzero(self.stored_rows.pull(rows.keys) >= self.min_rows)
        if len(common) == len(rows.keys):
            return rows
        keys = rows.keys[common]
        if isinstance(rows, SpilledRows):
            rows = replace(rows, keys=keys)
        return rows.mapped(lambda block: LocalRows(keys, block.x[:, common], block.y, block.weights))

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
        """Number the upper halves that several values share, except those of features with many values."""
        many_valued = self._set_many(*self._values(np.empty(0, np.int64)))
        keys, _ = self.half_numbers.pull()
        is_few_valued = ~is_member(keys >> FEATURE_BITS, many_valued, self.problem.dim)
        if len(keys):
            self.half_numbers.push(np.where(is_few_valued, np.cumsum(is_few_valued), 0), keys)

    def find_many(self) -> None:
        """Find the features that have more values than bins."""
        self._set_many(*self._values(np.empty(0, np.int64)))

    def _set_many(self, values: DistinctValues, unstored_zeros: Int64s) -> Int64s:
        """Mark the features with more values than bins, and return them; args: see ``value_counts``."""
        has_many = (self.many_valued.pull() > 0) | (value_counts(values, unstored_zeros) > self.max_bins)
        many_valued = np.flatnonzero(has_many)
        self.many_valued.zero()
        if len(many_valued):
            self.many_valued.push(np.ones(len(many_valued), np.int32), many_valued)
        return many_valued

    def find_heavy(self, turn: int) -> None:
        """Count the features whose cells the next turn cuts; turn: the number of turns so far."""
        many_valued = np.flatnonzero(self.many_valued.pull())
        if turn == 1 and len(many_valued) and self.problem.absent == "zero":
            # The zeros that rows do not store count in the cell that contains zero.
            keys, weights = self.cell_weights[0].pull()
            unstored_zeros = self._unstored_zeros(many_valued, feature_sums(keys, weights, many_valued))
            zero_cell = int(ZERO) >> (BITS - COARSE_BITS)
            self.cell_weights[0].add(unstored_zeros, (many_valued << FEATURE_BITS) + zero_cell)
        heavy = 0
        if len(many_valued) and (turn == 1 or self.num_heavy.pull()[0]):
            for _, cells in self._cells(many_valued, turn):
                heavy += int((np.diff(Refinement.of(cells, self.max_bins, turn).cell_offsets) > 0).sum())
        self.num_heavy.push(np.array([heavy]))

    def cut(self) -> Bins:
        """Return the bins, after the last turn."""
        return self._cut(*self._values(np.flatnonzero(self.many_valued.pull())))

    def _cut(self, few_valued: DistinctValues, unstored_zeros: Int64s) -> Bins:
        """Return the bins; args: see ``cuts_between_values``."""
        many_valued = np.flatnonzero(self.many_valued.pull())
        value_cuts, begins = cuts_between_values(few_valued, unstored_zeros)
        categories, category_features = categories_of(self.problem)
        frequent, frequent_features = self._frequent_categories()
        cuts = [value_cuts, categories, frequent]
        features = [np.repeat(np.arange(self.problem.dim), np.diff(begins)), category_features, frequent_features]
        for chunk, cells in self._cells(many_valued, TURNS):
            cell_cuts, sizes = cuts_of_cells(cells, self.max_bins)
            cuts.append(cell_cuts)
            features.append(np.repeat(chunk, sizes))
        feature = np.concatenate(features)
        offsets = np.append(0, np.cumsum(np.bincount(feature, minlength=self.problem.dim)))
        missing = (self.missing_weights.pull() > 0) | (self.problem.absent == "missing")
        missing[self.problem.folded] = True
        return bins_of(self.problem, np.concatenate(cuts)[np.argsort(feature, kind="stable")], offsets, missing)

    def _frequent_categories(self) -> tuple[Float64s, Int64s]:
        """Return the categories of ``TreeProblem.folded`` with bins of their own, and the feature of each."""
        folded = np.array(self.problem.folded, np.int64)
        if not len(folded):
            return np.empty(0), folded
        keys, weights = self.category_weights.pull()
        zeros = self._unstored_zeros(folded, feature_sums(keys, weights, folded))
        categories, features = frequent_categories(keys, weights, zeros, folded, MAX_CATEGORIES)
        return categories.astype(np.float64), features

    def _unstored_zeros(self, features: Int64s, stored: Int64s) -> Int64s:
        """Return the weight of each feature's zeros that rows do not store; stored: the weight of the stored values."""
        if self.problem.absent == "missing":
            return np.zeros(len(features), np.int64)
        return self.total_weight.pull()[0] - self.missing_weights.pull()[features] - stored

    def _values(self, many_valued: Int64s) -> tuple[DistinctValues, Int64s]:
        """Return the values of all features except ``many_valued``, and the weights of zeros that rows do not store."""
        keys, weights = self.upper_halves.pull()
        stored = np.bincount(keys >> FEATURE_BITS, weights, self.problem.dim).astype(np.int64)
        unstored_zeros = self._unstored_zeros(np.arange(self.problem.dim), stored)
        bits = (keys & LOW_MASK).astype(np.uint64) << HALF_BITS
        features, low_keys = keys >> FEATURE_BITS, self.lower_halves.pull()
        if len(low_keys[0]):
            # Replace each numbered upper half by the values that share it.
            numbered, numbers = self.half_numbers.pull()
            numbered = numbered[numbers > 0]  # in the order of their numbers
            is_single = np.ones(len(keys), np.bool_)
            is_single[np.searchsorted(keys, numbered)] = False
            upper = numbered[(low_keys[0] >> FEATURE_BITS) - 1]
            lows = (upper & LOW_MASK).astype(np.uint64) << HALF_BITS | (low_keys[0] & LOW_MASK).astype(np.uint64)
            features = np.concatenate([features[is_single], upper >> FEATURE_BITS])
            bits = np.concatenate([bits[is_single], lows])
            weights = np.concatenate([weights[is_single], low_keys[1]])
            order = np.lexsort((bits, features))
            features, bits, weights = features[order], bits[order], weights[order]
        values = DistinctValues(features, bits, weights, many_valued)
        return values.without(many_valued, len(keys) + len(low_keys[0])), unstored_zeros

    def _cells(self, many_valued: Int64s, num_turns: int) -> Iterator[tuple[Int64s, Cells]]:
        """Yield chunks of features, and their cells after a number of turns."""
        pulled: dict[int, tuple[Int64s, Int64s]] = {}
        for begin in range(0, len(many_valued), CHUNK):
            chunk = many_valued[begin : begin + CHUNK]
            cache_key = chunk.tobytes()
            first_turn, cells = self._cached.get(cache_key, (0, Cells.uncut(len(chunk))))
            if first_turn > num_turns:
                first_turn, cells = 0, Cells.uncut(len(chunk))
            for turn in range(first_turn, num_turns):
                if turn not in pulled:
                    pulled[turn] = self.cell_weights[turn].pull()
                keys, weights = pulled[turn]
                refinement = Refinement.of(cells, self.max_bins, turn)
                span = feature_span(keys, chunk)
                index = np.searchsorted(chunk, keys[span] >> FEATURE_BITS)
                children_of_cells = refinement.child_offsets[index] + (keys[span] & LOW_MASK)
                cells = cells.refine(refinement, children_of_cells, weights[span])
            self._cache(cache_key, num_turns, cells)
            yield chunk, cells

    def forget_cells(self) -> None:
        """Clear the cache: the sums of earlier turns may have been read while the fleet rolled back."""
        self._cached.clear()

    def _cache(self, cache_key: bytes, num_turns: int, cells: Cells) -> None:
        """Cache a chunk's cells after a number of turns, unless the cache would exceed MAX_CACHE_BYTES."""
        self._cached.pop(cache_key, None)
        if cells.nbytes + sum(cached.nbytes for _, cached in self._cached.values()) <= MAX_CACHE_BYTES:
            self._cached[cache_key] = num_turns, cells


@dataclass(frozen=True, eq=False)
class RowsByFeature:
    """A worker's rows by feature; features: the feature of each column."""

    sums: Quantiles
    columns: ColumnBlocks
    features: Int64s

    @staticmethod
    def make(sums: Quantiles, rows: KeptRows) -> RowsByFeature:
        columns = ColumnBlocks(rows, sums.problem.dim, sums.problem.absent, sums.weight_unit)
        return RowsByFeature(sums, columns, np.arange(columns.dim) if columns.is_dense else rows.keys)

    def add_missing(self) -> None:
        missing_weights = np.zeros(len(self.features), np.int64)
        for columns, weights in self.columns.parts():
            missing_weights += cut_points.missing_weights(columns, weights)
        filled = np.flatnonzero(missing_weights)
        self.sums.missing_weights.add(missing_weights[filled], self.features[filled])

    def do(self, task: CutPointTask) -> None:
        """Do a task, except ``CountRows``."""
        if isinstance(task, AddCells):
            self.add_cells(task.turn)
        elif isinstance(task, AddValues):
            self._add_values()
        else:
            self._add_lower_halves()

    def dense_columns(self, rows: KeptRows, common_rows: KeptRows) -> FeatureColumns | None:
        """Return the columns if they are dense, in memory, and have all features; see ``without_rare_features``."""
        if common_rows is rows and isinstance(rows, LocalRows) and self.columns.whole[0].is_dense:
            return self.columns.whole[0]
        return None

    @cached_property
    def _values_and_weight(self) -> tuple[DistinctValues, int]:
        """The distinct values of features that have few in these rows, by column, and the weight of the rows."""
        return sum_values(self.columns.parts(), self.sums.max_bins)

    @cached_property
    def numeric_values(self) -> DistinctValues:
        """The distinct values of numeric features that have few in these rows; features by their global numbers."""
        values, _ = self._values_and_weight
        categories = np.array(list(self.sums.problem.categories), np.int64)
        dim = self.sums.problem.dim
        is_numeric = ~is_member(self.features[values.features], categories, dim)
        many_valued = self.features[values.many_valued]
        numbers = self.features[values.features[is_numeric]]
        many_valued = many_valued[~is_member(many_valued, categories, dim)]
        return DistinctValues(numbers, values.bits[is_numeric], values.weights[is_numeric], many_valued)

    def add_total(self) -> None:
        self.sums.total_weight.add(np.array([self._values_and_weight[1]], np.int64))

    def add_categories(self) -> None:
        """Add the weights of the categories of ``TreeProblem.folded``."""
        folded = np.array(self.sums.problem.folded, np.int64)
        stored = folded[is_member(folded, self.features, self.sums.problem.dim)]
        if not len(stored):
            return
        for columns, row_weights in self.columns.parts():
            for feature, column in zip(stored, np.searchsorted(self.features, stored), strict=True):
                bits, weights = value_weights(columns, column, row_weights)
                self.sums.category_weights.add(weights, make_keys(np.full(len(bits), feature), from_bits(bits)))

    def _add_values(self) -> None:
        """Add the weights of values by upper half, and mark the upper halves of values with a lower half above 0."""
        sums, values = self.sums, self.numeric_values
        self.add_total()
        self.add_categories()
        if len(values.many_valued):
            sums.many_valued.add(np.ones(len(values.many_valued), np.int32), values.many_valued)
        keys = make_keys(values.features, values.bits >> HALF_BITS)
        sums.upper_halves.add(values.weights, keys)
        halves = unique_sorted(keys[values.bits & np.uint64(LOW_MASK) != 0])
        sums.half_numbers.add(np.ones(len(halves), np.int64), halves)

    def _add_lower_halves(self) -> None:
        """Add the weights of the values whose upper half has a number, by number and lower half."""
        values, many_valued = self.numeric_values, np.flatnonzero(self.sums.many_valued.pull())
        is_few = ~is_member(values.features, many_valued, self.sums.problem.dim)
        value_keys = make_keys(values.features[is_few], values.bits[is_few] >> HALF_BITS)
        begins = run_starts(value_keys)
        keys, key_index = value_keys[begins], np.repeat(np.arange(len(begins)), np.diff(begins, append=len(value_keys)))
        numbers = self.sums.half_numbers.pull(keys)[key_index]
        is_numbered = numbers > 0
        lows = make_keys(numbers[is_numbered], values.bits[is_few][is_numbered] & np.uint64(LOW_MASK))
        self.sums.lower_halves.add(values.weights[is_few][is_numbered], lows)

    def add_cells(self, turn: int) -> None:
        """Add the weights of features with many values, by the child cells of a turn."""
        if turn and not self.sums.num_heavy.pull()[0]:
            return
        many_valued = self.features[self.sums.many_valued.pull(self.features) > 0]
        max_children = 0 if isinstance(self.columns.rows, LocalRows) else MAX_CHILDREN
        chunks, size = list[tuple[Int64s, Cells, Refinement]](), 0
        for features, cells in self.sums._cells(many_valued, turn):
            refinement = Refinement.of(cells, self.sums.max_bins, turn)
            if num_children := int(refinement.child_offsets[-1]):
                chunks.append((features, cells, refinement))
                size += num_children
            if size > max_children:
                self._add_children(turn, chunks)
                chunks, size = [], 0
        if chunks:
            self._add_children(turn, chunks)

    def _add_children(self, turn: int, chunks: Sequence[tuple[Int64s, Cells, Refinement]]) -> None:
        """Add the weights of the child cells of some chunks of features, in one pass over the rows."""
        sums = [np.zeros(refinement.child_offsets[-1], np.int64) for _, _, refinement in chunks]
        for columns, weights in self.columns.parts():
            for out, (features, cells, refinement) in zip(sums, chunks, strict=True):
                out += child_weights(columns, np.searchsorted(self.features, features), cells, refinement, weights)
        for out, (features, _, refinement) in zip(sums, chunks, strict=True):
            filled = np.flatnonzero(out)
            parent = np.searchsorted(refinement.child_offsets, filled, side="right") - 1
            keys = make_keys(features[parent], filled - refinement.child_offsets[parent])
            self.sums.cell_weights[turn].add(out[filled], keys)
