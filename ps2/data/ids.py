"""Ids of one kind, such as vertices, users or items. ``Ids`` numbers them in ascending order, ``Names`` in any."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ps2.array_types import Int64s
from ps2.data.columns import as_arrow
from ps2.errors import InputError
from ps2.number_checks import is_whole

Array = npt.NDArray[Any]

UNKNOWN = -1  # the number of an unknown id
CHANGED_IDS = "rows have ids that were missing at the first reading: persist the DataFrame"
# Messages list at most this many names.
MAX_SHOWN = 3
# Arrow's look-ups are faster than pandas', but each call builds a hash table of all names. Arrow is used if the number
# of names is at most this many times the number of look-ups.
MAX_NAMES_PER_LOOKUP = 8


@dataclass(frozen=True, eq=False)
class Ids:
    """Distinct ids, int64 or strings, numbered from 0 in ascending order."""

    values: pa.Array

    @staticmethod
    def from_values(values: pa.Array) -> Ids:
        """Sort distinct ids and number them: integers by value, strings by their UTF-8 bytes."""
        if pa.types.is_integer(values.type):
            return Ids(pa.array(np.sort(values.cast(pa.int64()).to_numpy())))
        return Ids(values.take(pc.sort_indices(values)))

    def __len__(self) -> int:
        return len(self.values)

    @property
    def are_integers(self) -> bool:
        """True if the ids are integers, False if they are strings."""
        return bool(pa.types.is_integer(self.values.type))

    def find(self, ids: pa.Array) -> Int64s:
        """Return the numbers of ids, ``UNKNOWN`` for unknown ids. ``ids`` has the type of ``values`` and no nulls."""
        if not self.are_integers:
            numbers = pc.fill_null(pc.index_in(ids, value_set=self.values), UNKNOWN)
            return numbers.to_numpy(zero_copy_only=False).astype(np.int64)
        values = ids.cast(pa.int64()).to_numpy()
        if not len(self):
            return np.full(len(values), UNKNOWN)
        sorted_ids = self._integers
        if self._are_consecutive:
            is_known = (values >= sorted_ids[0]) & (values <= sorted_ids[-1])
            return np.where(is_known, values - np.where(is_known, sorted_ids[0], values), UNKNOWN)
        numbers = np.minimum(np.searchsorted(sorted_ids, values), len(sorted_ids) - 1)
        return np.where(sorted_ids[numbers] == values, numbers, UNKNOWN)

    def numbers(self, ids: pa.Array) -> Int64s:
        """Return the numbers of ids; raise InputError if an id is unknown."""
        numbers = self.find(ids)
        if len(numbers) and numbers.min() == UNKNOWN:
            raise InputError(CHANGED_IDS)
        return numbers

    def named(self, numbers: Array) -> pa.Array:
        """Return the ids with these numbers."""
        if self.are_integers and self._are_consecutive:
            return pa.array(numbers + self._integers[0])
        return self.values.take(pa.array(numbers))

    @cached_property
    def _integers(self) -> Int64s:
        return self.values.to_numpy()

    @cached_property
    def _are_consecutive(self) -> bool:
        return int(self._integers[-1]) - int(self._integers[0]) == len(self) - 1


@dataclass(frozen=True, eq=False, repr=False)
class Names(Sequence[Any]):
    """A sequence of distinct names, int64 or strings; a name's position is the row of its vector in a model.

    ``numpy.asarray`` converts names to int64, or to string objects.

    Attributes:
        what: what a name is, for errors: "word", "vertex", "user" or "item".
    """

    values: pa.Array
    what: str = "word"

    @staticmethod
    def from_values(values: Iterable[Any], what: str = "word") -> Names:
        """Make names of integers or strings.

        Raises:
            InputError: the values are neither integers nor strings, or a value is null or repeated.
        """
        array = _as_array("names", values)
        if _are_integers(array.type):
            array = _cast("names", array, pa.int64())
        elif are_strings(array.type) or not len(array):
            array = array.cast(pa.string())
        if not (pa.types.is_int64(array.type) or pa.types.is_string(array.type)) or array.null_count:
            raise InputError(f"names: expected integers or strings without null, got {array.type}")
        if pc.count_distinct(array).as_py() != len(array):
            raise InputError("names: expected distinct names, got duplicates")
        return Names(array, what)

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: Any) -> Any:
        """Return the name at a position, or the list of names in a slice."""
        if isinstance(index, slice):
            return self.named(range(*index.indices(len(self))))
        # Arrow accepts negative indices only within bounds.
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"names: expected a position below {len(self):,}, got {position}")
        return self.values[position].as_py()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values.to_pylist())

    def index(self, name: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the position of a name; raise ValueError if the name is unknown or not in ``[start, stop)``."""
        position = self._find(name)
        if position is None or position not in range(len(self))[start:stop]:
            raise ValueError(f"{name!r:.100} is not among the {self.what} names")
        return position

    def count(self, name: Any) -> int:
        """Return 1 if the name is in the sequence, else 0."""
        return int(name in self)

    def __contains__(self, name: object) -> bool:
        return self._find(name) is not None

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        shared = self.values.to_numpy(zero_copy_only=False)
        array = shared if dtype is None else shared.astype(dtype, copy=False)
        # Arrow's memory is read-only, so ``copy`` makes a writable array.
        return array.copy() if copy and array is shared else array

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:MAX_SHOWN]))
        return f"Names([{shown}{', ...' if len(self) > MAX_SHOWN else ''}], {len(self):,} of {self.values.type})"

    @property
    def are_integers(self) -> bool:
        return pa.types.is_int64(self.values.type)

    def positions(self, names: Any) -> Int64s:
        """Return the positions of names (an Arrow array, or values for one); -1 for null and unknown names.

        Raise InputError for other types, including floats, which may be rounded integers.
        """
        array = _as_array(self.what, names)
        is_valid = _are_integers if self.are_integers else are_strings
        if not (is_valid(array.type) or pa.types.is_null(array.type)):
            kind = "integers" if self.are_integers else "strings"
            raise InputError(f"{self.what}: expected {kind}, the type of the vectors' names, got {array.type}")
        typed = _cast(self.what, array, self.values.type)
        if len(typed) * MAX_NAMES_PER_LOOKUP >= len(self):
            positions = pc.fill_null(pc.index_in(typed, value_set=self.values), -1)
            return positions.to_numpy(zero_copy_only=False).astype(np.int64)
        is_null = typed.is_null().to_numpy(zero_copy_only=False)
        values = pc.fill_null(typed, 0 if self.are_integers else "").to_numpy(zero_copy_only=False)
        return np.where(is_null, -1, self._index.get_indexer(values))

    def position(self, name: Any) -> int:
        """Return the position of a name; raise InputError if the name is unknown."""
        position = self._find(name)
        if position is None:
            raise InputError(f"{self.what}: expected one of the {len(self):,} that have a vector, got {name!r:.100}")
        return position

    def known(self, names: Any) -> Int64s:
        """Return the positions of names; raise InputError if some are unknown, or have another type."""
        positions = self.positions(names)
        missing = np.flatnonzero(positions < 0)
        if len(missing):
            unknown = [_as_array(self.what, names)[int(index)].as_py() for index in missing[:MAX_SHOWN]]
            more = ", ..." if len(missing) > MAX_SHOWN else ""
            raise InputError(
                f"{self.what}: expected some of the {len(self):,} that have a vector, got {len(missing):,} others: "
                f"{', '.join(map(repr, unknown))}{more}"
            )
        return positions

    def named(self, positions: Sequence[int] | Array) -> list[Any]:
        """Return the names at some positions."""
        names: list[Any] = self.values.take(pa.array(np.asarray(positions, np.int64))).to_pylist()
        return names

    def order(self) -> Int64s:
        """Return the positions of the names in ascending order: integers by value, strings by their UTF-8 bytes."""
        if self.are_integers:
            return np.argsort(self.values.to_numpy(), kind="stable")
        return np.asarray(pc.sort_indices(self.values)).astype(np.int64)

    def _find(self, name: object) -> int | None:
        """Return the position of a name; None if it is unknown."""
        if self.are_integers:
            is_valid = is_whole(name) and -(2**63) <= name < 2**63
        else:
            is_valid = isinstance(name, str)
        if not is_valid or name not in self._index:
            return None
        return int(self._index.get_loc(name))

    @cached_property
    def _index(self) -> Any:
        """A hash table of all names, built at first use."""
        import pandas as pd

        return pd.Index(self.values.to_numpy(zero_copy_only=False))

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self.values, "what": self.what}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def _as_array(what: str, values: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):  # list() would split a text
        raise InputError(f"{what}: expected a list of names, got {values!r:.100}")
    try:
        return as_arrow(values if hasattr(values, "dtype") else list(values))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise InputError(f"{what}: expected all integers below 2**63, or all strings: {error}") from error


def _cast(what: str, array: Any, kind: pa.DataType) -> Any:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        raise InputError(f"{what}: expected integers below 2**63: {error}") from error


def _are_integers(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind))


def are_strings(kind: pa.DataType) -> bool:
    """Return True for Arrow's string types."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
