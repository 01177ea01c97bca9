"""A worker's gradient of a linear model, in the form that takes fewer bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ps2.algorithms.linear.losses.loss import Evaluated, Loss
from ps2.algorithms.linear.losses.softmax import FactoredGradient, SoftmaxLoss
from ps2.algorithms.linear.parameters import Array
from ps2.algorithms.training.sent_gradients import FormChoice, SentFactors, SentValues
from ps2.array_types import Float64s, Int64s
from ps2.client.dcv import DCV
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows


@dataclass(frozen=True, eq=False)
class GradientForm:
    """Computes gradients in the form that is chosen; picklable."""

    loss: Loss
    choice: FormChoice

    def gradient(
        self, vector: DCV, rows: KeptRows, w: Array, b: Float64s, columns: Int64s, scale: float = 1.0
    ) -> tuple[Evaluated | FactoredGradient, SentValues | SentFactors]:
        """Compute loss and gradient.

        Args:
            vector: that the gradient is to be added to.
            rows: in a file, their gradient travels value by value: factors would be as large as the rows.
            w, b: as of ``Loss``.
            columns: of the weights of the rows' keys.
            scale: factor of the gradient that travels.
        """
        loss = self.loss
        if isinstance(loss, SoftmaxLoss) and not vector.isSparse and isinstance(rows, LocalRows):
            x = rows.x.toarray() if rows.x.nnz == math.prod(rows.x.shape) else rows.x
            size = self.choice.factor_bytes(vector, loss.problem.width, x, rows.keys)
            if size is not None:
                factors = loss.factors(rows, w, b)
                return factors, SentFactors(factors.slopes * scale, x, rows.keys, size)
        evaluated = loss.gradient(rows, w, b)
        return evaluated, SentValues(evaluated.dw * scale, columns)
