"""Conversion of a caller's values to plain NumPy arrays, without masked elements."""

from __future__ import annotations

import numbers
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.errors import ShapeError, UsageError


def as_array(name: str, value: Any) -> npt.NDArray[Any]:
    """Return a value as a numpy array; raise UsageError for a masked array, because its mask would be lost."""
    if is_masked(value):
        raise UsageError(
            f"{name}: expected a plain array, got a masked array: replace the masked elements with "
            ".filled(value), or drop them with .compressed()"
        )
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ShapeError(f"{name}: expected an array, but numpy cannot convert this value: {error}") from error


def as_numbers(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array of numbers; raise TypeError for a value that is not a number.

    Python objects, which pandas uses for mixed, nullable and Arrow types, become float64, and None and NA become NaN.
    """
    if values.dtype != object:
        if values.dtype.kind not in "biuf":
            raise TypeError(str(values.dtype))
        return values
    types = set(map(type, values.reshape(-1).tolist()))
    null_types = {kind for kind in types if kind is type(None) or kind.__name__ == "NAType"}
    invalid = {kind for kind in types - null_types if not issubclass(kind, (numbers.Real, Decimal, np.bool_))}
    if invalid:
        raise TypeError(repr(next(value for value in values.reshape(-1).tolist() if type(value) in invalid))[:100])
    if null_types:
        is_null = np.frompyfunc(lambda value: type(value) in null_types, 1, 1)(values).astype(bool)
        values = np.where(is_null, np.nan, values)
    try:
        return values.astype(np.float64)
    except OverflowError as error:
        raise TypeError(f"an integer beyond float64: {error}") from error


def is_masked(value: Any) -> bool:
    """Return True for a masked array, or a list that contains a masked array."""
    if not isinstance(value, (list, tuple)):
        return isinstance(value, np.ma.MaskedArray)
    types = set(map(type, value))  # a long list has few distinct types
    if not any(issubclass(kind, (list, tuple, np.ma.MaskedArray)) for kind in types):
        return False
    return any(map(is_masked, value))
