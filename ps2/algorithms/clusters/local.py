"""A training in the process of the only worker, which has all rows: the same programs, and no clock waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ps2.algorithms.clusters.options import FittedClusters, KMeansOptions
from ps2.algorithms.clusters.trainer import train
from ps2.algorithms.training.in_process import in_process
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import StepReport
from ps2.algorithms.training.run import Training, run_alone
from ps2.algorithms.training.table import Table
from ps2.errors import PS2Error
from ps2.server.memory import free_bytes

# Of the worker's free memory, for centres and sums.
SHARE_OF_MEMORY = 0.5


@dataclass(frozen=True, eq=False)
class _Outcome:
    """What the worker returns.

    Attributes:
        steps: what would have been reported after each one.
        error: what ended the training; None: it has succeeded.
    """

    fitted: FittedClusters | None = None
    steps: list[StepReport] = field(default_factory=list)
    error: PS2Error | None = None


@dataclass(frozen=True, eq=False)
class _Program:
    table: Table
    options: KMeansOptions
    servers: int

    def __call__(self, worker: Any, reading: Reading) -> _Outcome:
        steps: list[StepReport] = []
        try:
            with in_process(self.servers, int(free_bytes() * SHARE_OF_MEMORY), reading) as ps:
                return _Outcome(train(ps, self.table, self.options, steps.append), steps)
        except PS2Error as error:
            # The driver raises it, as it does where servers are between.
            return _Outcome(error=error)


def train_locally(
    ps: Any, table: Table, options: KMeansOptions, on_step: Callable[[StepReport], None] = lambda step: None
) -> FittedClusters:
    """Train as ``trainer.train`` does, with the same result, in the process of one worker.

    Args:
        table: rows in one rdd_partition.
        on_step: called for each step when the training has ended.
    """
    program = _Program(replace(table, frame=None), options, len(ps.servers))
    outcome: _Outcome = run_alone(ps, Training(table, options.form, program, seed=options.seed))
    if outcome.error is not None:
        raise outcome.error
    assert outcome.fitted is not None
    for step in outcome.steps:
        on_step(step)
    return outcome.fitted
