"""A model on the fleet: vectors of weights and of biases that are operated on together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.training.checkpoint_names import UNNAMED, CheckpointNames
from ps2.array_types import Float64s, Int64s
from ps2.client.dcv import DCV
from ps2.client.handle import derive_all, free_all

Array = npt.NDArray[Any]

# From this many weights on, vectors are float32, and columns that the rows do not use take no memory, unless a plan
# says otherwise (``all_columns``).
SPARSE_FROM = 1 << 22


@dataclass(frozen=True, eq=False)
class Parameters:
    """A vector in the space of a problem's weights and biases; picklable.

    Attributes:
        weight: a vector of ``dim * width`` columns, feature by feature.
        bias: a float64 vector of a few columns.
        width: the number of weights of a feature.
    """

    weight: DCV
    bias: DCV
    width: int

    @property
    def each(self) -> tuple[DCV, DCV]:
        return self.weight, self.bias

    def zero(self) -> None:
        for vector in self.each:
            vector.zero()

    def copy(self, other: Parameters) -> None:
        """Overwrite this one with the other."""
        for mine, its in zip(self.each, other.each, strict=True):
            mine.copy(its)

    def combine(self, others: Sequence[Parameters], alphas: Sequence[float] | Float64s) -> None:
        """Set this one to ``sum_i alphas[i] others[i]``."""
        self.weight.combine([other.weight for other in others], alphas)
        self.bias.combine([other.bias for other in others], alphas)


class Space:
    """All vectors of one training; its weights are co-located, and so are its biases."""

    def __init__(
        self, problem: Problem, rows: int, names: CheckpointNames = UNNAMED, all_columns: bool = False
    ) -> None:
        """Args:
        rows: the number of vectors to reserve memory for.
        names: the names of the vectors; a later driver asks for them in the same order.
        all_columns: whether vectors hold all columns, however many there are.

        Raises:
            NotFoundError: a vector of an earlier driver is not there.
        """
        self._problem, self._names = problem, names
        self._bias = names.give(lambda name: DCV.dense(problem.biases, rows, "float64", name=name))
        self._is_dense = all_columns or problem.size < SPARSE_FROM
        if self._is_dense:
            dtype = "float64" if problem.size < SPARSE_FROM else "float32"
            self._weight = names.give(lambda name: DCV.dense(problem.size, rows, dtype, align=problem.width, name=name))
        else:
            self._weight = names.give(lambda name: DCV.sparse(problem.size, rows, "float32", name=name))
        # Handles that travel to workers are freed only here.
        self._vectors = [self._bias, self._weight]

    def new(self) -> Parameters:
        """Make zeros."""
        return self.several(1)[0]

    def several(self, count: int) -> list[Parameters]:
        """Make several vectors of zeros by one call."""
        weights, biases = self._derive(self._weight, count), self._derive(self._bias, count)
        self._vectors += [*weights, *biases]
        return [Parameters(w, b, self._problem.width) for w, b in zip(weights, biases, strict=True)]

    def weight(self) -> DCV:
        """Make zeros for weights alone."""
        self._vectors += self._derive(self._weight, 1)
        return self._vectors[-1]

    def features(self, count: int) -> list[DCV]:
        """Make float64 zeros for features, co-located with each other alone."""
        make = DCV.dense if self._is_dense else DCV.sparse
        first = self._names.give(lambda name: make(self._problem.dim, count, "float64", name=name))
        vectors = [first, *self._derive(first, count - 1)]
        self._vectors += vectors
        return vectors

    def small(self, columns: int) -> DCV:
        """Make a short float64 vector of zeros."""
        self._vectors.append(self._names.give(lambda name: DCV.dense(columns, 1, "float64", name=name)))
        return self._vectors[-1]

    def free(self, keep: DCV | None = None) -> None:
        """Free all vectors but one, which another call may free."""
        free_all(vector for vector in self._vectors if vector is not keep)
        self._vectors = [] if keep is None else [keep]

    def _derive(self, vector: DCV, count: int) -> list[DCV]:
        """Make zeros that are co-located with a vector."""
        if not self._names.prefix:
            return derive_all(vector, count)
        return [self._names.give(vector.derive) for _ in range(count)]


def gram(left: Sequence[Parameters], right: Sequence[Parameters]) -> Callable[[], Float64s]:
    """Request inner products within ``batch()``; the returned function returns them after it."""
    weights = DCV.gram([one.weight for one in left], [one.weight for one in right])
    biases = DCV.gram([one.bias for one in left], [one.bias for one in right])
    return lambda: weights.result() + biases.result()


def columns_of(keys: Int64s, width: int) -> Int64s:
    """Return the columns of features: shape (len(keys) * width,), feature by feature."""
    if width == 1:
        return keys
    return (keys[:, None] * width + np.arange(width)).reshape(-1)
