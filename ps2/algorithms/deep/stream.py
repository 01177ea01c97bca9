"""``DeepStreamProgram``: how a task of a stream predicts rows with a deep model, and takes a step with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.network import Pass, logistic_loss
from ps2.algorithms.deep.plan import DeepPlan
from ps2.algorithms.deep.rows import batch_of
from ps2.algorithms.deep.scoring import check_fields, check_margins
from ps2.algorithms.deep.shared_layers import LayerStep, SharedLayers
from ps2.algorithms.training.streams.labelled_rows import LabelledRows
from ps2.algorithms.training.streams.task import advance_keys
from ps2.array_types import Float64s


@dataclass(frozen=True, eq=False)
class DeepStreamProgram:
    """A ``LearningProgram`` that takes one step for each call of ``learn``; picklable.

    Attributes:
        architecture, layers, table: the model.
        plan: the training.
    """

    architecture: Architecture
    plan: DeepPlan
    layers: SharedLayers
    table: Any

    def learn(self, found: LabelledRows) -> Float64s:
        """Predict rows, then take one step with them; return the margins before the step, float64 of shape (n,).

        Raises:
            InputError: a margin is not finite; nothing has been sent then.
        """
        check_fields(found.rows, self.architecture.fields)
        batch, keys = batch_of(found.rows)
        weights, table = self.layers.pull(), self.table.pullDistinct(keys)
        margins = Pass(self.architecture, weights, batch, table).margins()
        check_margins(margins)
        of_rows = np.asarray(found.weights, np.float64) if len(found.weights) else None
        total = float(len(batch)) if of_rows is None else float(of_rows.sum())
        if total > 0:
            # Dropout follows from the rows, so that another attempt of the task drops the same.
            seed = None if not self.architecture.dropout else int(keys.sum(dtype=np.int64) & 0xFFFFFFFF)
            one = Pass(self.architecture, weights, batch, table, seed)
            _, slopes = logistic_loss(one.margins(), found.labels, of_rows, total)
            step = LayerStep(self.plan.settings.stepSize, self.plan.settings.weightDecay)
            gradient = one.slopes_back(slopes, lambda number, layer: self.layers.step_with(number, layer, step))
            self.table.pushDistinct(keys, gradient, wait=False)
        return np.asarray(margins, np.float64)

    def advance(self, now_s: float) -> None:
        """Advance the time of the keys, as ``advance_keys`` does."""
        advance_keys(self.table, now_s)
