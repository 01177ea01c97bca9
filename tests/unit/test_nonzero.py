"""Where a row is not 0, in order."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ps2.matrix.partition import DTYPES
from ps2.ops.nonzero import nonzero


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [0, 1, 63, 64, 65, 1000])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.5, 1.0])
def test_nonzero_when_called_then_equals_flatnonzero(dtype, width, density):
    row = (np.random.default_rng(width).random(width) < density).astype(dtype) * np.dtype(dtype).type(5)
    columns = nonzero(row)
    assert columns.tolist() == np.flatnonzero(row).tolist()
    assert columns.dtype == np.int64


def test_nonzero_when_row_has_nan_and_minus_zero_then_finds_nan():
    assert nonzero(np.array([math.nan, -0.0, 0.0, math.inf])).tolist() == [0, 3]
