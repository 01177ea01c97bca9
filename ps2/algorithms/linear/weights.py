"""The weights of a trained model: arrays in the driver, or vectors that stay on the fleet."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.linear.losses.choice import loss_of
from ps2.algorithms.linear.parameters import columns_of
from ps2.algorithms.linear.problem import Problem
from ps2.array_types import Float64s, Int64s
from ps2.client.dcv import DCV
from ps2.client.realign import moved_alone
from ps2.data.rows import number_columns
from ps2.errors import BusyError, LimitError, ShapeError, StoppedError, UsageError

log = logging.getLogger(__name__)


# Models of more weights stay on the servers: 128 MiB.
MAX_IN_DRIVER = 1 << 24
# Smaller ones travel with the function that uses them.
BROADCAST_FROM = 1 << 17


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of a model; picklable.

    Attributes:
        problem: the objective that they minimize.
        weight: float64, shape (dim, width); or a vector of dim * width columns on the fleet, feature by feature.
        biases: float64, shape (biases,).
    """

    problem: Problem
    weight: Float64s | DCV
    biases: Float64s

    @staticmethod
    def of(problem: Problem, weight: DCV, biases: Float64s) -> Weights:
        """Take over trained weights: into the driver if they are few, else into a matrix of their own.

        Those of the training, and their memory on the servers, go.
        """
        if problem.size > MAX_IN_DRIVER:
            return Weights(problem, _alone(weight), biases)
        pulled = _pulled(weight)
        weight.free()
        return Weights(problem, pulled.reshape(problem.dim, problem.width), biases)

    @property
    def dim(self) -> int:
        return self.problem.dim

    @property
    def classes(self) -> int | None:
        return self.problem.classes

    @property
    def takes_missing(self) -> bool:
        return False

    @property
    def is_light(self) -> bool:
        return isinstance(self.weight, DCV) or self.problem.size < BROADCAST_FROM

    def array(self, what: str) -> Float64s:
        """Return the weights of shape (dim, width).

        Args:
            what: the name of the requested value, for messages.

        Raises:
            UsageError: they are too many.
        """
        if isinstance(self.weight, DCV):
            raise UsageError(
                f"{what}: the model has {self.problem.size:,} weights, and up to {MAX_IN_DRIVER:,} are held in the "
                "driver; they are on the servers, weightVector pulls from there"
            )
        return self.weight

    def margins(self, x: sp.csr_array) -> Float64s:
        """Compute margins of rows, before any link function; pulls only the weights of their features.

        Args:
            x: float64, shape (n, dim).

        Returns:
            Shape (n, outputs): 1 output, or one a class.

        Raises:
            ShapeError: the rows have another number of features.
        """
        if isinstance(self.weight, DCV):
            return margins_by_key(self.problem, self.biases, x, self._pull)
        _check_features(self.problem, x)
        return _margins(self.problem, x, self.weight.reshape(-1), self.biases)

    def centred(self) -> Weights:
        """Return the same model with intercepts of mean 0 over the classes and, where no penalty has chosen them,
        weights of mean 0, as pyspark.ml does: adding the same to all classes changes nothing.

        Weights on the fleet are as they are: where they begin at 0, gradients keep their mean there.
        """
        biases, weight = self.biases, self.weight
        if self.problem.fit_intercept and np.isfinite(biases).all():
            biases = biases - biases.mean()
        if self.problem.l1 == self.problem.l2 == 0 and not isinstance(weight, DCV):
            weight = weight - weight.mean(axis=1, keepdims=True)
        return Weights(self.problem, weight, biases)

    def _pull(self, columns: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        assert isinstance(self.weight, DCV)
        try:
            return np.asarray(self.weight.pull(columns))
        except StoppedError as error:
            raise StoppedError(
                f"the model's {self.problem.size:,} weights are on servers that are gone; save() it before stop(), "
                "and load() it in an active PS2Context"
            ) from error


@dataclass(frozen=True, eq=False)
class KeyedWeights:
    """The weights of a model that were a sparse vector on the fleet; picklable.

    Attributes:
        keys: the columns of ``Weights.weight`` that have a weight, int64, ascending, shape (n,); the others are 0.
        values: shape (n,).
        biases: float64, shape (biases,).
    """

    problem: Problem
    keys: Int64s
    values: npt.NDArray[Any]
    biases: Float64s

    def array(self, what: str) -> Float64s:
        """Raise UsageError: the array of all weights may not fit into memory."""
        raise UsageError(
            f"{what}: {len(self.keys):,} of the model's {self.problem.size:,} weights were saved, by key; "
            "ps2.load_numpy(path + '/weight') returns keys and values"
        )

    def margins(self, x: sp.csr_array) -> Float64s:
        """Compute margins of rows, like ``Weights.margins``."""
        return margins_by_key(self.problem, self.biases, x, self._pull)

    def _pull(self, columns: Int64s) -> npt.NDArray[Any]:
        weights = np.zeros(len(columns), self.values.dtype)
        if len(self.keys):
            positions = np.minimum(np.searchsorted(self.keys, columns), len(self.keys) - 1)
            is_stored = self.keys[positions] == columns
            weights[is_stored] = self.values[positions[is_stored]]
        return weights


def margins_by_key(
    problem: Problem, biases: Float64s, x: sp.csr_array, pull: Callable[[Int64s], npt.NDArray[Any]]
) -> Float64s:
    """Compute margins of rows with the weights of their features alone; see ``Weights.margins``.

    Args:
        pull: returns the weights at columns.
    """
    _check_features(problem, x)
    keys, inverse = number_columns(x.indices)
    x = sp.csr_array((x.data, inverse, x.indptr), shape=(x.shape[0], len(keys)))
    w = pull(columns_of(keys, problem.width)) if len(keys) else np.empty(0)
    return _margins(replace(problem, dim=x.shape[1]), x, w, biases)


def _margins(problem: Problem, x: sp.csr_array, w: npt.NDArray[Any], biases: Float64s) -> Float64s:
    return np.asarray(loss_of(problem).margins(x, w, biases)).reshape(x.shape[0], problem.outputs)


def _check_features(problem: Problem, x: sp.csr_array) -> None:
    if x.shape[1] != problem.dim:
        raise ShapeError(f"features: expected {problem.dim} as in training, got rows of {x.shape[1]}")


def _alone(weight: DCV) -> DCV:
    """Move a vector out of the training's matrix, which has tens of rows; without room it stays there."""
    try:
        return moved_alone(weight)
    except (LimitError, BusyError) as error:
        log.warning("the model keeps the memory of its training, as the servers have no room to move it: %s", error)
        return weight


def _pulled(weight: DCV) -> Float64s:
    """Read a whole vector."""
    if not weight.isSparse:
        return np.asarray(weight.pull(), np.float64)
    keys, values = weight.pull()
    whole = np.zeros(weight.dim)
    whole[keys] = values
    return whole
