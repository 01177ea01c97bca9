"""Turn margins into raw predictions, probabilities and predictions, by pyspark.ml's rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy  # its modules load on first use

from ps2.array_types import Float64s


class _MarginsHead:
    """A head that passes margins on as raw predictions, the first of which is the prediction."""

    def raw(self, margins: Float64s) -> Float64s:
        return margins

    def probability(self, raw: Float64s) -> None:
        return None

    def prediction(self, raw: Float64s) -> Float64s:
        return raw[:, 0]


@dataclass(frozen=True)
class ValueHead(_MarginsHead):
    """The head of a regression. The margin is the prediction, or its logarithm ("exp").

    Attributes:
        link: from margins to predictions.
    """

    classes: int | None = None
    link: Literal["exp"] | None = None

    def raw(self, margins: Float64s) -> Float64s:
        return np.exp(margins) if self.link == "exp" else margins


@dataclass(frozen=True)
class SharesHead(_MarginsHead):
    """The head of topics: the margins are a document's shares of the topics.

    Attributes:
        classes: number of topics.
    """

    classes: int

    def prediction(self, raw: Float64s) -> Float64s:
        return np.argmax(raw, axis=1).astype(np.float64)


@dataclass(frozen=True)
class VectorHead(_MarginsHead):
    """The head of a map to other vectors: the margins are these.

    Attributes:
        classes: their size.
    """

    classes: int


@dataclass(frozen=True)
class ClusterHead(_MarginsHead):
    """The head of clusters: the margin is the cluster.

    Attributes:
        classes: number of clusters.
    """

    classes: int


@dataclass(frozen=True)
class VotesHead:
    """The head of random forests: the margins are sums of the trees' shares of the classes.

    Attributes:
        classes: number of classes.
        thresholds: as of ``ClassHead``.
    """

    classes: int
    thresholds: tuple[float, ...] | None = None

    def raw(self, margins: Float64s) -> Float64s:
        return margins

    def probability(self, raw: Float64s) -> Float64s:
        total = raw.sum(axis=1, keepdims=True)
        return np.divide(raw, total, out=np.full_like(raw, 1.0 / self.classes), where=total > 0)

    def prediction(self, raw: Float64s) -> Float64s:
        return np.argmax(_by_thresholds(self.probability(raw), self.thresholds), axis=1).astype(np.float64)


@dataclass(frozen=True)
class ClassHead:
    """The head of a classification.

    Attributes:
        classes: number of classes.
        link: from raw predictions to probabilities; None: the model has none.
        threshold: class 1 of two needs a probability (a raw prediction, if there are none) above it; None: the largest
            decides.
        thresholds: the largest probability divided by its class's threshold decides; None: all are equal.
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
        of_0 = scipy.special.expit(raw[:, :1])
        return np.concatenate([of_0, 1.0 - of_0], axis=1)

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
    return np.where(np.isnan(score), -np.inf, score)  # 0 / 0 never wins


def _softmax(margins: Float64s) -> Float64s:
    """Return probabilities. A class with an infinite margin gets probability 1, as when training saw no other class."""
    certain = np.isposinf(margins)
    if certain.any():
        margins = np.where(certain.any(axis=1, keepdims=True), np.where(certain, 0.0, -np.inf), margins)
    return np.asarray(scipy.special.softmax(margins, axis=1))
