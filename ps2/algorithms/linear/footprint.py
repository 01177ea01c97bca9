"""The minimum memory of a training, checked before it begins. Pure.

Sparse vectors have only the columns that the rows use, which are known once the rows are read. So the driver assumes
a single feature for them, and each worker counts the features of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from ps2.algorithms.frame.memory import check_servers, check_worker
from ps2.algorithms.linear.parameters import is_small
from ps2.algorithms.linear.plan import LinearPlan, Problem
from ps2.algorithms.linear.settings import SolverName
from ps2.algorithms.linear.solvers.descent import PAIRS
from ps2.algorithms.linear.solvers.least_squares import packed_size
from ps2.algorithms.linear.solvers.optimizer import states_of

# The maximum number of weight vectors of a solver, with the best model and without an optimizer's state.
ROWS: dict[SolverName, int] = {"l-bfgs": 2 * PAIRS + 12, "normal": 3, "minibatch": 5, "ma-sgd": 5, "ftsgd": 5, "sap": 7}
# The maximum number of float64 arrays as long as a worker's weights, besides the weights and their columns.
BUFFERS: dict[SolverName, int] = {"l-bfgs": 1, "normal": 1, "minibatch": 1, "ma-sgd": 2, "ftsgd": 4, "sap": 1}
COLUMN_BYTES = 8
KEY_BYTES = 8


def feature_vectors(problem: Problem) -> int:
    """Return the number of vectors of sums from which the features' factors are computed."""
    # Squares of float32 values do not overflow float64.
    return 4 if is_small(problem) else 3


def rows_of(plan: LinearPlan) -> int:
    """Return the maximum number of weight vectors, with an optimizer's state."""
    states = len(states_of(plan.optimizer)) if plan.solver == "minibatch" else 0
    return ROWS[plan.solver] + states + (2 if plan.bounds is not None else 0)


def fleet_bytes(problem: Problem, plan: LinearPlan) -> int:
    """Return the minimum memory of the vectors, in bytes over all servers."""
    rows, sums = rows_of(plan), feature_vectors(problem) * 8 * plan.scales(problem)
    if is_small(problem) or plan.all_columns:
        item = 8 if is_small(problem) else 4
        return problem.dim * (rows * item * problem.width + sums) + _products_bytes(problem, plan)
    return (rows * 4 + KEY_BYTES) * problem.width + sums + KEY_BYTES * plan.scales(problem)


def worker_bytes(problem: Problem, plan: LinearPlan, features: int) -> int:
    """Return the minimum memory of a worker with this number of features: columns, weights and gradient."""
    weight = COLUMN_BYTES + (8 if is_small(problem) else 4) + 8 * BUFFERS[plan.solver]
    return features * problem.width * weight + _products_bytes(problem, plan)


def _products_bytes(problem: Problem, plan: LinearPlan) -> int:
    return 8 * packed_size(problem.dim) if plan.solver == "normal" else 0


def check_fleet(problem: Problem, plan: LinearPlan, servers: Sequence[tuple[int, int]]) -> None:
    """Raise LimitError if the vectors of a training cannot fit servers (``check_servers``)."""
    vectors = f"solver {plan.solver!r} keeps up to {rows_of(plan)} vectors of them, at least"
    check_servers(f"{_weights_of(problem)}: {vectors}", fleet_bytes(problem, plan), servers)


def check_features(problem: Problem, plan: LinearPlan, features: int, left_bytes: int) -> None:
    """Raise LimitError if a worker has too little memory for the features that its rows use."""
    check_worker(
        f"{_weights_of(problem)}: the rows of one worker use {features:,} features, whose weights, columns and "
        f"gradient take in solver {plan.solver!r} at least",
        worker_bytes(problem, plan, features),
        left_bytes,
        "use more partitions, or machines with more memory",
    )


def _weights_of(problem: Problem) -> str:
    """Return the number of weights, and the parameters that make it large, in words."""
    if problem.loss in ("fmLogistic", "fmSquared"):
        why = f"factorSize={problem.width - 1:,} and {problem.dim:,} features"
    elif problem.width > 1:
        why = f"{problem.width:,} classes and {problem.dim:,} features"
    else:
        return f"{problem.size:,} features"
    return f"{why} make {problem.size:,} weights"
