"""Predictions of rows as arrays: what ``transform`` computes in tasks, and other scorers where there is no Spark."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol, cast

import numpy as np
import scipy.sparse as sp

from ps2.array_types import Float64s


class Fitted(Protocol):
    """Trained parameters, as far as predictions need them; picklable."""

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
        """Whether the parameters may travel inside the function that uses them."""

    def margins(self, x: sp.csr_array) -> Float64s:
        """Compute the margins of rows, before any link function; shape (n, outputs)."""


class FittedTrees(Fitted, Protocol):
    """Trained trees."""

    def leaves(self, x: sp.csr_array) -> Any:
        """Return the leaf that each row reaches in each tree, shape (n, trees)."""

    def contributions(self, x: sp.csr_array) -> Any:
        """Return what each feature, and then the base, contributes to the margins, shape (n, ..., features + 1)."""


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


def predicted(fitted: Fitted, head: Head, x: Any, starts: Any, of_trees: Collection[str]) -> dict[str, Float64s]:
    """Return predictions of rows by kind: "raw", "prediction" and, if the model has them, "probability".

    Args:
        x: rows, as ``fitted`` takes them.
        starts: margins that rows begin with, shape (n, 1), or 0.
        of_trees: "leaf" and "contrib", where these are wanted.
    """
    raw = head.raw(fitted.margins(x) + starts)
    probability = head.probability(raw)
    found = {"raw": raw, "prediction": head.prediction(raw)}
    if probability is not None:
        found["probability"] = probability
    if "leaf" in of_trees:
        found["leaf"] = np.asarray(cast(FittedTrees, fitted).leaves(x), np.float64)
    if "contrib" in of_trees:
        found["contrib"] = _contributions(cast(FittedTrees, fitted), x, starts)
    return found


def _contributions(fitted: FittedTrees, x: Any, starts: Any) -> Float64s:
    """Return what adds up to the margins, one output after the other; where rows begin is part of the last number."""
    found = fitted.contributions(x)
    found = found[:, None] if found.ndim == 2 else found
    found[:, :, -1] += starts
    flat: Float64s = found.reshape(found.shape[0], found.shape[1] * found.shape[2])
    return flat
