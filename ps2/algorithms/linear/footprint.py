"""The least memory of a training, checked before it begins. Pure.

Vectors of many columns hold only the columns that the rows use, and these are not known before the rows are read. Then
the driver counts one feature, and each worker counts its own once it has read its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ps2.algorithms.linear.parameters import SPARSE_FROM
from ps2.algorithms.linear.problem import Problem, SolverName, SolverOptions
from ps2.algorithms.linear.solvers.history import PAIRS
from ps2.algorithms.linear.solvers.least_squares import packed_size
from ps2.algorithms.linear.solvers.optimizer import states_of
from ps2.errors import LimitError

# Vectors of weights that a solver has at most, the best ones included, and the state of an optimizer left out.
ROWS: dict[SolverName, int] = {"l-bfgs": 2 * PAIRS + 12, "normal": 3, "minibatch": 5, "ma-sgd": 5, "ftsgd": 5, "sap": 7}
# Arrays of float64, as long as its weights, that a worker has at a time beside these and their columns.
BUFFERS: dict[SolverName, int] = {"l-bfgs": 1, "normal": 1, "minibatch": 1, "ma-sgd": 2, "ftsgd": 4, "sap": 1}
COLUMN_BYTES = 8
KEY_BYTES = 8


@dataclass(frozen=True)
class Room:
    """Memory of a server: its limit, and the bytes in use."""

    limit_bytes: int
    taken_bytes: int

    @property
    def left_bytes(self) -> int:
        return max(0, self.limit_bytes - self.taken_bytes)


def is_small(problem: Problem) -> bool:
    """Return whether vectors are of float64, and hold all columns; else they are of float32."""
    return problem.size < SPARSE_FROM


def feature_vectors(problem: Problem) -> int:
    """Return the number of vectors of sums that the features' scales are computed from."""
    # Squares of float32 values are within float64's range.
    return 4 if is_small(problem) else 3


def rows_of(options: SolverOptions) -> int:
    """Return the most vectors of weights that a solver has."""
    states = len(states_of(options.optimizer)) if options.solver == "minibatch" else 0
    return ROWS[options.solver] + states + (2 if options.bounds is not None else 0)


def fleet_bytes(problem: Problem, options: SolverOptions) -> int:
    """Return the least bytes of the vectors on all servers together."""
    rows, sums = rows_of(options), feature_vectors(problem) * 8 * options.scales(problem)
    if is_small(problem) or options.all_columns:
        item = 8 if is_small(problem) else 4
        return problem.dim * (rows * item * problem.width + sums) + _products_bytes(problem, options)
    return (rows * 4 + KEY_BYTES) * problem.width + sums + KEY_BYTES * options.scales(problem)


def worker_bytes(problem: Problem, options: SolverOptions, features: int) -> int:
    """Return the least bytes of a worker with this number of features: columns, weights, gradient."""
    weight = COLUMN_BYTES + (8 if is_small(problem) else 4) + 8 * BUFFERS[options.solver]
    return features * problem.width * weight + _products_bytes(problem, options)


def _products_bytes(problem: Problem, options: SolverOptions) -> int:
    """Return the bytes of the products of all pairs of features, if the solver needs these."""
    return 8 * packed_size(problem.dim) if options.solver == "normal" else 0


def check_fleet(problem: Problem, options: SolverOptions, servers: Sequence[Room]) -> None:
    """Raise LimitError if the vectors of a training cannot fit servers."""
    needed, left = fleet_bytes(problem, options), sum(server.left_bytes for server in servers)
    if needed > left:
        limit = sum(server.limit_bytes for server in servers)
        raise LimitError(
            f"{_weights_of(problem)}: solver {options.solver!r} keeps up to {rows_of(options)} vectors of them, at "
            f"least {needed:,} bytes, and {left:,} are left on the {len(servers)} servers, whose limits are {limit:,} "
            "together; start more servers, or with a larger memory limit"
        )


def check_worker(problem: Problem, options: SolverOptions, features: int, left_bytes: int) -> None:
    """Raise LimitError if a worker has too little memory for the features that its rows use."""
    needed = worker_bytes(problem, options, features)
    if needed > left_bytes:
        raise LimitError(
            f"{_weights_of(problem)}: the rows of one worker use {features:,} features, whose weights, columns and "
            f"gradient take at least {needed:,} bytes in solver {options.solver!r}, and {left_bytes:,} are left on its "
            "machine; use more partitions, or machines with more memory"
        )


def _weights_of(problem: Problem) -> str:
    """Return the number of weights in words, and the parameters that make it large."""
    if problem.loss in ("fmLogistic", "fmSquared"):
        why = f"factorSize={problem.width - 1:,} and {problem.dim:,} features"
    elif problem.width > 1:
        why = f"{problem.width:,} classes and {problem.dim:,} features"
    else:
        return f"{problem.size:,} features"
    return f"{why} make {problem.size:,} weights"
