"""Numbers of features as vectors of pyspark."""

from __future__ import annotations

import numpy as np
from pyspark.ml.linalg import Vector, Vectors

from ps2.array_types import Float64s


def as_sparse(numbers: Float64s) -> Vector:
    """Return a sparse vector of those that are not 0."""
    some = np.flatnonzero(numbers)
    return Vectors.sparse(len(numbers), some.tolist(), numbers[some].tolist())
