"""Operations of linear models: the search of L-BFGS in the space of centred features.

A feature has ``width`` columns side by side, one for each output, and its mean stands in all of them.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.errors import ShapeError
from ps2.ops.guards import check_same_width, readable
from ps2.ops.kernels import Float64s
from ps2.ops.operands import along
from ps2.ops.table import FLOATS, Array, Floats, Range, Row, op

Width = Annotated[int, Range(at_least=1)]
ByOutput = Annotated[Float64s, along("")]


@op(reduce="sum", dtypes=FLOATS)
def shifts(weight: Row, center: Row, *, width: Width) -> ByOutput:
    """Return of each output the sum over features of mean times weight, shape (width,)."""
    check_same_width(weight, center)
    return (_by_feature(readable(weight), width) * _by_feature(readable(center), width)).sum(axis=0, dtype=np.float64)


@op(writes=("gradient",), dtypes=FLOATS)
def center_gradient(gradient: Row, center: Row, slopes: Floats, *, width: Width) -> None:
    """Subtract from a gradient each feature's mean times the derivatives by the intercepts.

    Args:
        gradient: changed.
        center: means.
        slopes: float64, shape (width,): of each output.
    """
    check_same_width(gradient, center)
    if slopes.shape != (width,):
        raise ShapeError(f"slopes: expected shape ({width},), got {slopes.shape}")
    _by_feature(gradient, width)[:] -= _by_feature(readable(center), width) * slopes


def _by_feature(row: Array, width: int) -> Array:
    if row.size % width:
        raise ShapeError(f"width: expected a divisor of the {row.size} columns, got {width}")
    return row.reshape(-1, width)
