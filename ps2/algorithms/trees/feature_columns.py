"""The values of a worker's rows, feature by feature, as bits that ascend as the values do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.trees import binning_kernels as kernels
from ps2.algorithms.trees.ascending import are_in, merged, runs
from ps2.algorithms.trees.layout import Array, UInt64s
from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

NO_WEIGHTS = readable(np.empty(0, np.int64))
NO_ROWS = readable(np.empty(0, np.int32))
ZERO = kernels.SIGN
# The cost of a value in a kernel, in additions.
COST = 8


@dataclass(frozen=True, eq=False)
class FeatureColumns:
    """Values by feature, as ordered bits.

    Attributes:
        bits: uint64, those of a feature lie together; missing ones are the largest.
        begin: int64, shape (features + 1,).
        rows: int32, of sparse columns: the row of each value; dense ones have all rows, and this is empty.
        count: the number of rows.
    """

    bits: UInt64s
    begin: Int64s
    rows: Int32s
    count: int

    @staticmethod
    def of_dense(x: Array) -> FeatureColumns:
        """Take all values of rows, float32 or float64, shape (n, features)."""
        count, features = x.shape
        bits = np.empty((features, count), np.uint64)
        over_blocks(
            kernels.to_columns,
            (np.arange(features),),
            readable(x.astype(np.float64, copy=False)),
            bits,
            cost=COST * count,
        )
        return FeatureColumns(readable(bits.reshape(-1)), readable(np.arange(features + 1) * count), NO_ROWS, count)

    @staticmethod
    def of_sparse(x: sp.csr_array) -> FeatureColumns:
        """Take the values that sparse rows hold; those that they do not hold are nowhere in it."""
        columns = sp.csc_array(x)
        bits = ordered_bits(columns.data)
        return FeatureColumns(
            bits, readable(columns.indptr.astype(np.int64)), readable(columns.indices.astype(np.int32)), x.shape[0]
        )

    @property
    def features(self) -> int:
        return len(self.begin) - 1

    @property
    def dense(self) -> bool:
        # Sparse rows that hold nothing have no values, and no rows of any.
        return not len(self.rows) and 0 < self.features * self.count == len(self.bits)

    def arrays(self, weights: Int64s) -> kernels.Columns:
        """Return the columns as the kernels take them, with the weights of the rows."""
        return kernels.Columns(self.bits, self.begin, self.rows, readable(weights))

    @property
    def cost(self) -> int:
        return COST * (len(self.bits) // max(self.features, 1) + 1)


@dataclass(frozen=True, eq=False)
class Distinct:
    """The ascending values of each feature that has few, with their weights; many: the features that have more."""

    features: Int64s
    bits: UInt64s
    weights: Int64s
    many: Int64s

    def without(self, many: Int64s, limit: int) -> Distinct:
        """Return the values without the features ``many``, ascending, and those with more values than ``limit``."""
        begins = runs(self.features)
        counts = np.diff(begins, append=len(self.features))
        many = merged(many, self.features[begins][counts > limit])
        few = ~are_in(self.features, many, 1 + max(map(int, (*self.features[-1:], *many[-1:])), default=0))
        return Distinct(self.features[few], self.bits[few], self.weights[few], many)


def ordered_bits(values: Array) -> UInt64s:
    """Return uint64 that ascend as float64 values do; 0 and -0 are the same, NaN is the largest."""
    bits = np.empty(len(values), np.uint64)
    over_blocks(kernels.to_bits, (readable(values.astype(np.float64, copy=False)), bits))
    return readable(bits)


def from_bits(bits: UInt64s) -> Float64s:
    """Return the float64 that have such ordered bits."""
    bits = np.asarray(bits, np.uint64)
    return np.where(bits & kernels.SIGN, bits ^ kernels.SIGN, ~bits).view(np.float64)


def distinct(columns: FeatureColumns, limit: int, weights: Int64s = NO_WEIGHTS) -> Distinct:
    """Find at most ``limit`` distinct values of each feature, but missing ones; ``many`` have more."""
    start = np.append(0, np.cumsum(np.minimum(np.diff(columns.begin), limit)))
    values, counts = np.empty(start[-1], np.uint64), np.empty(start[-1], np.int64)
    sizes, arrays = np.empty(columns.features, np.int64), columns.arrays(weights)
    every = (np.arange(columns.features),)
    over_blocks(kernels.count_distinct, every, arrays, limit, readable(start), values, counts, sizes, cost=columns.cost)
    many = np.flatnonzero(sizes < 0)
    sizes[many] = 0
    features = np.repeat(np.arange(columns.features), sizes)
    some = np.repeat(start[:-1] - np.append(0, np.cumsum(sizes)[:-1]), sizes) + np.arange(len(features))
    return Distinct(features, values[some], counts[some], many)


def missing(columns: FeatureColumns, weights: Int64s = NO_WEIGHTS) -> Int64s:
    """Return the weight of each feature's missing values, as far as ``columns`` have them, int64."""
    out = np.empty(columns.features, np.int64)
    over_blocks(kernels.count_missing, (np.arange(columns.features),), columns.arrays(weights), out, cost=columns.cost)
    return out
