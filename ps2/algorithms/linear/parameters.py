"""A model on the servers: vectors of weights and of biases, the means of centred features, and a worker's access."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.training.checkpoint_names import UNNAMED, CheckpointNames
from ps2.algorithms.training.sent_gradients import SentFactors, SentValues
from ps2.array_types import Float64s, Int64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.handle import derive_all, free_all
from ps2.data.rows import columns_of
from ps2.ops.table import Array

# With at least this many weights, vectors are float32 and sparse: columns that the rows do not use take no memory. But
# with the plan's ``all_columns``, vectors are dense.
SPARSE_FROM = 1 << 22


def is_small(problem: Problem) -> bool:
    """Return whether vectors are float64 and dense."""
    return problem.size < SPARSE_FROM


@dataclass(frozen=True, eq=False)
class Parameters:
    """A vector in the space of a problem's ``dim * width`` weights, feature by feature, and biases; picklable."""

    weight: DCV
    bias: DCV
    width: int

    @property
    def each(self) -> tuple[DCV, DCV]:
        """Both vectors."""
        return self.weight, self.bias

    def zero(self) -> None:
        for vector in self.each:
            vector.zero()

    def copy(self, other: Parameters) -> None:
        for target, source in zip(self.each, other.each, strict=True):
            target.copy(source)

    def combine(self, others: Sequence[Parameters], alphas: Sequence[float] | Float64s) -> None:
        """Set these parameters to ``sum_i alphas[i] others[i]``."""
        self.weight.combine([other.weight for other in others], alphas)
        self.bias.combine([other.bias for other in others], alphas)


class Space:
    """Makes the vectors of one training, of zeros. Those of weights are co-located, and so are those of biases."""

    def __init__(
        self, problem: Problem, rows: int, names: CheckpointNames = UNNAMED, all_columns: bool = False
    ) -> None:
        """Reserve memory for ``rows`` vectors. A later driver gives them the same ``names`` in the same order."""
        self._problem, self._names = problem, names
        self._bias = names.vector(lambda name: DCV.dense(problem.biases, rows, "float64", name=name))
        self._is_dense = all_columns or is_small(problem)
        if self._is_dense:
            dtype = "float64" if is_small(problem) else "float32"
            self._weight = names.vector(
                lambda name: DCV.dense(problem.size, rows, dtype, align=problem.width, name=name)
            )
        else:
            self._weight = names.vector(lambda name: DCV.sparse(problem.size, rows, "float32", name=name))
        # Copies of these handles travel to workers, but only the driver frees the vectors.
        self._vectors = [self._bias, self._weight]

    def new(self) -> Parameters:
        return self.several(1)[0]

    def several(self, count: int) -> list[Parameters]:
        """Make vectors of zeros by one request."""
        weights, biases = self._derive(self._weight, count), self._derive(self._bias, count)
        self._vectors += [*weights, *biases]
        return [Parameters(w, b, self._problem.width) for w, b in zip(weights, biases, strict=True)]

    def weight(self) -> DCV:
        """Make a vector for weights alone."""
        self._vectors += self._derive(self._weight, 1)
        return self._vectors[-1]

    def features(self, count: int) -> list[DCV]:
        """Make float64 vectors with a value for each feature, co-located only with each other."""
        make = DCV.dense if self._is_dense else DCV.sparse
        first = self._names.vector(lambda name: make(self._problem.dim, count, "float64", name=name))
        vectors = [first, *self._derive(first, count - 1)]
        self._vectors += vectors
        return vectors

    def small(self, columns: int) -> DCV:
        """Make a short float64 vector."""
        self._vectors.append(self._names.vector(lambda name: DCV.dense(columns, 1, "float64", name=name)))
        return self._vectors[-1]

    def free(self, keep: DCV | None = None) -> None:
        """Free all vectors except ``keep``, which a later call may free."""
        free_all(vector for vector in self._vectors if vector is not keep)
        self._vectors = [] if keep is None else [keep]

    def _derive(self, vector: DCV, count: int) -> list[DCV]:
        if not self._names.prefix:
            return derive_all(vector, count)
        return [self._names.vector(vector.derive) for _ in range(count)]


def gram(left: Sequence[Parameters], right: Sequence[Parameters]) -> Callable[[], Float64s]:
    """Request inner products within ``batch()``; return a function that returns them after the batch."""
    weights = DCV.gram([each.weight for each in left], [each.weight for each in right])
    biases = DCV.gram([each.bias for each in left], [each.bias for each in right])
    return lambda: weights.result() + biases.result()


@dataclass(frozen=True, eq=False)
class Center:
    """The means of the scaled features, on the servers; picklable.

    With them, a solver searches in the space of centred features, where the intercepts are b' = b + mean w. There, the
    objective's curvature does not mix intercepts and weights, so weights of features with large means converge as fast
    as other weights. Workers do not centre features: they subtract the shift mean w of each output from b'.
    """

    means: DCV
    width: int

    def push(self, means: Array, keys: Int64s) -> None:
        self.means.push(np.repeat(means, self.width), columns_of(keys, self.width))

    def feature_means(self) -> Float64s:
        return np.asarray(self.means.pull())[:: self.width]

    def shifts(self, weight: DCV) -> Any:
        """Return mean w of each output, float64 of shape (width,); within ``batch()``, a deferred result."""
        return weight.zip(self.means).apply("linear.shifts", width=self.width)

    def correct(self, gradient: Parameters, slopes: Float64s) -> None:
        """Turn a gradient into the one for centred features; ``slopes`` are those with respect to the intercepts."""
        gradient.weight.zip(self.means).apply("linear.center_gradient", slopes=slopes, width=self.width)

    def uncenter(self, model: Parameters) -> None:
        """Turn the intercepts of centred features into those of the features themselves."""
        model.bias.add(-np.asarray(self.shifts(model.weight)), np.arange(self.width))


# The summed loss of no rows, and the sum of their weights.
NOTHING = 0.0, 0.0


class ModelView:
    """One worker's access to a model, with one request per server for a pull or an addition; and its reports."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.moved_bytes = 0  # since the last report

    def pull(
        self, model: Parameters, columns: Int64s, prepare: Callable[[Int64s], object] | None = None
    ) -> tuple[Array, Float64s]:
        """Return weights at columns, and biases; requests of ``prepare`` travel with the pull, and are done first."""
        with batch():
            if prepare is not None:
                prepare(columns)
            answers = [model.weight.pull(columns), model.bias.pull()]
        w, b = (answer.result() for answer in answers)
        self.moved_bytes += w.nbytes + b.nbytes
        return w, b

    def add(
        self,
        gradient: Parameters,
        sent: SentValues | SentFactors,
        db: Float64s,
        finish: Callable[[], object] | None = None,
    ) -> None:
        """Add to the gradient of weights and of biases; requests of ``finish`` travel with it, and are done last."""
        self.moved_bytes += sent.nbytes + db.nbytes
        with batch():
            sent.add_to(gradient.weight)
            gradient.bias.add(db)
            if finish is not None:
                finish()

    def report(
        self,
        loss: tuple[float, float] = NOTHING,
        held_out: tuple[float, float] = NOTHING,
        rows: int = 0,
        **solver_values: float | Array,
    ) -> None:
        """Report to the driver: summed loss and weight of rows, the same of held-out rows, and further numbers."""
        moved, self.moved_bytes = self.moved_bytes, 0
        sums = {"loss": loss[0], "weight": loss[1], "held_loss": held_out[0], "held_weight": held_out[1], "rows": rows}
        self._worker.report({**sums, "bytes": moved, **solver_values})
