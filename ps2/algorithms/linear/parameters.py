"""A model on the servers: its vectors, the means of centred features, and a worker's requests to them."""

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

# With at least this many weights, vectors are float32. They are also sparse, so columns that the rows do not use take
# no memory, unless the plan's ``all_columns`` is set.
SPARSE_FROM = 1 << 22


def is_small(problem: Problem) -> bool:
    """Return whether vectors are float64 and dense (``SPARSE_FROM``)."""
    return problem.size < SPARSE_FROM


@dataclass(frozen=True, eq=False)
class Parameters:
    """A vector of a problem's parameters: ``dim * width`` weights, feature by feature, and biases; picklable."""

    weight: DCV
    bias: DCV
    width: int

    @property
    def vectors(self) -> tuple[DCV, DCV]:
        """The vectors of weights and of biases."""
        return self.weight, self.bias

    def zero(self) -> None:
        for vector in self.vectors:
            vector.zero()

    def copy(self, other: Parameters) -> None:
        for target, source in zip(self.vectors, other.vectors, strict=True):
            target.copy(source)

    def combine(self, others: Sequence[Parameters], alphas: Sequence[float] | Float64s) -> None:
        """Set these parameters to ``sum_i alphas[i] others[i]``."""
        self.weight.combine([other.weight for other in others], alphas)
        self.bias.combine([other.bias for other in others], alphas)


class Space:
    """Makes a training's vectors, initially 0. Vectors of weights are co-located, and so are vectors of biases."""

    def __init__(
        self, problem: Problem, rows: int, names: CheckpointNames = UNNAMED, all_columns: bool = False
    ) -> None:
        """Reserve memory for ``rows`` vectors. A driver that resumes the training gives vectors the same ``names``."""
        self._problem, self._names = problem, names
        self._first_bias = names.vector(lambda name: DCV.dense(problem.biases, rows, "float64", name=name))
        self._is_dense = all_columns or is_small(problem)
        if self._is_dense:
            dtype = "float64" if is_small(problem) else "float32"
            self._first_weight = names.vector(
                lambda name: DCV.dense(problem.size, rows, dtype, align=problem.width, name=name)
            )
        else:
            self._first_weight = names.vector(lambda name: DCV.sparse(problem.size, rows, "float32", name=name))
        # The first vectors of two matrices, from which the others derive. Only the driver frees them.
        self._vectors = [self._first_bias, self._first_weight]

    def new(self) -> Parameters:
        return self.new_list(1)[0]

    def new_list(self, count: int) -> list[Parameters]:
        """Make several vectors with one request to each server."""
        weights, biases = self._derive(self._first_weight, count), self._derive(self._first_bias, count)
        self._vectors += [*weights, *biases]
        return [Parameters(w, b, self._problem.width) for w, b in zip(weights, biases, strict=True)]

    def new_weight(self) -> DCV:
        """Make a vector of weights without biases."""
        self._vectors += self._derive(self._first_weight, 1)
        return self._vectors[-1]

    def new_features(self, count: int) -> list[DCV]:
        """Make float64 vectors with a value for each feature, co-located only with each other."""
        make = DCV.dense if self._is_dense else DCV.sparse
        first_vector = self._names.vector(lambda name: make(self._problem.dim, count, "float64", name=name))
        vectors = [first_vector, *self._derive(first_vector, count - 1)]
        self._vectors += vectors
        return vectors

    def new_small(self, columns: int) -> DCV:
        """Make a dense float64 vector of ``columns`` values, in a matrix of its own."""
        self._vectors.append(self._names.vector(lambda name: DCV.dense(columns, 1, "float64", name=name)))
        return self._vectors[-1]

    def free(self, keep: DCV | None = None) -> None:
        """Free all vectors except ``keep``, which a later call can free."""
        free_all(vector for vector in self._vectors if vector is not keep)
        self._vectors = [] if keep is None else [keep]

    def _derive(self, vector: DCV, count: int) -> list[DCV]:
        if not self._names.prefix:
            return derive_all(vector, count)
        return [self._names.vector(vector.derive) for _ in range(count)]


def gram(left: Sequence[Parameters], right: Sequence[Parameters]) -> Callable[[], Float64s]:
    """Request inner products, shape (len(left), len(right)), in ``batch()``; after it, call the result to get them."""
    weights = DCV.gram([vector.weight for vector in left], [vector.weight for vector in right])
    biases = DCV.gram([vector.bias for vector in left], [vector.bias for vector in right])
    return lambda: weights.result() + biases.result()


@dataclass(frozen=True, eq=False)
class Center:
    """The means of the scaled features, on the servers; picklable.

    A solver with a ``Center`` minimises over the parameters of a model of centred features, whose intercepts are
    b' = b + mean w. For these parameters, second derivatives by an intercept and a weight are about 0, so weights of
    features with large means converge as fast as other weights. Workers do not centre features, which would fill zeros:
    they subtract each output's shift, mean w, from b'.
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
        """Turn a gradient into the gradient for centred features; ``slopes`` are its derivatives by the intercepts."""
        gradient.weight.zip(self.means).apply("linear.center_gradient", slopes=slopes, width=self.width)

    def uncenter(self, model: Parameters) -> None:
        """Turn the intercepts for centred features into intercepts for uncentred features."""
        model.bias.add(-np.asarray(self.shifts(model.weight)), np.arange(self.width))


# The summed loss, and the summed weight, of no rows.
NO_LOSS = 0.0, 0.0


class ModelView:
    """One worker's requests to a model, one per server for a pull or an addition, and its reports to the driver."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.moved_bytes = 0  # received and sent since the last report

    def pull(
        self, model: Parameters, columns: Int64s, prepare: Callable[[Int64s], object] | None = None
    ) -> tuple[Array, Float64s]:
        """Return weights at columns, and biases; requests of ``prepare`` are sent with the pull and done first."""
        with batch():
            if prepare is not None:
                prepare(columns)
            results = [model.weight.pull(columns), model.bias.pull()]
        w, b = (result.result() for result in results)
        self.moved_bytes += w.nbytes + b.nbytes
        return w, b

    def add(
        self,
        gradient: Parameters,
        sent: SentValues | SentFactors,
        db: Float64s,
        finish: Callable[[], object] | None = None,
    ) -> None:
        """Add to the gradient; requests of ``finish`` are sent with the additions and done last."""
        self.moved_bytes += sent.nbytes + db.nbytes
        with batch():
            sent.add_to(gradient.weight)
            gradient.bias.add(db)
            if finish is not None:
                finish()

    def report(
        self,
        loss: tuple[float, float] = NO_LOSS,
        held_out: tuple[float, float] = NO_LOSS,
        rows: int = 0,
        **solver_values: float | Array,
    ) -> None:
        """Report the summed loss and weight of the rows and of the held-out rows, and a solver's further values."""
        moved, self.moved_bytes = self.moved_bytes, 0
        sums = {"loss": loss[0], "weight": loss[1], "held_loss": held_out[0], "held_weight": held_out[1], "rows": rows}
        self._worker.report({**sums, "bytes": moved, **solver_values})
