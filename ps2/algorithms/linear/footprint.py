"""The minimum memory of a training, checked before the training starts. Pure.

A sparse vector stores only the columns that the rows use, and these are unknown before the rows are read. So the
driver's check assumes one feature for sparse vectors. Each worker repeats the check with the features of its rows.
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

# The maximum number of weight vectors of a solver on the servers, with the best model's copy, without optimizer states.
ROWS: dict[SolverName, int] = {"l-bfgs": 2 * PAIRS + 12, "normal": 3, "minibatch": 5, "ma-sgd": 5, "ftsgd": 5, "sap": 7}
# The maximum number of further float64 arrays in a worker that are as long as its array of weights, such as a gradient.
BUFFERS: dict[SolverName, int] = {"l-bfgs": 1, "normal": 1, "minibatch": 1, "ma-sgd": 2, "ftsgd": 4, "sap": 1}
# The sizes of a column's index in a worker, and of a key in a sparse vector.
COLUMN_BYTES = 8
KEY_BYTES = 8


def feature_vectors(problem: Problem) -> int:
    """Return the number of vectors of sums over rows from which the features' scales are computed (``Preparation``)."""
    # Only float64 values need the fourth vector, their sizes: squares of float32 values do not overflow float64.
    return 4 if is_small(problem) else 3


def rows_of(plan: LinearPlan) -> int:
    """Return the maximum number of weight vectors on the servers, including an optimizer's state."""
    states = len(states_of(plan.optimizer)) if plan.solver == "minibatch" else 0
    return ROWS[plan.solver] + states + (2 if plan.bounds is not None else 0)


def fleet_bytes(problem: Problem, plan: LinearPlan) -> int:
    """Return the minimum memory of all vectors on all servers, in bytes."""
    rows, sum_bytes = rows_of(plan), feature_vectors(problem) * 8 * plan.scales(problem)
    if is_small(problem) or plan.all_columns:
        item_bytes = 8 if is_small(problem) else 4
        return problem.dim * (rows * item_bytes * problem.width + sum_bytes) + _products_bytes(problem, plan)
    return (rows * 4 + KEY_BYTES) * problem.width + sum_bytes + KEY_BYTES * plan.scales(problem)


def worker_bytes(problem: Problem, plan: LinearPlan, features: int) -> int:
    """Return the minimum memory of a worker whose rows use this number of features, in bytes."""
    weight_bytes = COLUMN_BYTES + (8 if is_small(problem) else 4) + 8 * BUFFERS[plan.solver]
    return features * problem.width * weight_bytes + _products_bytes(problem, plan)


def _products_bytes(problem: Problem, plan: LinearPlan) -> int:
    return 8 * packed_size(problem.dim) if plan.solver == "normal" else 0


def check_fleet(problem: Problem, plan: LinearPlan, servers: Sequence[tuple[int, int]]) -> None:
    """Raise LimitError if a training's vectors do not fit into the servers' memory (``check_servers``)."""
    need = f"solver {plan.solver!r} keeps up to {rows_of(plan)} vectors of them, at least"
    check_servers(f"{_weights_text(problem)}: {need}", fleet_bytes(problem, plan), servers)


def check_features(problem: Problem, plan: LinearPlan, features: int, free_bytes: int) -> None:
    """Raise LimitError if a worker's free memory is too small for the features that its rows use."""
    check_worker(
        f"{_weights_text(problem)}: the rows of one worker use {features:,} features, whose weights, columns and "
        f"gradient take in solver {plan.solver!r} at least",
        worker_bytes(problem, plan, features),
        free_bytes,
        "use more partitions, or machines with more memory",
    )


def _weights_text(problem: Problem) -> str:
    """Return the text of a message: the number of weights, and the parameters that it is the product of."""
    if problem.loss in ("fmLogistic", "fmSquared"):
        factors_text = f"factorSize={problem.width - 1:,} and {problem.dim:,} features"
    elif problem.width > 1:
        factors_text = f"{problem.width:,} classes and {problem.dim:,} features"
    else:
        return f"{problem.size:,} features"
    return f"{factors_text} make {problem.size:,} weights"
