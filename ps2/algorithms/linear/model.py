"""Trained linear models and factorization machines: their weights, and public models that need no Spark or servers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.frame.array_files import KEY, ArrayFiles, ModelFiles, load_metadata
from ps2.algorithms.frame.heads import ClassHead, ValueHead
from ps2.algorithms.frame.row_matrices import finite_rows
from ps2.algorithms.linear.losses import loss_of
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.linear.settings import threshold_of
from ps2.array_types import Float64s, Int64s
from ps2.client.dcv import DCV
from ps2.client.realign import move_to_own_matrix
from ps2.coordinator.context import PS2Context
from ps2.data.rows import columns_of, number_columns
from ps2.errors import BusyError, CheckpointCorruptError, LimitError, ShapeError, StoppedError, UsageError
from ps2.ops.table import Array
from ps2.storage.folders import read_manifest
from ps2.storage.saved_arrays import load_numpy

log = logging.getLogger(__name__)

Head = ClassHead | ValueHead
# The maximum number of weights that are moved into the driver (128 MiB); a model with more stays on the servers.
MAX_IN_DRIVER = 1 << 24
# Spark broadcasts a model of at least this many weights (1 MiB). Smaller ones are pickled with their function.
BROADCAST_FROM = 1 << 17


@dataclass(frozen=True, eq=False)
class KeyedValues:
    """A sparse vector: its nonzero columns ``keys``, int64 and ascending, and their values."""

    keys: Int64s
    values: Array

    def pull(self, columns: Int64s) -> Array:
        """Return the values of columns, 0 where none is stored, as ``DCV.pull`` does."""
        result = np.zeros(len(columns), self.values.dtype)
        if len(self.keys):
            positions = np.minimum(np.searchsorted(self.keys, columns), len(self.keys) - 1)
            is_stored = self.keys[positions] == columns
            result[is_stored] = self.values[positions[is_stored]]
        return result


@dataclass(frozen=True, eq=False)
class Weights(ArrayFiles):
    """The weights of a model; picklable. A vector on servers is saved in the folder ``weight``.

    Attributes:
        weight: float64, shape (dim, width); or a sparse vector or DCV of dim * width columns, feature by feature.
        biases: float64, shape (biases,).
    """

    _FILES = ModelFiles("ps2.model.v1", "a model", {"biases": "f", "weight": "f"}, {"problem": Problem.from_json})

    problem: Problem
    weight: Float64s | DCV | KeyedValues
    biases: Float64s

    @staticmethod
    def from_servers(problem: Problem, weight: DCV, biases: Float64s) -> Weights:
        """Move trained weights into the driver, or to a new matrix if they are too many; free the old vector."""
        if problem.size > MAX_IN_DRIVER:
            return Weights(problem, _move(weight), biases)
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
    def is_light(self) -> bool:
        return isinstance(self.weight, DCV) or self.problem.size < BROADCAST_FROM

    def array(self, name: str) -> Float64s:
        """Return the weights, shape (dim, width); raise UsageError, whose text starts with ``name``, for a vector."""
        if isinstance(self.weight, DCV):
            raise UsageError(
                f"{name}: the model has {self.problem.size:,} weights, more than the {MAX_IN_DRIVER:,} "
                "that the driver holds; weightVector is the vector on the servers"
            )
        if isinstance(self.weight, KeyedValues):
            raise UsageError(
                f"{name}: {len(self.weight.keys):,} of the model's {self.problem.size:,} weights were saved, by key; "
                "ps2.load_numpy(path + '/weight') returns keys and values"
            )
        return self.weight

    def margins(self, x: sp.csr_array) -> Float64s:
        """Compute margins of rows, shape (n, outputs), before any link function; pull only the rows' features."""
        problem = self.problem
        if x.shape[1] != problem.dim:
            raise ShapeError(f"features: expected {problem.dim} as in training, got rows of {x.shape[1]}")
        if isinstance(self.weight, np.ndarray):
            w: Array = self.weight.reshape(-1)
        else:
            keys, inverse = number_columns(x.indices)
            x = sp.csr_array((x.data, inverse, x.indptr), shape=(x.shape[0], len(keys)))
            w = self._pull(columns_of(keys, problem.width)) if len(keys) else np.empty(0)
            problem = replace(problem, dim=len(keys))
        return np.asarray(loss_of(problem).margins(x, w, self.biases)).reshape(x.shape[0], problem.outputs)

    def centred(self) -> Weights:
        """Return an equivalent model whose intercepts have mean 0 over classes, as in pyspark.ml.

        Without penalties, weights get mean 0 as well. A constant added to all classes changes no probability. Weights
        on servers already have mean 0: they start there, and gradients have mean 0.
        """
        biases, weight = self.biases, self.weight
        if self.problem.fit_intercept and np.isfinite(biases).all():
            biases = biases - biases.mean()
        if self.problem.l1 == self.problem.l2 == 0 and isinstance(weight, np.ndarray):
            weight = weight - weight.mean(axis=1, keepdims=True)
        return Weights(self.problem, weight, biases)

    def _pull(self, columns: Int64s) -> Array:
        assert not isinstance(self.weight, np.ndarray)
        try:
            return np.asarray(self.weight.pull(columns))
        except StoppedError as error:
            raise StoppedError(
                f"the model's {self.problem.size:,} weights are on servers that are gone; save() it before stop(), "
                "and load() it in an active PS2Context"
            ) from error

    def write(self, url: str) -> dict[str, Any]:
        content = super().write(url)
        if isinstance(self.weight, DCV):
            self.weight.save(f"{url}/weight")
        return content

    def _arrays_to_write(self) -> dict[str, Any]:
        arrays = super()._arrays_to_write()
        return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}

    @classmethod
    def _arrays_to_read(cls, content: Any, values: Mapping[str, Any]) -> dict[str, str]:
        return {name: kinds for name, kinds in cls._FILES.arrays.items() if f"{name}.npy" in content["files"]}

    @classmethod
    def _from_files(cls, path: str, url: str, arrays: dict[str, Any], values: dict[str, Any]) -> Weights:
        problem: Problem = values["problem"]
        shapes = {"biases": (problem.biases,), "weight": (problem.dim, problem.width)}
        for name, array in arrays.items():
            if array.shape != shapes[name]:
                raise CheckpointCorruptError(f"{path}/{name}.npy: expected shape {shapes[name]}, got {array.shape}")
            arrays[name] = np.asarray(array, np.float64)
        weight = arrays["weight"] if "weight" in arrays else cls._load_vector(path, url, problem)
        return Weights(problem, weight, arrays["biases"])

    @classmethod
    def _load_vector(cls, path: str, url: str, problem: Problem) -> Any:
        """Load weights that servers wrote onto the servers of the active context, and return them."""
        if PS2Context.getActive() is None:
            raise StoppedError(
                f"{path}: the model has {problem.size:,} weights, which belong on servers; start them with "
                "PS2Context.getOrCreate(spark) first"
            )
        vector = DCV.load(f"{url}/weight")
        _check_size(path, problem, vector.dim)
        return vector


