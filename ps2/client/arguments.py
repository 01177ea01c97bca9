"""Checks of what callers pass, before anything is sent: what it was, what was expected, what came."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, Literal

import numpy as np

from ps2.errors import ConfigError, DTypeError, LimitError, OutOfRangeError, ShapeError, UsageError
from ps2.matrix.partition import DTYPES, Int64Array, MatrixSpec
from ps2.ops.table import Array

# One gibibyte of keys; more belongs in several calls.
MAX_KEYS = 1 << 27
Distribution = Literal["uniform", "normal"]
# Their parameters.
_DRAWS = {"uniform": {"low": 0.0, "high": 1.0}, "normal": {"mean": 0.0, "std": 1.0}}
# What rounds to infinity as a float16.
FLOAT16_END = 65520.0


def as_indices(indices: Any) -> Int64Array:
    """Return indices as int64 of shape (n,); ``split`` checks that each is in ``[0, dim)``."""
    array = as_integers("indices", indices)
    if array.ndim != 1:
        raise ShapeError(f"indices: expected one dimension, got shape {array.shape}")
    if array.size > MAX_KEYS:
        raise LimitError(f"indices: at most {MAX_KEYS:,} in one call, got {array.size:,}")
    return array


def as_rows(name: str, rows: Any, count: int) -> Int64Array:
    """Return row numbers as int64 of shape (n,), each in ``[0, count)``."""
    array = as_integers(name, rows)
    if array.ndim != 1:
        raise ShapeError(f"{name}: expected one dimension, got shape {array.shape}")
    if array.size and (array.min() < 0 or array.max() >= count):
        bad = array.min() if array.min() < 0 else array.max()
        at = int(np.argmax(array == bad))
        raise OutOfRangeError(f"{name}: row {bad} (at position {at}) is outside [0, {count})")
    return array


def as_values(values: Any, dtype: np.dtype[Any], shape: tuple[int, ...], name: str = "values") -> Array:
    """Return values as a C-contiguous array of the vector's dtype and of that shape.

    Floats are rounded to float32 and integers made floats where the vector asks for it; floats do not become integers,
    and integers that do not fit are an error.
    """
    if type(values) is np.ndarray and values.dtype == dtype and values.shape == shape and values.flags.c_contiguous:
        return values
    array = as_array(name, values)
    # An empty list has no dtype of its own.
    if array.size and (not np.can_cast(array.dtype, dtype, "same_kind") or array.dtype.kind not in "biuf"):
        raise DTypeError(f"{name}: expected numbers that fit {dtype}, got {array.dtype}")
    if dtype.kind == "i":
        _check_fits(name, array, dtype)
    if array.shape != shape:
        raise ShapeError(f"{name}: expected shape {shape}, got {array.shape}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=dtype)


def _check_fits(name: str, array: Array, dtype: np.dtype[Any]) -> None:
    """Raise DTypeError if an integer is too large, or too small, for a narrower dtype."""
    if not array.size or np.can_cast(array.dtype, dtype):
        return
    ends = np.iinfo(dtype)
    if array.max() > ends.max or array.min() < ends.min:
        at = int(np.argmax((array > ends.max) | (array < ends.min)))
        raise DTypeError(f"{name}: expected numbers that fit {dtype}, got {array.reshape(-1)[at]} (at position {at})")


def as_sent(values: Any, spec: MatrixSpec, shape: tuple[int, ...], name: str = "values") -> Array:
    """Return values as ``as_values`` does, checked to fit what they travel as."""
    array = as_values(values, spec.np_dtype, shape, name)
    if spec.wire == "float16" and array.size:
        size = np.abs(array)
        too_large = (size >= FLOAT16_END) & np.isfinite(size)
        if too_large.any():
            at = int(np.argmax(too_large))
            raise OutOfRangeError(
                f"{name}: {array.reshape(-1)[at]} (at position {at}) does not fit the float16 that "
                "this vector's values travel as; make it with wire='bfloat16'"
            )
    return array


def draw_of(distribution: Distribution, given: Mapping[str, Any]) -> dict[str, float | bool]:
    """Return how numbers are drawn: ``shift + scale * x``, x uniform in [0, 1) or standard normal.

    Args:
        given: "low", "high", "mean" and "std"; None for those that were not given.
    """
    if distribution not in _DRAWS:
        raise ConfigError(f"distribution: expected 'uniform' or 'normal', got {distribution!r}")
    defaults = _DRAWS[distribution]
    found = defaults | {name: value for name, value in given.items() if value is not None}
    for name, value in found.items():
        if name not in defaults:
            raise ConfigError(f"{name}: {distribution!r} takes {' and '.join(defaults)}")
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise ConfigError(f"{name}: expected a finite number, got {value!r}")
    (first, shift), (second, width) = found.items()
    scale = width - shift if distribution == "uniform" else width
    if scale < 0:
        least = f"{first} ({shift!r})" if distribution == "uniform" else "0"
        raise ConfigError(f"{second}: expected {least} or more, got {width!r}")
    return {"shift": shift, "scale": scale, "normal": distribution == "normal"}


def as_target(out: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return the caller's array for an answer, if the answer fits it."""
    if not isinstance(out, np.ndarray) or _is_masked(out):
        raise DTypeError(f"out: expected an array, got {type(out).__name__}")
    if out.dtype != dtype:
        raise DTypeError(f"out: expected an array of {dtype}, got {out.dtype}")
    if out.shape != shape:
        raise ShapeError(f"out: expected shape {shape}, got {out.shape}")
    if not out.flags.writeable:
        raise UsageError("out: the array is read-only")
    return out


def as_array(name: str, given: Any) -> Array:
    """Return what numpy makes of it; a masked array is refused, as what it hides would be read all the same."""
    if _is_masked(given):
        raise UsageError(
            f"{name}: expected a plain array, got a masked one: choose what stands for what is masked, by "
            ".filled(value), or leave it out, by .compressed()"
        )
    try:
        return np.asarray(given)
    except ValueError as error:
        raise ShapeError(f"{name}: expected an array, got what numpy cannot make one of: {error}") from error


def _is_masked(given: Any) -> bool:
    """Tell whether it is a masked array, or a list with one in it."""
    if not isinstance(given, (list, tuple)):
        return isinstance(given, np.ma.MaskedArray)
    kinds = set(map(type, given))  # long lists have few
    if not any(issubclass(kind, (list, tuple, np.ma.MaskedArray)) for kind in kinds):
        return False
    return any(map(_is_masked, given))


def as_integers(name: str, numbers: Any) -> Int64Array:
    """Return whole numbers as int64, of any shape."""
    array = as_array(name, numbers)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind == "f" and np.isnan(array).any():
        at = int(np.argmax(np.isnan(array).reshape(-1)))
        raise DTypeError(f"{name}: expected integers, got NaN (at position {at})")
    if array.dtype.kind not in "iu":
        raise DTypeError(f"{name}: expected integers, got {array.dtype}")
    if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        raise OutOfRangeError(f"{name}: {array.max()} is not below 2**63")
    return np.asarray(array, dtype=np.int64, order="C")  # ascontiguousarray would give a scalar a dimension


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype that vectors may have, or raise DTypeError."""
    try:
        if dtype is None:
            raise TypeError("numpy would take it for float64")
        return np.dtype(dtype).name
    except TypeError as error:
        raise DTypeError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}") from error


def is_number(value: object) -> bool:
    return isinstance(value, Real)
