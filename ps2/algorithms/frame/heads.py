"""Heads: they turn a model's margins into raw predictions, probabilities and predictions, as pyspark.ml does.

A head is picklable. ``raw`` returns raw predictions of shape (n, classes), or (n, 1) for a regression. ``probability``
returns the probabilities, shape (n, classes), or None if the model has none. ``prediction`` returns the classes or
values, shape (n,).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import numpy as np
import scipy  # its modules load on first use
import scipy.sparse as sp

from ps2.array_types import Float64s


class _MarginsHead:
    """A head that returns the margins as raw predictions, and their first column as predictions."""

    def raw(self, margins: Float64s) -> Float64s:
        return margins

    def probability(self, raw: Float64s) -> Float64s | None:
        return None

    def prediction(self, raw: Float64s) -> Float64s:
        return raw[:, 0]


@dataclass(frozen=True)
class ValueHead(_MarginsHead):
    """The head of a regression. Link "exp": the margin is the prediction's logarithm; None: it is the prediction."""

    classes: int | None = None
    link: Literal["exp"] | None = None

    def raw(self, margins: Float64s) -> Float64s:
        return np.exp(margins) if self.link == "exp" else margins


@dataclass(frozen=True)
class SharesHead(_MarginsHead):
    """The head of a topic model with ``classes`` topics: margins are topic proportions; the main topic is predicted."""

    classes: int

    def prediction(self, raw: Float64s) -> Float64s:
        return np.argmax(raw, axis=1).astype(np.float64)


@dataclass(frozen=True)
class VectorHead(_MarginsHead):
    """The head of a model that maps rows to vectors of size ``classes``: the margins are a row's vector."""

    classes: int


@dataclass(frozen=True)
class ClusterHead(_MarginsHead):
    """The head of a clustering into ``classes`` clusters: the margin is the index of the cluster."""

    classes: int


@dataclass(frozen=True)
class VotesHead(_MarginsHead):
    """The head of a random forest: margins are sums of the trees' probabilities; thresholds as in ``ClassHead``."""

    classes: int
    thresholds: tuple[float, ...] | None = None

    def probability(self, raw: Float64s) -> Float64s:
        total = raw.sum(axis=1, keepdims=True)
        return np.divide(raw, total, out=np.full_like(raw, 1.0 / self.classes), where=total > 0)

    def prediction(self, raw: Float64s) -> Float64s:
        return np.argmax(_by_thresholds(self.probability(raw), self.thresholds), axis=1).astype(np.float64)


@dataclass(frozen=True)
class ClassHead:
    """The head of a classification.

    Attributes:
        link: the function from raw predictions to probabilities; None: the model has no probabilities.
        threshold: for two classes, predict class 1 if its probability (without a link: its raw prediction) is above
            this; None: predict the class with the largest probability.
        thresholds: predict the class with the largest probability divided by its threshold; None: no thresholds.
    """

    classes: int
    link: Literal["logistic", "softmax"] | None
    threshold: float | None = None
    thresholds: tuple[float, ...] | None = None

    def raw(self, margins: Float64s) -> Float64s:
        if self.link == "softmax":
            return margins
        return np.concatenate([-margins, margins], axis=1)

    def probability(self, raw: Float64s) -> Float64s | None:
        if self.link is None:
            return None
        if self.link == "softmax":
            return _softmax(raw)
        class_0 = scipy.special.expit(raw[:, :1])
        return np.concatenate([class_0, 1.0 - class_0], axis=1)

    def prediction(self, raw: Float64s) -> Float64s:
        probability = self.probability(raw)
        score = raw if probability is None else probability
        if self.threshold is not None:
            return (score[:, 1] > self.threshold).astype(np.float64)
        return np.argmax(_by_thresholds(score, self.thresholds), axis=1).astype(np.float64)


def _by_thresholds(score: Float64s, thresholds: tuple[float, ...] | None) -> Float64s:
    """Return scores divided by the classes' thresholds, if there are any."""
    if thresholds is None:
        return score
    with np.errstate(divide="ignore", invalid="ignore"):
        score = score / np.array(thresholds)
    return np.where(np.isnan(score), -np.inf, score)  # 0 / 0: such a class is never predicted


Head = ClassHead | ClusterHead | SharesHead | ValueHead | VectorHead | VotesHead


def _softmax(margins: Float64s) -> Float64s:
    """Return probabilities. A margin is infinite if training saw no other class; that class has probability 1."""
    is_certain = np.isposinf(margins)
    if is_certain.any():
        margins = np.where(is_certain.any(axis=1, keepdims=True), np.where(is_certain, 0.0, -np.inf), margins)
    return np.asarray(scipy.special.softmax(margins, axis=1))


class Fitted(Protocol):
    """The part of a trained model that predictions need; picklable. ``takes_missing``: NaN is missing, not a fault."""

    @property
    def dim(self) -> int: ...

    @property
    def takes_missing(self) -> bool: ...

    def margins(self, x: sp.csr_array) -> Float64s:
        """Return the margins of rows, before any link function; shape (n, outputs)."""


class FittedTrees(Fitted, Protocol):
    """Trained trees."""

    def leaves(self, x: sp.csr_array) -> Any:
        """Return the leaf that each row reaches in each tree, shape (n, trees)."""

    def contributions(self, x: sp.csr_array) -> Any:
        """Return contributions of features, and last of the base score, to margins; shape (n, ..., features + 1)."""


def predict_all(fitted: Fitted, head: Head, x: Any, offsets: Any, tree_outputs: Collection[str]) -> dict[str, Float64s]:
    """Return predictions of rows by kind: "raw", "prediction" and, if the model has them, "probability".

    ``offsets``, shape (n, 1) or 0, are added to the margins. ``tree_outputs`` can also request "leaf" and "contrib".
    """
    raw = head.raw(fitted.margins(x) + offsets)
    probability = head.probability(raw)
    predictions = {"raw": raw, "prediction": head.prediction(raw)}
    if probability is not None:
        predictions["probability"] = probability
    if "leaf" in tree_outputs:
        predictions["leaf"] = np.asarray(cast(FittedTrees, fitted).leaves(x), np.float64)
    if "contrib" in tree_outputs:
        contributions = cast(FittedTrees, fitted).contributions(x)
        contributions = contributions[:, None] if contributions.ndim == 2 else contributions
        contributions[:, :, -1] += offsets  # the contribution of the base score to each output
        rows, outputs, features = contributions.shape
        predictions["contrib"] = contributions.reshape(rows, outputs * features)
    return predictions
