"""Vectors in the process of a worker that has all rows, with the methods of a DCV that ``Quantiles`` calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from ps2.algorithms.trees.ascending import union_sorted
from ps2.algorithms.trees.layout import Array
from ps2.array_types import Int64s


class LocalDense:
    """A dense vector."""

    def __init__(self, dim: int, dtype: str) -> None:
        self._values = np.zeros(dim, dtype)

    def add(self, values: Array, indices: Int64s | None = None) -> None:
        if indices is None:
            self._values += values
        else:
            np.add.at(self._values, indices, values)

    def push(self, values: Array, indices: Int64s | None = None) -> None:
        self._values[slice(None) if indices is None else indices] = values

    def pull(self, indices: Int64s | None = None) -> Any:
        return self._values.copy() if indices is None else self._values[indices]

    def zero(self) -> None:
        self._values[:] = 0


class LocalSparse:
    """A sparse vector of int64."""

    def __init__(self) -> None:
        self._keys, self._values = np.empty(0, np.int64), np.empty(0, np.int64)

    def add(self, values: Int64s, indices: Any = None) -> None:
        index = self._index(indices)  # adds new keys
        np.add.at(self._values, index, values)

    def push(self, values: Int64s, indices: Any = None) -> None:
        index = self._index(indices)  # adds new keys
        self._values[index] = values

    def pull(self, indices: Int64s | None = None) -> Any:
        """Return the values of keys, 0 for unknown keys; indices None: return all keys, ascending, and their values."""
        if indices is None:
            return self._keys.copy(), self._values.copy()
        index = np.searchsorted(self._keys, indices)
        is_known = index < len(self._keys)
        is_known[is_known] = self._keys[index[is_known]] == indices[is_known]
        out = np.zeros(len(indices), np.int64)
        out[is_known] = self._values[index[is_known]]
        return out

    def zero(self) -> None:
        self._values[:] = 0

    def _index(self, keys: Int64s) -> Int64s:
        """Return the index of each key, after adding new keys."""
        all_keys = keys
        if len(self._keys) or not (keys[1:] > keys[:-1]).all():
            all_keys = union_sorted(self._keys, keys)
        if len(all_keys) > len(self._keys):
            values = np.zeros(len(all_keys), np.int64)
            values[np.searchsorted(all_keys, self._keys)] = self._values
            self._keys, self._values = all_keys, values
        return np.searchsorted(self._keys, keys)
