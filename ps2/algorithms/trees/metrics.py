"""Metrics of held-out rows: each worker reports sums, and the sum of all reports gives the metric. Pure.

A report is an array; the reports of all workers are summed. Means are exact. The AUC counts rows in ``CELLS`` equal
cells between the smallest and the largest possible margin, which all workers know. Rows of one cell count as tied. So
the error of the AUC is at most half the fraction of (positive, negative) pairs of rows that have the same cell, and
does not depend on how rows are partitioned.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ps2.algorithms.trees.custom_functions import RowFunction
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.ranking import ALL_ROWS, RowGroups, sum_of_ndcg, sum_of_precisions
from ps2.algorithms.trees.tree import LossName
from ps2.array_types import Float64s
from ps2.errors import ConfigError
from ps2.ops.guards import readable
from ps2.ops.kernels import kernel

MetricName = Literal["loss", "logloss", "error", "auc", "rmse", "mae", "ndcg", "map"]
# The number of cells of the AUC. If margins fill a tenth of the range, a few pairs in ten thousand have the same cell.
CELLS = 1 << 14
CLASS_METRICS: tuple[MetricName, ...] = ("logloss", "error")
REGRESSION_METRICS: tuple[MetricName, ...] = ("rmse", "mae")
RANKING_METRICS: tuple[MetricName, ...] = ("ndcg", "map")
METRICS: dict[LossName, tuple[MetricName, ...]] = {
    "logistic": (*CLASS_METRICS, "auc"),
    "softmax": CLASS_METRICS,
    "squared": REGRESSION_METRICS,
    "absolute": REGRESSION_METRICS,
    "huber": REGRESSION_METRICS,
    "poisson": REGRESSION_METRICS,
    "quantile": REGRESSION_METRICS,
    "lambdarank": RANKING_METRICS,
}


@dataclass(frozen=True)
class Metric:
    """A metric; "loss" is the training's loss; depth: "ndcg" and "map" use this many top rows of each group."""

    name: MetricName = "loss"
    depth: int = ALL_ROWS

    @staticmethod
    def parse(text: str) -> Metric:
        """Return the metric with a name such as "auc" or "ndcg@10"; "" is the loss. ConfigError: an unknown name."""
        if not text:
            return Metric()
        names = [name for name in get_args(MetricName) if name != "loss"]
        name, *depth_text = text.lower().split("@")
        is_depth = len(depth_text) == 1 and re.fullmatch("[1-9][0-9]{0,8}", depth_text[0])
        if name not in names or (depth_text and not (name in RANKING_METRICS and is_depth)):
            raise ConfigError(f"evalMetric: expected one of {', '.join(names)}, or e.g. ndcg@10, got {text!r}")
        return Metric(name, int(depth_text[0]) if depth_text else ALL_ROWS)  # type: ignore[arg-type]

    def check(self, loss: LossName) -> None:
        """Raise ConfigError if the metric does not apply to the predictions of a loss."""
        if self.name != "loss" and self.name not in METRICS[loss]:
            raise ConfigError(
                f"evalMetric: expected one of {', '.join(METRICS[loss])} for loss {loss!r}, got {self.name!r}"
            )

    @property
    def title(self) -> str:
        """The name in messages."""
        return self.name

    @property
    def is_larger_better(self) -> bool:
        return self.name in ("auc", *RANKING_METRICS)

    def sums(
        self,
        objective: Objective,
        margins: Float64s,
        y: Float64s,
        weights: Float64s,
        span: tuple[float, float],
        groups: RowGroups | None = None,
    ) -> Float64s:
        """Return a worker's report: weighted sum and sum of weights, shape (2, 1); "auc": weights by class and cell."""
        if self.name == "auc":
            out = np.zeros((2, CELLS))
            lowest, cell_width = span[0], (span[1] - span[0]) / CELLS
            count_cells(readable(margins[:, 0]), readable(y), readable(weights), lowest, cell_width, out)
            return out
        if groups is not None and self.name in RANKING_METRICS:
            total = (sum_of_ndcg if self.name == "ndcg" else sum_of_precisions)(margins[:, 0], y, groups, self.depth)
            return np.array([[total], [float(len(groups))]])
        if self.name in ("loss", "logloss"):
            return np.array(objective.losses(margins, y, weights, groups))[:, None]
        errors = self._row_errors(objective, margins, y)
        if not len(weights):
            return np.array([[errors.sum()], [float(len(y))]])
        return np.array([[weights @ errors], [weights.sum()]])

    def _row_errors(self, objective: Objective, margins: Float64s, y: Float64s) -> Float64s:
        """Return the error of each row. The metric is their mean; "rmse" is the root of their mean."""
        if self.name == "error":
            classes = margins.argmax(axis=1) if objective.width > 1 else margins[:, 0] > 0
            return (classes != y).astype(np.float64)
        residuals = (np.exp(margins[:, 0]) if objective.loss == "poisson" else margins[:, 0]) - y
        return residuals * residuals if self.name == "rmse" else np.abs(residuals)

    def value(self, sums: Float64s) -> float:
        """Return the metric of all rows; NaN if the weights sum to 0, or if "auc" has rows of only one class."""
        if self.name == "auc":
            # The weighted fraction of pairs whose positive row is in the higher cell; a tie counts half.
            negative, positive = sums
            pairs = negative.sum() * positive.sum()
            negative_below = np.cumsum(negative) - negative
            return float((positive * (negative_below + negative / 2)).sum() / pairs) if pairs > 0 else math.nan
        if not sums[1, 0] > 0:
            return math.nan
        mean = float(sums[0, 0] / sums[1, 0])
        return math.sqrt(mean) if self.name == "rmse" else mean


@dataclass(frozen=True)
class CustomMetric(Metric):
    """A user's metric: the sum of all workers' numerators by the sum of their denominators."""

    function: RowFunction | None = None
    maximize: bool = False

    @property
    def title(self) -> str:
        assert self.function is not None
        return self.function.name

    @property
    def is_larger_better(self) -> bool:
        return self.maximize

    def sums(
        self,
        objective: Objective,
        margins: Float64s,
        y: Float64s,
        weights: Float64s,
        span: tuple[float, float],
        groups: RowGroups | None = None,
    ) -> Float64s:
        assert self.function is not None
        if not len(y):  # a function may divide by the number of rows
            return np.zeros((2, 1))
        return np.array(self.function.sums(margins, y, weights))[:, None]


@kernel
def count_cells(
    margins: Float64s, y: Float64s, weights: Float64s, lowest: float, cell_width: float, out: Float64s
) -> None:
    """Add the weights of rows to ``out``, shape (2, cells), by class and cell; lowest: where the first cell begins."""
    cells = out.shape[1]
    for i in range(len(margins)):
        position = (margins[i] - lowest) / cell_width if cell_width > 0.0 else 0.0
        cell = int(min(max(position, 0.0), cells - 1.0))
        out[1 if y[i] > 0.0 else 0, cell] += weights[i] if len(weights) else 1.0
