"""Logistic regression with Adam on DCVs (paper, sections 3.3 and 5.2.1, Figure 3)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.dataset import Dataset
from ps2.algorithms.logistic_math import LocalBlock, compact, evaluate, gradient, sample_rows
from ps2.client.dcv import DCV
from ps2.client.storage import read_values
from ps2.errors import CheckpointMissingError, ConfigError, ShapeError

MODEL_FILE = "model.json"
WEIGHTS_FOLDER = "weights"
# weight, velocity, square, gradient
ROWS = 4


@dataclass(frozen=True)
class LRConfig:
    """How to train.

    Attributes:
        steps: model updates.
        fraction: share of the rows that each step samples, in (0, 1].
        lr: Adam's learning rate.
        seed: of the sampling.
        intercept: whether the model has a constant term.
    """

    steps: int = 200
    fraction: float = 0.1
    lr: float = 0.05
    seed: int = 0
    intercept: bool = True

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"steps: expected at least 1, got {self.steps}")
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"fraction: expected a number in (0, 1], got {self.fraction}")
        if not (self.lr > 0 and np.isfinite(self.lr)):
            raise ConfigError(f"lr: expected a positive number, got {self.lr}")


@dataclass(frozen=True)
class Measure:
    """Mean log-loss and share of right predictions over ``rows`` rows."""

    rows: int
    loss: float
    accuracy: float


@dataclass(frozen=True)
class Step:
    """One step: its number from 1, how its minibatch did before the update, seconds since the training began."""

    number: int
    minibatch: Measure
    seconds: float


@dataclass(frozen=True)
class LogisticModel:
    """A trained model in this process.

    Attributes:
        weights: float32, shape (features,).
        intercept: the constant term.
        classes: the label of class 0 and that of class 1.
    """

    weights: npt.NDArray[np.float32]
    intercept: float
    classes: tuple[float, float]

    def predict_probability(self, x: sp.csr_array) -> npt.NDArray[np.float64]:
        """Return the probability of class 1 of each row, float64 of shape (n,).

        Args:
            x: scipy CSR (or dense) of shape (n, features).
        """
        if x.shape[1] != len(self.weights):
            raise ShapeError(f"x: expected {len(self.weights)} columns, got {x.shape[1]}")
        margin = np.asarray(x @ self.weights.astype(np.float64)).reshape(-1) + self.intercept
        return np.exp(-np.logaddexp(0.0, -margin))

    def predict(self, x: sp.csr_array) -> npt.NDArray[np.float64]:
        """Return the label of the more probable class of each row, float64 of shape (n,)."""
        return np.where(self.predict_probability(x) > 0.5, self.classes[1], self.classes[0])

    @staticmethod
    def load(url: str) -> LogisticModel:
        """Read what ``Training.save`` wrote; needs neither Spark nor a fleet."""
        fs, root = fsspec.core.url_to_fs(url)
        try:
            with fs.open(f"{root}/{MODEL_FILE}", "r") as file:
                described = json.load(file)
        except FileNotFoundError as error:
            raise CheckpointMissingError(f"{url}: there is no {MODEL_FILE} here, so no saved model") from error
        values = read_values(f"{url.rstrip('/')}/{WEIGHTS_FOLDER}")
        features = described["features"]
        constant = float(values[features]) if described["intercept"] else 0.0
        return LogisticModel(values[:features], constant, (described["classes"][0], described["classes"][1]))


class Training:
    """Logistic regression under way: the model's vectors on the fleet, and the rows in Spark's cache."""

    def __init__(self, ps: Any, data: Dataset, config: LRConfig) -> None:
        self._ps = ps
        self._data = data
        self._config = config
        self._weight = DCV.dense(data.features + int(config.intercept), ROWS)
        self._velocity = self._weight.derive()
        self._square = self._weight.derive()
        self._gradient = self._weight.derive()

    def run(self, on_step: Callable[[Step], None] = lambda step: None) -> list[Step]:
        """Train; call ``on_step`` after each step; return all of them."""
        began_s = time.monotonic()
        steps: list[Step] = []
        for number in range(1, self._config.steps + 1):
            minibatch = self._step(number)
            steps.append(Step(number, minibatch, time.monotonic() - began_s))
            on_step(steps[-1])
        return steps

    def evaluate(self, data: Dataset) -> Measure:
        """Measure the model on all rows of a data set with the same features."""
        weight = self._weight

        def measure(blocks: Iterator[LocalBlock]) -> Iterator[tuple[int, float, int]]:
            for block in blocks:
                x = sp.csr_array((block.values, block.columns, block.indptr), shape=(len(block.y), len(block.keys)))
                yield len(block.y), *evaluate(x, block.y, weight.pull(block.keys))

        return _measure(data.blocks.mapPartitions(measure).collect())

    def model(self) -> LogisticModel:
        """Pull the model into this process."""
        values = self._weight.pull()
        features = self._data.features
        constant = float(values[features]) if self._config.intercept else 0.0
        return LogisticModel(values[:features], constant, self._data.classes)

    def save(self, url: str, measures: dict[str, Measure]) -> None:
        """Write the model: ``model.json`` beside the weights as NumPy files; ``LogisticModel.load`` reads it.

        Args:
            url: a folder, as a path or any fsspec URL.
            measures: by the name of the data set; kept in ``model.json``.
        """
        self._weight.save(f"{url.rstrip('/')}/{WEIGHTS_FOLDER}")
        described = {
            "model": "logistic regression",
            "features": self._data.features,
            "intercept": self._config.intercept,
            "classes": self._data.classes,
            "config": asdict(self._config),
            "measures": {name: asdict(measure) for name, measure in measures.items()},
        }
        fs, root = fsspec.core.url_to_fs(url)
        with fs.open(f"{root}/{MODEL_FILE}", "w") as file:
            json.dump(described, file, indent=2)

    def _step(self, number: int) -> Measure:
        """One execution of the loop's body in Figure 3."""
        weight, gradients, config = self._weight, self._gradient, self._config

        def work(rdd_partition: int, blocks: Iterator[LocalBlock]) -> Iterator[tuple[int, float, int]]:
            for block in blocks:
                rows = sample_rows(len(block.y), config.fraction, config.seed, number, rdd_partition)
                if len(rows):
                    minibatch = compact(block, rows)
                    g, loss, correct = gradient(minibatch, weight.pull(minibatch.keys))
                    gradients.add(g, minibatch.keys)
                    yield len(rows), loss, correct

        measure = _measure(self._data.blocks.mapPartitionsWithIndex(work).collect())
        if measure.rows:
            with self._ps.batch():
                gradients.mul(1.0 / measure.rows)
                weight.zip(self._velocity, self._square, gradients).apply("adam", lr=config.lr, step=number)
                gradients.zero()
        return measure


def prepare_folder(url: str) -> None:
    """Make the folder of a model before the work starts, or raise ConfigError: it cannot be written."""
    fs, root = fsspec.core.url_to_fs(url)
    try:
        fs.makedirs(root, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{url}: no model can be saved here: {error}") from error


def _measure(parts: list[tuple[int, float, int]]) -> Measure:
    rows = sum(part[0] for part in parts)
    if rows == 0:
        return Measure(0, float("nan"), float("nan"))
    return Measure(rows, sum(part[1] for part in parts) / rows, sum(part[2] for part in parts) / rows)
