"""What one worker reads of a model and adds to a gradient; what linear trainings tell and add up beside the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ps2.algorithms.linear.parameters import Array, Float64Array, Int64Array, Parameters
from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.training.tally import BYTES, SUMS, TOLD, Tally
from ps2.client.batch import batch
from ps2.client.dcv import DCV

# Columns of what the workers add up for the driver.
SHRINK, OSCILLATED, END_LOSS, END_WEIGHT = range(SUMS, SUMS + 4)
TALLY = SUMS + 4
# Columns of what the driver tells the workers; from the last one on there is a shift for each output of the model.
STEP_SIZE, LOCAL_STEPS, NORM, SHIFT = range(TOLD, TOLD + 4)


def controls(problem: Problem) -> int:
    """Return how many columns the driver tells the workers by."""
    return SHIFT + problem.outputs


class ModelView:
    """What one worker reads of a model and adds to a gradient, one request a server each way."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._moved_bytes = 0  # that the driver has not been told of

    def pull(
        self, model: Parameters, columns: Int64Array, before: Callable[[Int64Array], object] | None = None
    ) -> tuple[Array, Float64Array, Float64Array]:
        """Return weights at columns, biases, and what the driver tells.

        Args:
            before: makes calls that travel in the same request, ahead of it.
        """
        with batch():
            if before is not None:
                before(columns)
            answers = [model.weight.pull(columns), model.bias.pull(), self._tally.control.pull()]
        w, b, told = (answer.result() for answer in answers)
        self._moved_bytes += w.nbytes + b.nbytes + told.nbytes
        return w, b, told

    def add(self, gradient: Parameters, sent: SentValues | SentFactors, db: Float64Array, sums: Float64Array) -> None:
        """Add to the gradient of weights and of biases, and to the driver's sums."""
        self._moved_bytes += sent.nbytes + db.nbytes
        with batch():
            sent.add_to(gradient.weight)
            gradient.bias.add(db)
            self.tell(sums)

    def tell(self, sums: Float64Array) -> None:
        """Add to the driver's sums alone."""
        sums[BYTES] = self._moved_bytes + sums.nbytes
        self._moved_bytes = 0
        self._tally.sums.add(sums)


@dataclass(frozen=True, eq=False)
class SentValues:
    """A gradient at columns, value by value."""

    values: Array
    columns: Int64Array

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def add_to(self, vector: DCV) -> None:
        vector.add(self.values.astype(vector.dtype, copy=False), self.columns)


@dataclass(frozen=True, eq=False)
class SentFactors:
    """A gradient as the sum of ``x_i slopes_i'`` over rows, which the servers take (Xing et al., 2016, section 3.4).

    Attributes:
        slopes: shape (n, width): derivatives by each row's margins.
        x: scipy CSR or an array, shape (n, k).
        keys: int64, shape (k,): its features.
        nbytes: that it takes on the way.
    """

    slopes: Float64Array
    x: Any
    keys: Int64Array
    nbytes: int

    def add_to(self, vector: DCV) -> None:
        vector.addFactors(self.slopes.astype(vector.dtype, copy=False), self.x, self.keys)
