"""Trained linear models and factorization machines, usable without Spark and servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.frame.array_files import KEY, load_metadata, read_array, reading, write_arrays
from ps2.algorithms.frame.heads import ClassHead, ValueHead
from ps2.algorithms.frame.row_matrices import finite_rows
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.linear.settings import threshold_of
from ps2.algorithms.linear.weights import KeyedWeights, Weights
from ps2.array_types import Float64s
from ps2.client.dcv import DCV
from ps2.coordinator.context import PS2Context
from ps2.errors import CheckpointCorruptError, StoppedError, UsageError
from ps2.storage.folders import read_manifest
from ps2.storage.saved_arrays import load_numpy

Head = ClassHead | ValueHead
FORMAT = "ps2.model.v1"


class _Predictor:
    """Predictions of arrays by loaded weights; picklable."""

    def __init__(self, weights: Weights | KeyedWeights, head: Head) -> None:
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
        """Number of classes; None: predictions are numbers."""
        return self._weights.problem.classes

    def margins(self, x: Any) -> Float64s:
        """Compute the margins of rows, before any link function: the decision scores.

        Args:
            x: shape (n, features), NumPy, scipy CSR or pandas; finite numbers.

        Returns:
            float64, shape (n, 1): of two classes the score of class 1, or the value; of a multinomial model shape
            (n, classes).

        Raises:
            ShapeError, DTypeError: x is not such a matrix.
            InputError: a number is not finite; the message names its row.
        """
        return self._weights.margins(sp.csr_array(finite_rows("x", x, self.dim)))

    def predict(self, x: Any) -> Float64s:
        """Return classes or values, float64, shape (n,), by the saved thresholds; see ``margins``."""
        return self._head.prediction(self._head.raw(self.margins(x)))

    def predictProbability(self, x: Any) -> Float64s | None:
        """Return each class's probability, float64, shape (n, classes), or None: there is none; see ``margins``."""
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

        Of a model whose weights were on servers, this process reads the files that the servers wrote: all weights of a
        dense vector, the keys and values of a sparse one. They must fit into its memory.

        Args:
            path: folder, local or a URL that fsspec knows.

        Raises:
            CheckpointMissingError: the folder holds no model.
            UsageError: it is another model, such as a factorization machine, or of a version that is not known here.
            CheckpointCorruptError: the files do not match the metadata.
        """
        return LinearModel(*_load(path, "LinearModel", "FactorizationMachine", is_machine=False))

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
        """Read a model that ``model.save(path)`` of an estimator's model wrote; see ``LinearModel.load``.

        Raises:
            CheckpointMissingError: the folder holds no model.
            UsageError: it is another model, such as a linear one, or of a version that is not known here.
            CheckpointCorruptError: the files do not match the metadata.
        """
        return FactorizationMachine(*_load(path, "FactorizationMachine", "LinearModel", is_machine=True))

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


def _load(path: str, name: str, other: str, is_machine: bool) -> tuple[Weights | KeyedWeights, Head]:
    metadata = load_metadata(path)
    weights = read_without_servers(path, path, metadata.get(KEY))
    if weights.problem.loss.startswith("fm") != is_machine:
        raise UsageError(f"{path}: {name} cannot be made of a {metadata.get('class')}; {other}.load(path) reads that")
    params = {**metadata.get("defaultParamMap", {}), **metadata.get("paramMap", {})}
    return weights, head_of(weights.problem, params)


def head_of(problem: Problem, params: Mapping[str, Any]) -> Head:
    """Return the function from margins to predictions, by pyspark.ml's rules.

    Args:
        params: the params of the model, with their defaults.
    """
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


# -- files: ``biases.npy``, and ``weight.npy``, shape (dim, width), or a vector that servers saved, ``weight`` ---------


def write_weights(url: str, weights: Weights) -> dict[str, Any]:
    """Write a model; return its entries for the metadata."""
    arrays = {"biases.npy": weights.biases}
    if not isinstance(weights.weight, DCV):
        arrays["weight.npy"] = weights.weight
    files = write_arrays(url, arrays)
    if isinstance(weights.weight, DCV):
        weights.weight.save(f"{url}/weight")
    return {"format": FORMAT, "problem": asdict(weights.problem), "files": files}


def read_weights(path: str, url: str, content: Any) -> Weights:
    """Read a model.

    Raises:
        UsageError: the version of the format is unknown.
        CheckpointCorruptError: the files do not match the metadata.
        StoppedError: its weights belong on servers, and no PS2Context is active.
    """
    problem, weight, biases = _read_arrays(path, url, content)
    if weight is not None:
        return Weights(problem, weight, biases)
    if PS2Context.getActive() is None:
        raise StoppedError(
            f"{path}: the model has {problem.size:,} weights, which belong on servers; start them with "
            "PS2Context.getOrCreate(spark) first"
        )
    vector = DCV.load(f"{url}/weight")
    _check_size(path, problem, vector.dim)
    return Weights(problem, vector, biases)


def read_without_servers(path: str, url: str, content: Any) -> Weights | KeyedWeights:
    """Read a model's weights as arrays, also those that servers wrote; raises like ``read_weights``."""
    problem, weight, biases = _read_arrays(path, url, content)
    if weight is not None:
        return Weights(problem, weight, biases)
    folder = f"{url}/weight"
    saved = load_numpy(folder)
    if isinstance(saved, tuple):
        keys, values = saved
        _check_size(path, problem, read_manifest(folder).matrices[0].spec.dim)
        return KeyedWeights(problem, keys, values, biases)
    _check_size(path, problem, saved.size)
    return Weights(problem, saved.reshape(problem.dim, problem.width), biases)


def _read_arrays(path: str, url: str, content: Any) -> tuple[Problem, Float64s | None, Float64s]:
    """Return the problem, the weights of a small model (else None), and the biases."""
    with reading(path, content, FORMAT, "a model"):
        problem = Problem(**{field.name: content["problem"][field.name] for field in fields(Problem)})
        files = dict(content["files"])
        biases = _read(path, url, "biases.npy", files, (problem.biases,))
        if "weight.npy" in files:
            return problem, _read(path, url, "weight.npy", files, (problem.dim, problem.width)), biases
    return problem, None, biases


def _check_size(path: str, problem: Problem, size: int) -> None:
    if size != problem.size:
        raise CheckpointCorruptError(f"{path}/weight: expected {problem.size} weights, got {size}")


def _read(path: str, url: str, name: str, files: dict[str, Any], shape: tuple[int, ...]) -> Float64s:
    array = read_array(url, name, files)
    if array.shape != shape:
        raise CheckpointCorruptError(f"{path}/{name}: expected shape {shape}, got {array.shape}")
    return np.asarray(array, np.float64)
