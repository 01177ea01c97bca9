"""Checks whether an argument is a number: NumPy's scalars count as numbers, True and False do not."""

from __future__ import annotations

from typing import TypeGuard

import numpy as np


def is_whole(value: object) -> TypeGuard[int]:
    """Return True for an integer of Python or NumPy."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return True for an integer or a float of Python or NumPy; NaN and infinity are among them."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