class WeightsInMemory(Weights):
    """Weights whose ``read`` loads a vector that servers wrote into this process."""

    @classmethod
    def _load_vector(cls, path: str, url: str, problem: Problem) -> Any:
        saved = load_numpy(f"{url}/weight")
        if isinstance(saved, tuple):
            _check_size(path, problem, read_manifest(f"{url}/weight").matrices[0].spec.dim)
            return KeyedValues(*saved)
        _check_size(path, problem, saved.size)
        return saved.reshape(problem.dim, problem.width)


def _check_size(path: str, problem: Problem, size: int) -> None:
    if size != problem.size:
        raise CheckpointCorruptError(f"{path}/weight: expected {problem.size} weights, got {size}")


def _move(weight: DCV) -> DCV:
    """Move a vector out of the training's matrix, which is large; if there is too little memory, return the vector."""
    try:
        return move_to_own_matrix(weight)
    except (LimitError, BusyError) as error:
        log.warning("the model keeps the memory of its training, as the servers have no room to move it: %s", error)
        return weight


class _Predictor:
    """Predicts from arrays with loaded weights; picklable."""

    def __init__(self, weights: Weights, head: Head) -> None:
        self._weights = weights
        self._head = head

    def __repr__(self) -> str:
        return f"{type(self).__name__}(loss={self._weights.problem.loss!r}, features={self.dim})"

    @property
    def dim(self) -> int:
        """Number of features."""
        return self._weights.problem.dim

    @property
    def classes(self) -> int | None:
        """Number of classes; None for regression."""
        return self._weights.problem.classes

    def margins(self, x: Any) -> Float64s:
        """Compute the margins of rows, before any link function: the decision scores.

        Args:
            x: shape (n, features), NumPy, scipy CSR or pandas; finite numbers.

        Returns:
            float64, shape (n, 1): the value, or for two classes the score of class 1; for a multinomial model, shape
            (n, classes).

        Raises:
            ShapeError, DTypeError: x is not such a matrix.
            InputError: a value is not finite; the message names its row.
        """
        return self._weights.margins(sp.csr_array(finite_rows("x", x, self.dim)))

    def predict(self, x: Any) -> Float64s:
        """Return the predicted classes, by the saved thresholds, or values, float64, shape (n,); see ``margins``."""
        return self._head.prediction(self._head.raw(self.margins(x)))

    def predictProbability(self, x: Any) -> Float64s | None:
        """Return each class's probability, float64, shape (n, classes); None: the model has none; see ``margins``."""
        return self._head.probability(self._head.raw(self.margins(x)))


