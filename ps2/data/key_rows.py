"""Rows of (key, value) pairs. Hashing makes them from columns; models with a table of keys are trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ps2.array_types import Float32s, Float64s, Int32s, Int64s
from ps2.data.plain_arrays import as_array
from ps2.errors import DTypeError, InputError, OutOfRangeError, ShapeError


def check_margins(margins: Float32s | Float64s) -> None:
    """Raise InputError if the margin of a row (its values times the weights) is not finite."""
    is_finite = np.isfinite(margins)
    if not is_finite.all():
        raise InputError(
            "values: expected numbers whose products with the weights are finite, got a margin of "
            f"{margins[np.argmin(is_finite)]}: scale them, or lower the learning rate"
        )


@dataclass(frozen=True, eq=False)
class KeyRows:
    """Rows of (key, value) pairs, in CSR form. A key can occur several times in a row.

    Attributes:
        indptr: the bounds of the n rows, int64, shape (n + 1,): row i has the pairs ``indptr[i]:indptr[i + 1]``.
        keys: the key of each pair, in [0, 2**63), int64, shape (pairs,).
        values: the value of each pair, float32, shape (pairs,).
        fields: the field number of each pair, int32, shape (pairs,).
        width: the number of pairs of each row if all rows have the same number, else None. With a width,
            ``keys.reshape(n, width)`` is valid.
    """

    indptr: Int64s
    keys: Int64s
    values: Float32s
    fields: Int32s
    width: int | None = None

    @staticmethod
    def from_keys(keys: npt.ArrayLike) -> KeyRows:
        """Return rows with the same number of keys. All values are 1, and the field of a key is its column.

        Args:
            keys: integers of shape (n, width).

        Raises:
            ShapeError: the keys have another number of dimensions.
            OutOfRangeError: a key is negative, or 2**63 or more.
            UsageError: the keys are a masked array.
        """
        array = as_array("keys", keys)
        if array.ndim != 2 or (array.size and array.dtype.kind not in "iu"):
            raise ShapeError(f"keys: expected integers of shape (n, width), got {array.dtype} of shape {array.shape}")
        if array.size and (array.min() < 0 or int(array.max()) >= 2**63):
            invalid = array.min() if array.min() < 0 else array.max()
            raise OutOfRangeError(f"keys: expected keys in [0, 2**63), got {invalid}")
        n, width = array.shape
        flat = np.ascontiguousarray(array, np.int64).reshape(-1)
        fields = np.tile(np.arange(width, dtype=np.int32), n)
        return KeyRows(np.arange(n + 1) * width, flat, np.ones(n * width, np.float32), fields, width)

    @staticmethod
    def concatenate(parts: Sequence[KeyRows]) -> KeyRows:
        """Return the rows of all parts, in order."""
        parts = [part for part in parts if len(part)]
        if len(parts) == 1:
            return parts[0]
        indptr = np.zeros(1 + sum(map(len, parts)), np.int64)
        row = 0
        for part in parts:
            indptr[row + 1 : row + 1 + len(part)] = part.indptr[1:] + indptr[row]
            row += len(part)
        widths = {part.width for part in parts}
        return KeyRows(
            indptr,
            np.concatenate([np.empty(0, np.int64), *(part.keys for part in parts)]),
            np.concatenate([np.empty(0, np.float32), *(part.values for part in parts)]),
            np.concatenate([np.empty(0, np.int32), *(part.fields for part in parts)]),
            widths.pop() if len(widths) == 1 else None,
        )

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.indptr) - 1

    def check(self) -> None:
        """Raise an error if the arrays are not valid rows, because kernels do not check indices.

        Raises:
            DTypeError: an array has another dtype.
            ShapeError: the arrays' lengths do not match, or ``indptr`` does not ascend from 0 to the number of pairs.
            OutOfRangeError: a key is negative, or a value is not finite.
        """
        for name, dtype in (("indptr", np.int64), ("keys", np.int64), ("values", np.float32), ("fields", np.int32)):
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype != dtype:
                got = getattr(array, "dtype", type(array).__name__)
                raise DTypeError(f"rows: {name}: expected an array of {np.dtype(dtype)}, got {got}")
            if array.ndim != 1:
                raise ShapeError(f"rows: {name}: expected one dimension, got shape {array.shape}")
        pairs, indptr = len(self.keys), self.indptr
        if len(self.values) != pairs or len(self.fields) != pairs:
            raise ShapeError(
                f"rows: expected as many values and fields as keys, got {pairs} keys, {len(self.values)} values and "
                f"{len(self.fields)} fields"
            )
        if not len(indptr) or indptr[0] != 0 or indptr[-1] != pairs or (indptr[1:] < indptr[:-1]).any():
            raise ShapeError(f"rows: indptr: expected integers that ascend from 0 to {pairs}, the number of pairs")
        if pairs and self.keys.min() < 0:
            raise OutOfRangeError(f"keys: expected keys in [0, 2**63), got {self.keys.min()}")
        if not np.isfinite(self.values).all():
            raise OutOfRangeError("rows: expected finite values")

    def take(self, begin: int, end: int) -> KeyRows:
        """Return the rows ``[begin, end)``, as views of these arrays.

        Raises:
            OutOfRangeError: ``[begin, end)`` is not an interval of the rows.
        """
        if not 0 <= begin <= end <= len(self):
            raise OutOfRangeError(f"rows: expected an interval of [0, {len(self)}), got [{begin}, {end})")
        first_pair, end_pair = int(self.indptr[begin]), int(self.indptr[end])
        pairs = slice(first_pair, end_pair)
        indptr = self.indptr[begin : end + 1] - first_pair
        return KeyRows(indptr, self.keys[pairs], self.values[pairs], self.fields[pairs], self.width)

    def distinct(self) -> tuple[Int64s, Int64s]:
        """Return the distinct keys, ascending, and the inverse: the index of each pair's key in the distinct keys."""
        # Imported here: importing numba takes 0.25 s, and scorers of single rows need no kernel.
        from ps2.ops.distinct import find_distinct

        return find_distinct(self.keys)

    def numbered(self) -> tuple[Int64s, Int64s]:
        """Return the same as ``distinct``, but with the keys in the order of their first occurrence; twice as fast."""
        from ps2.ops.distinct import number_distinct

        return number_distinct(self.keys)
