"""The sums of target statistics on the servers, and the statistics of training rows.

A training row's own label must not be in its statistics: trees would only learn to read it. So rows belong to FOLDS
folds, and a row's mean is that of the rows in other folds, as in scikit-learn's ``TargetEncoder``. The means of
held-out rows and of new rows are those of all training rows. Decision 103 compares this with ordered statistics.

Trees do not depend on the number of workers and servers, because sums are integers, and because the fold of a row
follows from its content and the number of the copy. The copies of a row, which have the same content, are numbered: if
they shared a fold, only rows with other labels would be in the others. It does not matter which copy has which number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ps2.algorithms.frame.program import Task
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.trees.layout import Array, UInt64s
from ps2.algorithms.trees.rows import with_all_columns
from ps2.algorithms.trees.target_statistics import StatisticColumns, StatisticTable, append_columns
from ps2.algorithms.trees.tree import Absent
from ps2.array_types import Float64s, Int64s
from ps2.client.dcv import DCV
from ps2.client.handle import free_all
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows, rewrite, row_fields
from ps2.splitmix import GOLDEN, scrambled

FOLDS = 5
# Stands for a worker's rank in the keys of ``StatisticSums.copies``.
ALL_WORKERS = 1 << 32
NO_KEYS = np.empty(0, np.int64)


class StatisticTask(Task):
    """A task of the clocks that compute target statistics."""


@dataclass(frozen=True)
class CountCopies(StatisticTask):
    """Add the number of copies of each row."""


@dataclass(frozen=True)
class AddStatistics(StatisticTask):
    """Add the numbers and the labels of rows to the sums of target statistics."""


@dataclass(frozen=True, eq=False)
class StatisticSums:
    """Vectors of sums by key; picklable.

    Attributes:
        absent: how to read an entry that a sparse row does not store.
        sums: the number of rows, and the sum of integer labels for each target; sparse, int64.
        fold_sums: the same sums by key and fold.
        copies: the number of copies of each row by id, and by id and worker; sparse, int64.
    """

    columns: StatisticColumns
    absent: Absent
    sums: tuple[DCV, ...]
    fold_sums: tuple[DCV, ...]
    copies: DCV

    @staticmethod
    def make(columns: StatisticColumns | None, absent: Absent, names: CheckpointNames) -> StatisticSums | None:
        """Make vectors of zeros, or find those of a resumed training; None: there are no statistics."""
        if columns is None:
            return None

        def vectors(number: int) -> tuple[DCV, ...]:
            return tuple(map(names.vector, [lambda name: DCV.sparse(2**63, 1, "int64", name=name)] * number))

        return StatisticSums(columns, absent, vectors(1 + columns.targets), vectors(1 + columns.targets), *vectors(1))

    def free(self) -> None:
        free_all([*self.sums, *self.fold_sums, self.copies])

    def do(self, task: StatisticTask, rows: KeptRows, ids: Int64s, rank: int) -> None:
        """Do a task with a worker's training rows; ids: see ``row_ids``; rank: the worker's."""
        if isinstance(task, CountCopies):
            unique_ids, counts = np.unique(_copy_ids(rows, ids), return_counts=True)
            for number in (ALL_WORKERS, rank):
                self.copies.add(counts, _mixed(unique_ids, number))
        else:
            folds, begin = self._folds(rows, ids, rank), 0
            for block in rows.blocks():
                self._add(block, folds[begin : begin + len(block)])
                begin += len(block)

    def _folds(self, rows: KeptRows, ids: Int64s, rank: int) -> UInt64s:
        """Return the fold of each training row, from the row's content and the number of its copy."""
        unique_ids, index, counts = np.unique(_copy_ids(rows, ids), return_inverse=True, return_counts=True)
        shared = np.flatnonzero(self.copies.pull(_mixed(unique_ids, ALL_WORKERS)) > counts)
        first = np.zeros(len(unique_ids), np.int64)
        for lower_rank in range(rank if len(shared) else 0):
            first[shared] += self.copies.pull(_mixed(unique_ids[shared], lower_rank))
        order, begins = np.argsort(index, kind="stable"), np.cumsum(counts) - counts
        copy = np.empty(len(ids), np.int64)
        copy[order] = np.arange(len(ids)) + np.repeat(first - begins, counts)
        return scrambled(unique_ids[index].view(np.uint64) + GOLDEN * (copy + 1).view(np.uint64)) % np.uint64(FOLDS)

    def _add(self, rows: LocalRows, folds: UInt64s) -> None:
        assert rows.y is not None
        values = np.vstack([np.ones((1, len(rows)), np.int64), self.columns.integer_labels(rows.y)])
        for keys in self._keys(rows):
            for vectors, row_keys in ((self.sums, keys), (self.fold_sums, _mixed(keys, folds))):
                unique_keys, index = np.unique(row_keys, return_inverse=True)
                for vector, target in zip(vectors, values, strict=True):
                    sums = np.bincount(index, target, len(unique_keys))  # exact: integers below 2**53
                    vector.add(sums.astype(np.int64), unique_keys)

    def training_rows(self, rows: KeptRows, ids: Int64s, rank: int) -> KeptRows:
        """Return training rows with their statistics, after all workers have added their rows."""
        folds, priors = self._folds(rows, ids, rank), self._table(NO_KEYS).priors
        return rewrite(rows, lambda block, where: self._training_block(block, folds[where], priors))

    def _training_block(self, rows: LocalRows, folds: UInt64s, priors: Float64s) -> LocalRows:
        columns, statistics, counts = self.columns, list[Array](), list[Array]()
        for combination, keys in zip(columns.combinations[:-1], self._keys(rows), strict=False):
            totals, own = self._pulled(self.sums, keys), self._pulled(self.fold_sums, _mixed(keys, folds))
            others = totals - own
            statistics.append(columns.means(others[1:], others[0], priors))
            if len(combination) == 1:
                counts.append(totals[:1].astype(np.float64))
        return self._appended(rows, np.concatenate([*statistics, *counts]).T)

    def new_rows(self, rows: KeptRows) -> KeptRows:
        """Return held-out rows with their statistics."""

        def append(block: LocalRows, where: slice) -> LocalRows:
            table, x = self._table(np.concatenate(self._keys(block))), with_all_columns(block, self.columns.features)
            extra = table.with_columns(x, self._missing)[:, self.columns.features :]
            return self._appended(block, extra.toarray())

        return rewrite(rows, append)

    def table(self) -> StatisticTable:
        """Return the sums of all training rows."""
        keys, counts = self.sums[0].pull()
        return StatisticTable(self.columns, keys, np.stack([counts, *(v.pull(keys) for v in self.sums[1:])]))

    @property
    def _missing(self) -> float:
        return 0.0 if self.absent == "zero" else np.nan

    def _keys(self, rows: LocalRows) -> list[Int64s]:
        x = with_all_columns(rows, self.columns.features)
        return list(self.columns.keys(self.columns.category_codes(x, self._missing), len(rows)))

    def _table(self, keys: Int64s) -> StatisticTable:
        keys = np.unique(np.append(keys, self.columns.total_key))  # also if this worker has no rows
        return StatisticTable(self.columns, keys, np.stack([vector.pull(keys) for vector in self.sums]))

    @staticmethod
    def _pulled(vectors: tuple[DCV, ...], keys: Int64s) -> Int64s:
        """Return the sums of each row, shape (1 + targets, rows)."""
        unique_keys, index = np.unique(keys, return_inverse=True)
        return np.stack([vector.pull(unique_keys)[index] for vector in vectors])

    def _appended(self, rows: LocalRows, extra: Array) -> LocalRows:
        """Append columns, and set the features that they replace to 0, so that these do not split rows."""
        replaced = np.flatnonzero(np.isin(rows.keys, list(self.columns.categories)))
        keys = np.append(rows.keys, np.arange(self.columns.features, self.columns.dim))
        return replace(rows, keys=keys, x=append_columns(rows.x, extra, replaced))


def _mixed(keys: Int64s, numbers: UInt64s | int) -> Int64s:
    """Return keys of keys and further numbers."""
    state = keys.view(np.uint64) + GOLDEN * (np.atleast_1d(np.asarray(numbers, np.uint64)) + np.uint64(1))
    return (scrambled(state) >> np.uint64(1)).view(np.int64)


def _copy_ids(rows: KeptRows, ids: Int64s) -> Int64s:
    """Return ids that are equal for rows that are equal in everything that trees depend on."""
    state = ids.view(np.uint64)
    for values in row_fields(rows, "weights", "margins", "groups"):
        if values is not None:
            state = scrambled(state + values.view(np.uint64))
    return state.view(np.int64)
