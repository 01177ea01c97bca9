"""The form in which a worker's gradient travels: value by value, or as sufficient factors (Petuum, section 3.4).

The gradient of a multinomial model of K classes by the weights of D features is the sum over b rows of x_i (D numbers)
times slopes_i (K numbers). The factors are b (D + K) numbers, or fewer where rows are sparse; the sum has K D.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ps2.algorithms.linear.losses.loss import Evaluated, Loss
from ps2.algorithms.linear.losses.softmax import FactoredGradient, SoftmaxLoss
from ps2.algorithms.linear.parameters import Array, Float64Array, Int64Array
from ps2.algorithms.linear.problem import FactorsName
from ps2.algorithms.linear.view import SentFactors, SentValues
from ps2.algorithms.training.record import Gradients
from ps2.client.dcv import DCV
from ps2.client.factors import sizes
from ps2.data.rows import LocalRows


@dataclass(eq=False)
class GradientForm:
    """Computes gradients in the form that is asked for, or takes fewer bytes; picklable.

    Attributes:
        asked: "auto" compares the bytes of each gradient.
        sent: how many there were since ``reported``, those that travelled as factors, and the bytes of both forms.
    """

    loss: Loss
    asked: FactorsName
    sent: dict[str, int] = field(default_factory=dict)

    def gradient(
        self, vector: DCV, rows: LocalRows, w: Array, b: Float64Array, columns: Int64Array, scale: float = 1.0
    ) -> tuple[Evaluated | FactoredGradient, SentValues | SentFactors]:
        """Compute loss and gradient.

        Args:
            vector: that the gradient is to be added to.
            w, b: as of ``Loss``.
            columns: of the weights of the rows' keys.
            scale: factor of the gradient that travels.
        """
        loss = self.loss
        if isinstance(loss, SoftmaxLoss) and not vector.isSparse:
            x = rows.x.toarray() if rows.x.nnz == math.prod(rows.x.shape) else rows.x
            as_factors, as_values = sizes(vector, loss.problem.width, x, rows.keys)
            factored = self.asked == "always" or (self.asked == "auto" and as_factors < as_values)
            self._count(as_factors, as_values, factored)
            if factored:
                found = loss.factors(rows, w, b)
                return found, SentFactors(found.slopes * scale, x, rows.keys, as_factors)
        evaluated = loss.gradient(rows, w, b)
        return evaluated, SentValues(evaluated.dw * scale, columns)

    def reported(self) -> dict[str, int]:
        """Return what ``ModelView.report`` tells the driver of the gradients since the last call."""
        sent, self.sent = self.sent, {}
        return sent

    def _count(self, as_factors: int, as_values: int, factored: bool) -> None:
        now = {"gradients": 1, "factored": int(factored), "factor_bytes": as_factors, "value_bytes": as_values}
        self.sent = {name: self.sent.get(name, 0) + value for name, value in now.items()}


def gradients_of(report: Mapping[str, Any]) -> Gradients | None:
    """Return what the workers of a clock reported of their gradients; None: there was no choice."""
    if not report.get("gradients"):
        return None
    names = ("gradients", "factored", "factor_bytes", "value_bytes")
    return Gradients(*(int(report[name]) for name in names))
