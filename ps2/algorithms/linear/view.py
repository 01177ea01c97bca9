"""A worker pulls a model, adds to a gradient, and reports to the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ps2.algorithms.linear.parameters import Array, Parameters
from ps2.algorithms.training.sent_gradients import SentFactors, SentValues
from ps2.array_types import Float64s, Int64s
from ps2.client.batch import batch

# The summed loss of no rows, and the sum of their weights.
NOTHING = 0.0, 0.0


class ModelView:
    """One worker's access to a model, with one request per server each way, and to the driver.

    Attributes:
        moved_bytes: the size of the arrays that travelled since the last report.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.moved_bytes = 0

    def pull(
        self, model: Parameters, columns: Int64s, before: Callable[[Int64s], object] | None = None
    ) -> tuple[Array, Float64s]:
        """Return weights at columns, and biases.

        Args:
            before: makes calls that travel in the same request, ahead of it.
        """
        with batch():
            if before is not None:
                before(columns)
            answers = [model.weight.pull(columns), model.bias.pull()]
        w, b = (answer.result() for answer in answers)
        self.moved_bytes += w.nbytes + b.nbytes
        return w, b

    def add(
        self,
        gradient: Parameters,
        sent: SentValues | SentFactors,
        db: Float64s,
        after: Callable[[], object] | None = None,
    ) -> None:
        """Add to the gradient of weights and of biases.

        Args:
            after: makes calls that travel in the same request, behind it.
        """
        self.moved_bytes += sent.nbytes + db.nbytes
        with batch():
            sent.add_to(gradient.weight)
            gradient.bias.add(db)
            if after is not None:
                after()

    def report(
        self,
        loss: tuple[float, float] = NOTHING,
        held: tuple[float, float] = NOTHING,
        rows: int = 0,
        **others: float | Array,
    ) -> None:
        """Report a clock to the driver, once.

        Args:
            loss: the summed loss of the rows, and the sum of their weights.
            held: the same two sums of the held-out rows.
            rows: the number of rows that the worker has computed with.
            others: the solver's own reports.
        """
        moved, self.moved_bytes = self.moved_bytes, 0
        sums = {"loss": loss[0], "weight": loss[1], "held_loss": held[0], "held_weight": held[1], "rows": rows}
        self._worker.report({**sums, "bytes": moved, **others})
