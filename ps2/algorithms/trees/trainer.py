"""The training of boosted trees, on the servers or in the only worker's process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ps2.algorithms.frame.journal import Journal, earlier_settings
from ps2.algorithms.frame.program import run_program
from ps2.algorithms.training.checkpoint_names import UNNAMED, CheckpointNames
from ps2.algorithms.training.record import Record, StepReport, Via, Words
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.local_program import LocalBoostingProgram
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.program import BoostingProgram, TrainedForest, mean_weight_of, settings_of
from ps2.algorithms.trees.tree import Forest
from ps2.algorithms.trees.tree_matrices import check_memory


def train(
    ps: Any,
    table: Table,
    problem: TreeProblem,
    plan: BoostingPlan,
    facts: Facts,
    on_step: Callable[[StepReport], Any] = lambda step: None,
) -> TrainedForest[Forest]:
    """Grow trees on the servers of a context, or resume in a restored context: see ``BoostingPlan.name``.

    The trees are the same, bit for bit, on any number of workers and servers, and in the only worker's process.

    Args:
        ps: the PS2Context.
        table: rows.
        problem: the objective.
        plan: how to grow trees.
        facts: statistics of the rows' labels and weights.
        on_step: called in the driver after each round; returns True to end the training.

    Raises:
        LimitError: histograms cannot fit the servers.
        NotFoundError, ConfigError: the context was restored from a checkpoint without a training of this name, or with
            another one.
        InputError: a row cannot be used; says how many, and names one.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    names = CheckpointNames.of(plan.name, ps)
    record = Record(on_step, Words("tree" if problem.objective.width == 1 else "round", "loss"))
    # Before the vectors are looked for: with another ``via`` there are others.
    Journal.of(names, settings_of(problem, plan, facts.rows, mean_weight_of(table, facts)), BoostingProgram.number)
    if plan.via == "local":
        return run_program(ps, LocalBoostingProgram(table, problem, plan, facts, record, names), table, names)
    if not names.begun:
        check_memory(problem, plan, facts.rows, ps.memory())
    return run_program(ps, BoostingProgram(table, problem, plan, facts, record, names), table, names)


def begun_via(ps: Any, name: str) -> Via | None:
    """Return where the trees of a training lie that a restored context goes on with; None: it goes on with none."""
    names = CheckpointNames.of(name, ps) if name and ps is not None and ps.conf.restore is not None else UNNAMED
    return earlier_settings(names).get("via") if names.called else None
