"""Metrics of the rows that are held out: what a worker reports of its rows, and the value of all reports. Pure.

A report is an array that is added up over the workers. Means are exact. The AUC counts rows in ``CELLS`` equal cells
between the least and the largest margin that the trees can give, which all workers know; rows of one cell count as
tied. So the AUC is off by at most half the share of the pairs of a positive and a negative row that meet in a cell, and
does not depend on how rows lie.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.ranking import ALL, RowGroups, sum_of_ndcg, sum_of_precisions
from ps2.algorithms.trees.tree import LossName
from ps2.array_types import Float64s
from ps2.errors import ConfigError
from ps2.ops.guards import readable
from ps2.ops.kernels import kernel

MetricName = Literal["loss", "logloss", "error", "auc", "rmse", "mae", "ndcg", "map"]
# Cells of the AUC: of margins that are spread over a tenth of their range, few pairs in ten thousand meet.
CELLS = 1 << 14
CLASSES: tuple[MetricName, ...] = ("logloss", "error")
NUMBERS: tuple[MetricName, ...] = ("rmse", "mae")
RANKS: tuple[MetricName, ...] = ("ndcg", "map")
# The metrics that a loss's predictions can be measured by.
METRICS: dict[LossName, tuple[MetricName, ...]] = {
    "logistic": (*CLASSES, "auc"),
    "softmax": CLASSES,
    "squared": NUMBERS,
    "absolute": NUMBERS,
    "huber": NUMBERS,
    "poisson": NUMBERS,
    "quantile": NUMBERS,
    "lambdarank": RANKS,
}


@dataclass(frozen=True)
class Metric:
    """A metric; "loss" is that of the training; at: the number of rows at the head of a group for "ndcg" and "map"."""

    name: MetricName = "loss"
    at: int = ALL

    @staticmethod
    def parsed(text: str) -> Metric:
        """Return the metric of a name such as "auc" or "ndcg@10"; "" is the loss. ConfigError: there is none."""
        if not text:
            return Metric()
        names = [name for name in get_args(MetricName) if name != "loss"]
        name, *depth = text.lower().split("@")
        if name not in names or (
            depth and not (name in RANKS and re.fullmatch("[1-9][0-9]{0,8}", depth[0]) and not depth[1:])
        ):
            raise ConfigError(f"evalMetric: expected one of {', '.join(names)}, ndcg@10 or such, got {text!r}")
        return Metric(name, int(depth[0]) if depth else ALL)  # type: ignore[arg-type]

    def check(self, loss: LossName) -> None:
        """Raise ConfigError if predictions of a loss cannot be measured by the metric."""
        if self.name != "loss" and self.name not in METRICS[loss]:
            raise ConfigError(
                f"evalMetric: expected one of {', '.join(METRICS[loss])} for loss {loss!r}, got {self.name!r}"
            )

    @property
    def is_larger_better(self) -> bool:
        """Whether a model is better where the metric is larger."""
        return self.name in ("auc", *RANKS)

    def sums(
        self,
        objective: Objective,
        margins: Float64s,
        y: Float64s,
        weights: Float64s,
        span: tuple[float, float],
        groups: RowGroups | None = None,
    ) -> Float64s:
        """Return a worker's report, shape (2, 1): a weighted sum, and weights; "auc": (2, CELLS), weights by class."""
        if self.name == "auc":
            out = np.zeros((2, CELLS))
            smallest, width = span[0], (span[1] - span[0]) / CELLS
            count_cells(readable(margins[:, 0]), readable(y), readable(weights), smallest, width, out)
            return out
        if groups is not None and self.name in RANKS:
            total = (sum_of_ndcg if self.name == "ndcg" else sum_of_precisions)(margins[:, 0], y, groups, self.at)
            return np.array([[total], [float(len(groups))]])
        if self.name in ("loss", "logloss"):
            return np.array(objective.losses(margins, y, weights, groups))[:, None]
        each = self._of_rows(objective, margins, y)
        if not len(weights):
            return np.array([[each.sum()], [float(len(y))]])
        return np.array([[weights @ each], [weights.sum()]])

    def _of_rows(self, objective: Objective, margins: Float64s, y: Float64s) -> Float64s:
        """Return what the metric is the mean of; "rmse": its square is."""
        if self.name == "error":
            classes = margins.argmax(axis=1) if objective.width > 1 else margins[:, 0] > 0
            return (classes != y).astype(np.float64)
        residuals = (np.exp(margins[:, 0]) if objective.loss == "poisson" else margins[:, 0]) - y
        return residuals * residuals if self.name == "rmse" else np.abs(residuals)

    def value(self, sums: Float64s) -> float:
        """Return the metric of all rows; NaN: there is none with a weight, or, of "auc", only one class."""
        if self.name == "auc":
            return _auc(sums)
        if not sums[1, 0] > 0:
            return math.nan
        mean = float(sums[0, 0] / sums[1, 0])
        return math.sqrt(mean) if self.name == "rmse" else mean


def _auc(cells: Float64s) -> float:
    """Return the share of pairs, by weight, in which the positive row is in a higher cell; half of those in one."""
    negative, positive = cells
    pairs = negative.sum() * positive.sum()
    below = np.cumsum(negative) - negative
    return float((positive * (below + negative / 2)).sum() / pairs) if pairs > 0 else math.nan


@kernel
def count_cells(
    margins: Float64s, y: Float64s, weights: Float64s, smallest: float, width: float, out: Float64s
) -> None:
    """Add rows' weights to ``out``, shape (2, cells), by class and cell."""
    cells = out.shape[1]
    for i in range(len(margins)):
        position = (margins[i] - smallest) / width if width > 0.0 else 0.0
        cell = int(min(max(position, 0.0), cells - 1.0))
        out[1 if y[i] > 0.0 else 0, cell] += weights[i] if len(weights) else 1.0
