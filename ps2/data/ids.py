"""Ids of one kind, such as vertices, users or items, and their numbers, which follow the order of the ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ps2.array_types import Int64s
from ps2.errors import InputError

Array = npt.NDArray[Any]

UNKNOWN = -1
WRONG = "rows have ids that were missing at the first reading: persist the DataFrame"


@dataclass(frozen=True, eq=False)
class Ids:
    """Distinct ids, numbered from 0 in ascending order.

    Attributes:
        values: int64 or strings, ascending, distinct.
    """

    values: pa.Array

    @staticmethod
    def from_values(values: pa.Array) -> Ids:
        """Number distinct ids, given in any order: integers by value, strings by their UTF-8 bytes."""
        if pa.types.is_integer(values.type):
            return Ids(pa.array(np.sort(values.cast(pa.int64()).to_numpy())))
        return Ids(values.take(pc.sort_indices(values)))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def are_integers(self) -> bool:
        """True if the ids are integers; otherwise they are strings."""
        return bool(pa.types.is_integer(self.values.type))

    def find(self, ids: pa.Array) -> Int64s:
        """Return the numbers of ids; ``UNKNOWN`` for ids that are not among these.

        Args:
            ids: without nulls; integers or strings, like ``values``.
        """
        if not self.are_integers:
            numbers = pc.fill_null(pc.index_in(ids, value_set=self.values), UNKNOWN)
            return numbers.to_numpy(zero_copy_only=False).astype(np.int64)
        values = ids.cast(pa.int64()).to_numpy()
        if not len(self):
            return np.full(len(values), UNKNOWN)
        known = self._integers
        if self._without_gaps:
            inside = (values >= known[0]) & (values <= known[-1])
            return np.where(inside, values - np.where(inside, known[0], values), UNKNOWN)
        numbers = np.minimum(np.searchsorted(known, values), len(known) - 1)
        return np.where(known[numbers] == values, numbers, UNKNOWN)

    def numbers(self, ids: pa.Array) -> Int64s:
        """Return the numbers of known ids.

        Raises:
            InputError: an id is unknown.
        """
        numbers = self.find(ids)
        if len(numbers) and numbers.min() == UNKNOWN:
            raise InputError(WRONG)
        return numbers

    def named(self, numbers: Array) -> pa.Array:
        """Return the ids of numbers."""
        if self.are_integers and self._without_gaps:
            return pa.array(numbers + self._integers[0])
        return self.values.take(pa.array(numbers))

    @cached_property
    def _integers(self) -> Int64s:
        return self.values.to_numpy()

    @cached_property
    def _without_gaps(self) -> bool:
        return int(self._integers[-1]) - int(self._integers[0]) == len(self) - 1
