"""Arrays that a caller gives, of which no element is hidden."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.errors import ShapeError, UsageError


def as_array(name: str, given: Any) -> npt.NDArray[Any]:
    """Return ``given`` as a numpy array. Refuse a masked array, because its hidden values would be read as data."""
    if is_masked(given):
        raise UsageError(
            f"{name}: expected a plain array, got a masked one: replace the masked elements with "
            ".filled(value), or drop them with .compressed()"
        )
    try:
        return np.asarray(given)
    except ValueError as error:
        raise ShapeError(f"{name}: expected an array, but numpy cannot make one of this value: {error}") from error


def is_masked(given: Any) -> bool:
    """Return True if ``given`` is a masked array, or a list that contains one."""
    if not isinstance(given, (list, tuple)):
        return isinstance(given, np.ma.MaskedArray)
    kinds = set(map(type, given))  # a long list has few distinct types
    if not any(issubclass(kind, (list, tuple, np.ma.MaskedArray)) for kind in kinds):
        return False
    return any(map(is_masked, given))
