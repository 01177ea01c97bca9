"""Checks of arguments, made in the caller's process before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Literal, TypeVar

import numpy as np

from ps2.array_types import Int64s
from ps2.data.plain_arrays import as_array, is_masked
from ps2.errors import ConfigError, DTypeError, LimitError, OutOfRangeError, ShapeError, UsageError
from ps2.matrix.partition import DTYPES, MatrixSpec
from ps2.ops.table import Array

V = TypeVar("V")

# 1 GiB of int64 keys. Callers split larger sets over several calls.
MAX_KEYS = 1 << 27
Distribution = Literal["uniform", "normal"]
# The parameters of each distribution, with their defaults.
_DISTRIBUTIONS = {"uniform": {"low": 0.0, "high": 1.0}, "normal": {"mean": 0.0, "std": 1.0}}
# Upper bounds of abs(x) for the x of ``random_params``: a standard normal number that is computed from 64 random bits
# stays below 10.
_MAX_MAGNITUDE = {"uniform": 1.0, "normal": 10.0}
# The smallest magnitude that rounds to infinity in each wire dtype.
WIRE_OVERFLOW = {"float16": 65520.0, "bfloat16": (2 - 2.0**-8) * 2.0**127}


def as_indices(indices: Any) -> Int64s:
    """Return indices as int64 of shape (n,). ``SplitCache`` checks later that each is in ``[0, dim)``."""
    array = as_integers("indices", indices)
    if array.ndim != 1:
        raise ShapeError(
            f"indices: expected one dimension, got shape {array.shape}: flatten them by .reshape(-1); "
            "ps2.EmbeddingTable takes keys of any shape"
        )
    if array.size > MAX_KEYS:
        raise LimitError(f"indices: at most {MAX_KEYS:,} in one call, got {array.size:,}")
    return array


def as_rows(name: str, rows: Any, num_rows: int) -> Int64s:
    """Return row ids as int64 of shape (n,), each in ``[0, num_rows)``."""
    array = as_integers(name, rows)
    if array.ndim != 1:
        raise ShapeError(f"{name}: expected one dimension, got shape {array.shape}")
    if array.size and (array.min() < 0 or array.max() >= num_rows):
        bad = array.min() if array.min() < 0 else array.max()
        position = int(np.argmax(array == bad))
        raise OutOfRangeError(f"{name}: row {bad} (at position {position}) is outside [0, {num_rows})")
    return array


def as_values(values: Any, dtype: np.dtype[Any], shape: tuple[int, ...], name: str = "values") -> Array:
    """Return values as a C-contiguous array of the given dtype and shape.

    For a vector of floats, wider floats are rounded and integers are converted. For a vector of integers, floats are
    rejected. Integers outside the dtype's range, and finite floats that would become infinite, raise DTypeError.
    """
    if type(values) is np.ndarray and values.dtype == dtype and values.shape == shape and values.flags.c_contiguous:
        return values
    array = as_array(name, values)
    # numpy makes an empty list float64, so the dtype of an empty array is not checked.
    if array.size and (not np.can_cast(array.dtype, dtype, "same_kind") or array.dtype.kind not in "biuf"):
        raise DTypeError(f"{name}: expected numbers that fit {dtype}, got {array.dtype}")
    if dtype.kind == "i":
        _check_range(name, array, dtype)
    if array.shape != shape:
        raise ShapeError(f"{name}: expected shape {shape}, got {array.shape}")
    try:
        with np.errstate(over="raise"):
            return np.ascontiguousarray(array, dtype=dtype)
    except FloatingPointError:
        with np.errstate(over="ignore"):
            position = int(np.argmax(np.isfinite(array) & np.isinf(array.astype(dtype))))
        raise _does_not_fit(name, array, dtype, position) from None


def _does_not_fit(name: str, array: Array, dtype: np.dtype[Any], position: int) -> DTypeError:
    return DTypeError(
        f"{name}: expected numbers that fit {dtype}, got {array.reshape(-1)[position]} (at position {position})"
    )


def _check_range(name: str, array: Array, dtype: np.dtype[Any]) -> None:
    """Raise DTypeError if an integer is outside the range of ``dtype``."""
    if not array.size or np.can_cast(array.dtype, dtype):
        return
    limits = np.iinfo(dtype)
    if array.max() > limits.max or array.min() < limits.min:
        position = int(np.argmax((array > limits.max) | (array < limits.min)))
        raise _does_not_fit(name, array, dtype, position)


def as_wire_values(values: Any, spec: MatrixSpec, shape: tuple[int, ...], name: str = "values") -> Array:
    """Return values as ``as_values`` does. Raise OutOfRangeError if one does not fit the wire dtype."""
    array = as_values(values, spec.np_dtype, shape, name)
    if spec.wire is not None and array.size:
        magnitudes = np.abs(array)
        too_large = (magnitudes >= WIRE_OVERFLOW[spec.wire]) & np.isfinite(magnitudes)
        if too_large.any():
            position = int(np.argmax(too_large))
            advice = "; create the vector with wire='bfloat16'" if spec.wire == "float16" else ""
            raise OutOfRangeError(
                f"{name}: {array.reshape(-1)[position]} (at position {position}) does not fit {spec.wire}, the "
                f"dtype in which this vector's values are sent{advice}"
            )
    return array


def random_params(
    distribution: Distribution, settings: Mapping[str, Any], dtype: np.dtype[Any]
) -> dict[str, float | bool]:
    """Return the parameters of ``shift + scale * x``, with x uniform in [0, 1) or standard normal.

    ``settings``: values of "low", "high", "mean" and "std"; None if the caller did not pass the parameter.
    """
    if distribution not in _DISTRIBUTIONS:
        raise ConfigError(f"distribution: expected 'uniform' or 'normal', got {distribution!r}")
    defaults = _DISTRIBUTIONS[distribution]
    values = defaults | {name: value for name, value in settings.items() if value is not None}
    for name, value in values.items():
        if name not in defaults:
            raise ConfigError(f"{name}: distribution {distribution!r} takes only {' and '.join(defaults)}")
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise ConfigError(f"{name}: expected a finite number, got {value!r}")
    (shift_name, shift), (second_name, second) = values.items()  # low and high, or mean and std
    scale = second - shift if distribution == "uniform" else second
    if scale < 0:
        minimum = f"{shift_name} ({shift!r})" if distribution == "uniform" else "0"
        raise ConfigError(f"{second_name}: expected {minimum} or more, got {second!r}")
    if dtype.kind == "f" and abs(shift) + scale * _MAX_MAGNITUDE[distribution] > float(np.finfo(dtype).max):
        raise ConfigError(
            f"{shift_name}, {second_name}: expected numbers of {distribution!r} that fit {dtype}, "
            f"got {shift!r}, {second!r}"
        )
    return {"shift": shift, "scale": scale, "normal": distribution == "normal"}


def as_target(out: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return ``out`` if it is a writable array of this dtype and shape; raise an error if it is not."""
    if not isinstance(out, np.ndarray) or is_masked(out):
        raise DTypeError(f"out: expected a numpy array, got {type(out).__name__}")
    if out.dtype != dtype:
        raise DTypeError(f"out: expected an array of {dtype}, got {out.dtype}")
    if out.shape != shape:
        raise ShapeError(f"out: expected shape {shape}, got {out.shape}")
    if not out.flags.writeable:
        raise UsageError("out: the array is read-only")
    return out


