"""Predictions as arrays: heads turn margins into raw predictions, probabilities and predictions, like pyspark.ml."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import numpy as np
import scipy  # its modules load on first use
import scipy.sparse as sp

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
        link: the function from margins to predictions; None: the identity.
    """

    classes: int | None = None
    link: Literal["exp"] | None = None

    def raw(self, margins: Float64s) -> Float64s:
        return np.exp(margins) if self.link == "exp" else margins


@dataclass(frozen=True)
class SharesHead(_MarginsHead):
    """The head of topic models: the margins are the shares of the topics in a document.

    Attributes:
        classes: number of topics.
    """

    classes: int

    def prediction(self, raw: Float64s) -> Float64s:
        return np.argmax(raw, axis=1).astype(np.float64)


@dataclass(frozen=True)
class VectorHead(_MarginsHead):
    """The head of a model that maps rows to vectors: the margins are the vector.

    Attributes:
        classes: the size of the vectors.
    """

    classes: int


@dataclass(frozen=True)
class ClusterHead(_MarginsHead):
    """The head of a clustering: the margin is the number of the cluster.

    Attributes:
        classes: number of clusters.
    """

    classes: int


@dataclass(frozen=True)
class VotesHead:
    """The head of random forests: the margins are the class probabilities, summed over the trees.

    Attributes:
        classes: number of classes.
        thresholds: see ``ClassHead``.
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
        link: the function from raw predictions to probabilities; None: the model has no probabilities.
        threshold: with two classes, class 1 is predicted if its probability (without a link: its raw prediction) is
            larger; None: the class with the largest one is predicted.
        thresholds: the class with the largest probability divided by its threshold is predicted; None: all are equal.
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
    return np.where(np.isnan(score), -np.inf, score)  # 0 / 0 never wins


def _softmax(margins: Float64s) -> Float64s:
    """Return probabilities. A class with an infinite margin gets probability 1, as when training saw no other class."""
    certain = np.isposinf(margins)
    if certain.any():
        margins = np.where(certain.any(axis=1, keepdims=True), np.where(certain, 0.0, -np.inf), margins)
    return np.asarray(scipy.special.softmax(margins, axis=1))


class Fitted(Protocol):
    """The part of a trained model that predictions need; picklable."""

    @property
    def dim(self) -> int:
        """Number of features."""

    @property
    def classes(self) -> int | None:
        """Number of classes; None: labels are numbers."""

    @property
    def takes_missing(self) -> bool:
        """Whether NaN means a missing value rather than a fault."""

    @property
    def is_light(self) -> bool:
        """Whether the parameters are small enough to be pickled with the function that uses them."""

    def margins(self, x: sp.csr_array) -> Float64s:
        """Compute the margins of rows, before any link function; shape (n, outputs)."""


class FittedTrees(Fitted, Protocol):
    """Trained trees."""

    def leaves(self, x: sp.csr_array) -> Any:
        """Return the leaf that each row reaches in each tree, shape (n, trees)."""

    def contributions(self, x: sp.csr_array) -> Any:
        """Return the contribution of each feature, and then of the base, to margins; shape (n, ..., features + 1)."""


class Head(Protocol):
    """Turns margins into predictions; picklable."""

    @property
    def classes(self) -> int | None:
        """Number of classes; None: predictions are numbers."""

    def raw(self, margins: Float64s) -> Float64s:
        """Return raw predictions, shape (n, classes); (n, 1) for a regression."""

    def probability(self, raw: Float64s) -> Float64s | None:
        """Return probabilities, shape (n, classes); None: the model has none."""

    def prediction(self, raw: Float64s) -> Float64s:
        """Return classes or values, shape (n,)."""


def predicted(fitted: Fitted, head: Head, x: Any, starts: Any, tree_outputs: Collection[str]) -> dict[str, Float64s]:
    """Return predictions of rows by kind: "raw", "prediction" and, if the model has them, "probability".

    ``starts``: offsets of the margins, shape (n, 1), or 0. ``tree_outputs``: "leaf" and "contrib" request these kinds.
    """
    raw = head.raw(fitted.margins(x) + starts)
    probability = head.probability(raw)
    predictions = {"raw": raw, "prediction": head.prediction(raw)}
    if probability is not None:
        predictions["probability"] = probability
    if "leaf" in tree_outputs:
        predictions["leaf"] = np.asarray(cast(FittedTrees, fitted).leaves(x), np.float64)
    if "contrib" in tree_outputs:
        predictions["contrib"] = _contributions(cast(FittedTrees, fitted), x, starts)
    return predictions


def _contributions(fitted: FittedTrees, x: Any, starts: Any) -> Float64s:
    """Return the contributions to the margins, output by output; each output's last one includes its start."""
    contributions = fitted.contributions(x)
    contributions = contributions[:, None] if contributions.ndim == 2 else contributions
    contributions[:, :, -1] += starts
    flat: Float64s = contributions.reshape(contributions.shape[0], contributions.shape[1] * contributions.shape[2])
    return flat
