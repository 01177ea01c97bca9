"""The weights of a trained model: arrays in the driver, or vectors that stay on the fleet."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.linear.losses import loss_of
from ps2.algorithms.linear.parameters import columns_of
from ps2.algorithms.linear.plan import Problem
from ps2.array_types import Float64s, Int64s
from ps2.client.dcv import DCV
from ps2.client.realign import moved_alone
from ps2.data.rows import number_columns
from ps2.errors import BusyError, LimitError, ShapeError, StoppedError, UsageError
from ps2.ops.table import Array

log = logging.getLogger(__name__)


# Models of more weights stay on the servers: 128 MiB.
MAX_IN_DRIVER = 1 << 24
# Smaller ones travel with the function that uses them.
BROADCAST_FROM = 1 << 17


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of a model; picklable.

    Attributes:
        weight: float64, shape (dim, width); or a vector of dim * width columns on the fleet, feature by feature.
        biases: float64, shape (biases,).
    """

    problem: Problem
    weight: Float64s | DCV
    biases: Float64s

    @staticmethod
    def of(problem: Problem, weight: DCV, biases: Float64s) -> Weights:
        """Move trained weights into the driver if they are few, else into a matrix of their own; free the old ones."""
        if problem.size > MAX_IN_DRIVER:
            return Weights(problem, _moved(weight), biases)
        if weight.isSparse:
            keys, values = weight.pull()
            array = np.zeros(weight.dim)
            array[keys] = values
        else:
            array = np.asarray(weight.pull(), np.float64)
        weight.free()
        return Weights(problem, array.reshape(problem.dim, problem.width), biases)

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
        """Return the weights, shape (dim, width); raise UsageError, which names ``what``, if they are too many."""
        if isinstance(self.weight, DCV):
            raise UsageError(
                f"{what}: the model has {self.problem.size:,} weights, and up to {MAX_IN_DRIVER:,} are held in the "
                "driver; they are on the servers, weightVector pulls from there"
            )
        return self.weight

    def margins(self, x: sp.csr_array) -> Float64s:
        """Compute margins of rows, shape (n, outputs), before any link function; pull their features' weights alone."""
        if isinstance(self.weight, DCV):
            return margins_by_key(self.problem, self.biases, x, self._pull)
        _check_features(self.problem, x)
        return _margins(self.problem, x, self.weight.reshape(-1), self.biases)

    def centred(self) -> Weights:
        """Return the same model with intercepts and, without penalties, weights of mean 0 over classes, as pyspark.ml.

        A number added to all classes changes nothing. Weights on the fleet stay: gradients keep their initial mean, 0.
        """
        biases, weight = self.biases, self.weight
        if self.problem.fit_intercept and np.isfinite(biases).all():
            biases = biases - biases.mean()
        if self.problem.l1 == self.problem.l2 == 0 and not isinstance(weight, DCV):
            weight = weight - weight.mean(axis=1, keepdims=True)
        return Weights(self.problem, weight, biases)

    def _pull(self, columns: Int64s) -> Array:
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
        keys: the columns of ``Weights.weight`` that are not 0, int64, ascending, shape (n,).
        values: shape (n,).
        biases: float64, shape (biases,).
    """

    problem: Problem
    keys: Int64s
    values: Array
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

    def _pull(self, columns: Int64s) -> Array:
        weights = np.zeros(len(columns), self.values.dtype)
        if len(self.keys):
            positions = np.minimum(np.searchsorted(self.keys, columns), len(self.keys) - 1)
            is_stored = self.keys[positions] == columns
            weights[is_stored] = self.values[positions[is_stored]]
        return weights


def margins_by_key(problem: Problem, biases: Float64s, x: sp.csr_array, pull: Callable[[Int64s], Array]) -> Float64s:
    """Compute margins of rows with the weights of their features alone, which ``pull`` returns by column."""
    _check_features(problem, x)
    keys, inverse = number_columns(x.indices)
    x = sp.csr_array((x.data, inverse, x.indptr), shape=(x.shape[0], len(keys)))
    w = pull(columns_of(keys, problem.width)) if len(keys) else np.empty(0)
    return _margins(replace(problem, dim=x.shape[1]), x, w, biases)


def _margins(problem: Problem, x: sp.csr_array, w: Array, biases: Float64s) -> Float64s:
    return np.asarray(loss_of(problem).margins(x, w, biases)).reshape(x.shape[0], problem.outputs)


def _check_features(problem: Problem, x: sp.csr_array) -> None:
    if x.shape[1] != problem.dim:
        raise ShapeError(f"features: expected {problem.dim} as in training, got rows of {x.shape[1]}")


def _moved(weight: DCV) -> DCV:
    """Move a vector out of the training's matrix, which has tens of rows; without memory for that it stays there."""
    try:
        return moved_alone(weight)
    except (LimitError, BusyError) as error:
        log.warning("the model keeps the memory of its training, as the servers have no room to move it: %s", error)
        return weight
