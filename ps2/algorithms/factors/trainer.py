"""Train a factorization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ps2.algorithms.factors.ccd_program import CcdProgram
from ps2.algorithms.factors.dealing import DealtRatings
from ps2.algorithms.factors.options import FactorOptions, FittedFactors, Solver
from ps2.algorithms.factors.program import Problem
from ps2.algorithms.factors.ratings import RatingsSurvey
from ps2.algorithms.factors.sgd_program import SgdProgram
from ps2.algorithms.frame.program import OwnRows, run_program
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import StepReport
from ps2.errors import ConfigError

SOLVERS: dict[Solver, type[SgdProgram | CcdProgram]] = {"sgd": SgdProgram, "ccd": CcdProgram}


def train(
    ps: Any,
    dealt: DealtRatings,
    survey: RatingsSurvey,
    options: FactorOptions,
    start: FittedFactors | None = None,
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> FittedFactors:
    """Factorize, with the items' vectors on the servers; in a restored context, continue.

    Args:
        ps: the PS2Context.
        dealt: ratings at the workers, for these options.
        survey: of the ratings, together with the users and items of ``start``.
        start: a model to go on from: its users and items keep their vectors, and new ones get drawn ones.
        on_step: called in the driver after each iteration.

    Raises:
        LimitError: the vectors do not fit on the servers.
        NotFoundError, ConfigError: the context was restored from a checkpoint without a training of this name, or with
            another one; or the model has another rank.
        InputError: rows differ from those that were surveyed.
        PS2Error: the training has diverged.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    if start is not None and start.rank != options.rank:
        raise ConfigError(f"rank: the model to go on from has rank {start.rank}, and the training {options.rank}")
    try:
        names = CheckpointNames.of(options.name, ps)
        program = SOLVERS[options.solver](Problem(survey, dealt.deal, options, start), names, on_step)
        return run_program(ps, program, OwnRows(dealt.frame, dealt.workers, program.reader()), names)
    finally:
        survey.release()