def as_integers(name: str, values: Any) -> Int64s:
    """Return integers of any shape as an int64 array of the same shape."""
    array = as_array(name, values)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind == "f" and np.isnan(array).any():
        position = int(np.argmax(np.isnan(array).reshape(-1)))
        raise DTypeError(f"{name}: expected integers, got NaN (at position {position})")
    if array.dtype.kind not in "iu":
        raise DTypeError(f"{name}: expected integers, got {array.dtype}")
    if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        raise OutOfRangeError(f"{name}: expected integers below 2**63, got {array.max()}")
    return np.asarray(array, dtype=np.int64, order="C")  # ascontiguousarray would turn a scalar into shape (1,)


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype that vectors support, or raise DTypeError."""
    try:
        if dtype is None:
            raise TypeError("numpy would read None as float64")
        return np.dtype(dtype).name
    except TypeError as error:
        raise DTypeError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}") from error


def is_number(value: object) -> bool:
    return isinstance(value, Real)


def checked_vectors(kind: type[V], name: str, vectors: Sequence[V]) -> list[V]:
    """Return the vectors as a list; raise ShapeError if it is empty, DTypeError if a vector is not a ``kind``."""
    checked = list(vectors)
    if not checked:
        raise ShapeError(f"{name}: expected one or more vectors, got none")
    for vector in checked:
        if not isinstance(vector, kind):
            raise DTypeError(f"{name}: expected {kind.__name__}s, got {type(vector).__name__}")
    return checked
