"""Target statistics: numeric columns that replace categorical features with many categories.

A combination is a tuple of such features. It has a column with the mean label of the rows that have the same categories
in all its features; with several classes, it has a column with the fraction of each class. Each single feature also has
a column with the number of these rows. CatBoost calls them CTRs (L. Prokhorenkova et al., "CatBoost: unbiased boosting
with categorical features", 2018, sections 3 and 4). ``StatisticSums`` says how training rows get theirs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.trees.layout import Array
from ps2.array_types import Float64s, Int64s
from ps2.errors import LimitError
from ps2.splitmix import GOLDEN, scrambled

# A mean has this many further rows, whose label is the mean label of all rows.
PRIOR_ROWS = 1.0
# The number of the low bits of a key that are a hash of the categories. The number of the combination is above them.
HASH_BITS = 48
# The maximum number of combinations, and of those that are made without ``maxCtrComplexity``.
MAX_COMBINATIONS, MAX_DEFAULT_COMBINATIONS = 1000, 200
# The maximum number of features in a combination without ``maxCtrComplexity``.
DEFAULT_COMPLEXITY = 3
# The number of bits of the largest label as an integer: sums of integers do not depend on the order of the rows.
LABEL_BITS = 20
# The exponent of the smallest normal float64.
MIN_EXPONENT = -1022


@dataclass(frozen=True)
class StatisticColumns:
    """The columns of a table's target statistics, which come after the table's features.

    Attributes:
        features: the number of the table's features.
        categories: the number of categories of each feature that the columns replace, by feature number.
        combinations: the combinations of these features; the last has no features, and stands for all rows.
        classes: the number of classes that have columns; 0: the label is one number.
        label_unit: the number that 1 in an integer label stands for.
    """

    features: int
    categories: Mapping[int, int]
    combinations: tuple[tuple[int, ...], ...]
    classes: int
    label_unit: float

    @staticmethod
    def combine(
        features: int, categories: Mapping[int, int], complexity: int | None, classes: int, max_label: float
    ) -> StatisticColumns:
        """Combine up to ``complexity`` features; None: up to three, with at most MAX_DEFAULT_COMBINATIONS combinations.

        Raises:
            LimitError: there are more than MAX_COMBINATIONS combinations.
        """
        limit = DEFAULT_COMPLEXITY if complexity is None else complexity
        sizes = np.cumsum([math.comb(len(categories), size) for size in range(1, limit + 1)])
        if complexity is None:
            limit = max(int((sizes <= MAX_DEFAULT_COMBINATIONS).sum()), 1)
        if sizes[limit - 1] > MAX_COMBINATIONS:
            raise LimitError(
                f"maxCtrComplexity: expected at most {MAX_COMBINATIONS:,} combinations of features, but {limit} of "
                f"{len(categories)} features make {sizes[limit - 1]:,}"
            )
        combinations = [c for size in range(1, limit + 1) for c in itertools.combinations(sorted(categories), size)]
        unit = 1.0 if classes or not max_label else 2.0 ** max(math.frexp(max_label)[1] - LABEL_BITS, MIN_EXPONENT)
        return StatisticColumns(features, categories, (*combinations, ()), classes if classes > 2 else 0, unit)

    @staticmethod
    def from_json(value: Any) -> StatisticColumns:
        """Return the columns from the result of ``to_json``; raise KeyError, TypeError or ValueError if it is wrong."""
        categories = {int(feature): int(count) for feature, count in value["categories"].items()}
        combinations = tuple(tuple(map(int, combination)) for combination in value["combinations"])
        label_unit = float(value["label_unit"])
        return StatisticColumns(int(value["features"]), categories, combinations, int(value["classes"]), label_unit)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def targets(self) -> int:
        """The number of the labels' sums: one, or one for each class."""
        return max(self.classes, 1)

    @cached_property
    def sources(self) -> list[tuple[str, tuple[int, ...]]]:
        """The content of each column, for texts, and its features."""
        kinds = [f"fraction of class {number}" for number in range(self.classes)] or ["mean label"]
        columns = [(kind, combination) for combination in self.combinations[:-1] for kind in kinds]
        return [*columns, *(("number of rows", combination) for combination in self._single)]

    @property
    def total_key(self) -> int:
        """The key of the last combination, which is the largest of all keys."""
        return (len(self.combinations) - 1) << HASH_BITS

    @property
    def _single(self) -> list[tuple[int, ...]]:
        return [combination for combination in self.combinations if len(combination) == 1]

    @property
    def dim(self) -> int:
        """The number of columns after the statistics' columns were appended."""
        return self.features + len(self.sources)

    def column_name(self, column: int) -> str:
        """Return the name of a feature, or of a column of statistics, for texts."""
        if column < self.features:
            return f"feature {column}"
        kind, features = self.sources[column - self.features]
        return f"{kind} by feature {' and '.join(map(str, features))}"

    def by_feature(self, values: Array) -> Array:
        """Return values by feature: a column's value is divided equally among its features; the last axis: columns."""
        out = values[..., : self.features].copy()
        for column, (_, features) in enumerate(self.sources, self.features):
            out[..., list(features)] += values[..., column, None] / len(features)
        return out

    def integer_labels(self, y: Float64s) -> Int64s:
        """Return integer labels, shape (targets, n)."""
        if self.classes:
            return (y == np.arange(self.classes)[:, None]).astype(np.int64)
        return np.rint(y / self.label_unit).astype(np.int64)[None]

    def keys(self, codes: Mapping[int, npt.NDArray[np.uint64]], rows: int) -> Iterator[Int64s]:
        """Yield the key of each row's categories, for each combination; codes: see ``category_codes``."""
        for number, combination in enumerate(self.combinations):
            state = np.zeros(rows, np.uint64)
            for feature in combination:
                state = scrambled(state + GOLDEN * (codes[feature] + np.uint64(1)))
            yield (np.uint64(number << HASH_BITS) | state >> np.uint64(64 - HASH_BITS)).view(np.int64)

    def category_codes(self, x: Any, missing: float) -> dict[int, npt.NDArray[np.uint64]]:
        """Return the categories of rows by feature; values that are no category, or are missing, have one code.

        Args:
            x: array or CSR matrix, shape (n, features).
            missing: the value of an entry that a sparse row does not store.
        """
        codes = {}
        for feature, count in self.categories.items():
            values = _column(x, feature, missing) if sp.issparse(x) else x[:, feature]
            is_category = (values >= 0) & (values < count) & (values == np.floor(values))
            codes[feature] = np.where(is_category, values, count).astype(np.uint64)
        return codes

    def means(self, sums: Int64s, counts: Int64s, priors: Float64s) -> Float64s:
        """Return smoothed means, shape (targets, n), as float32 numbers; priors: the mean labels of all rows."""
        means = (sums * self.label_unit + PRIOR_ROWS * priors[:, None]) / (counts + PRIOR_ROWS)
        return means.astype(np.float32).astype(np.float64)