class LinearModel(_Predictor):
    """A trained ``LogisticRegression``, ``LinearSVC`` or ``LinearRegression``; picklable.

    Example::

        model = LinearModel.load("models/clicks")
        model.predict(X)  # NumPy or scipy CSR
    """

    @staticmethod
    def load(path: str) -> LinearModel:
        """Read a model that ``model.save(path)`` of an estimator's model wrote.

        If the model's weights were on servers, this process reads the files that the servers wrote: all weights of a
        dense vector, or the keys and values of a sparse one. They must fit into its memory.

        Args:
            path: folder, local or a URL that fsspec knows.

        Raises:
            CheckpointMissingError: the folder holds no model.
            UsageError: it is another model, such as a factorization machine, or of an unknown version.
            CheckpointCorruptError: the files do not match the metadata.
        """
        return LinearModel(*_load(path, "LinearModel", "FactorizationMachine", is_fm=False))

    @property
    def coefficients(self) -> Float64s:
        """Weights of the features, shape (1, features), or (classes, features) of a multinomial model.

        Raises:
            UsageError: the weights were a sparse vector on servers; ``ps2.load_numpy`` reads its keys and values.
        """
        return self._weights.array("coefficients").T

    @property
    def intercepts(self) -> Float64s:
        """Intercepts, shape (1,), or (classes,) of a multinomial model."""
        return self._weights.biases[: self._weights.problem.outputs]


class FactorizationMachine(_Predictor):
    """A trained ``FMClassifier`` or ``FMRegressor``; picklable.

    Example::

        machine = FactorizationMachine.load("models/ratings")
        machine.predict(X)  # NumPy or scipy CSR
    """

    @staticmethod
    def load(path: str) -> FactorizationMachine:
        """Read a model that ``model.save(path)`` of an estimator's model wrote; see ``LinearModel.load``."""
        return FactorizationMachine(*_load(path, "FactorizationMachine", "LinearModel", is_fm=True))

    @property
    def intercept(self) -> float:
        """Intercept."""
        return float(self._weights.biases[0])

    @property
    def linear(self) -> Float64s:
        """Linear weights of the features, shape (features,); raises like ``LinearModel.coefficients``."""
        return self._weights.array("linear")[:, 0]

    @property
    def factors(self) -> Float64s:
        """Factors, shape (features, factorSize); raises like ``LinearModel.coefficients``."""
        return self._weights.array("factors")[:, 1:]


def _load(path: str, name: str, other_name: str, is_fm: bool) -> tuple[Weights, Head]:
    metadata = load_metadata(path)
    weights = WeightsInMemory.read(path, path, metadata.get(KEY))
    if weights.problem.loss.startswith("fm") != is_fm:
        raise UsageError(f"{path}: {name} cannot read a {metadata.get('class')}; {other_name}.load(path) reads it")
    params = {**metadata.get("defaultParamMap", {}), **metadata.get("paramMap", {})}
    return weights, head_of(weights.problem, params)


def head_of(problem: Problem, params: Mapping[str, Any]) -> Head:
    """Return the function from margins to predictions, by pyspark.ml's rules, for a model's params with defaults."""
    thresholds = tuple(params["thresholds"]) if params.get("thresholds") else None
    if problem.classes is None:
        return ValueHead()
    if problem.loss == "softmax":
        return ClassHead(problem.width, "softmax", thresholds=thresholds)
    if problem.loss == "fmLogistic":
        return ClassHead(2, "logistic", thresholds=thresholds)
    if problem.loss == "logistic":
        threshold = threshold_of(thresholds) if thresholds else params.get("threshold", 0.5)
        return ClassHead(2, "logistic", threshold=threshold)
    return ClassHead(2, None, threshold=params.get("threshold", 0.0))