@dataclass(frozen=True, eq=False)
class StatisticTable:
    """The sums of training rows by key.

    Attributes:
        keys: int64, ascending.
        sums: for each key, the number of rows, and the sum of their integer labels; int64, shape (1 + targets, keys).
    """

    columns: StatisticColumns
    keys: Int64s
    sums: Int64s

    @property
    def priors(self) -> Float64s:
        """The mean labels of all rows, shape (targets,)."""
        return self.sums[1:, -1] * self.columns.label_unit / max(int(self.sums[0, -1]), 1)

    def with_columns(self, x: Any, missing: float) -> Any:
        """Return rows with their statistics, as new rows get them; args: see ``StatisticColumns.category_codes``."""
        columns, priors = self.columns, self.priors
        statistics, counts = [], []
        for number, keys in enumerate(columns.keys(columns.category_codes(x, missing), x.shape[0])):
            if not columns.combinations[number]:
                break
            index = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            sums = np.where(self.keys[index] == keys, self.sums[:, index], 0)
            statistics.append(columns.means(sums[1:], sums[0], priors))
            if len(columns.combinations[number]) == 1:
                counts.append(sums[:1].astype(np.float64))
        extra = np.concatenate([*statistics, *counts]).T
        return append_columns(x, extra) if sp.issparse(x) else np.column_stack([x, extra])


def _column(x: sp.csr_array, feature: int, missing: float) -> Float64s:
    """Return a column of a CSR matrix without duplicates."""
    out = np.full(x.shape[0], missing)
    entries = np.flatnonzero(x.indices == feature)
    out[np.searchsorted(x.indptr, entries, side="right") - 1] = x.data[entries]
    return out


def append_columns(x: sp.csr_array, extra: Array, zeros: Sequence[int] | Int64s = ()) -> sp.csr_array:
    """Return a CSR matrix with further columns, which store all their entries; the entries of ``zeros`` become 0."""
    (rows, dim), more = x.shape, extra.shape[1]
    lengths, offsets = np.diff(x.indptr), np.arange(rows + 1) * more
    values, indices = np.empty(x.nnz + rows * more), np.empty(x.nnz + rows * more, np.int32)
    old = np.arange(x.nnz) + np.repeat(offsets[:-1], lengths)
    values[old], indices[old] = np.where(np.isin(x.indices, zeros), 0.0, x.data), x.indices
    new = (x.indptr[1:, None] + offsets[:-1, None] + np.arange(more)).reshape(-1)
    values[new], indices[new] = extra.reshape(-1), np.tile(np.arange(dim, dim + more, dtype=np.int32), rows)
    return sp.csr_array((values, indices, x.indptr + offsets), shape=(rows, dim + more))
