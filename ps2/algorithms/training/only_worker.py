"""A training in the process of the only worker, which has all rows.

The family's own programs run, with servers in the same process, so no clock waits for the network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.in_process import in_process
from ps2.algorithms.training.outcome import Outcome, outcome_of, result_of
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import StepReport
from ps2.algorithms.training.run import Training, run_alone
from ps2.algorithms.training.table import Table
from ps2.server.memory import free_bytes

# The share of the worker's free memory that the model and its training state may take.
SHARE_OF_MEMORY = 0.5

OnStep = Callable[[StepReport], None]


class Train(Protocol):
    """A family's ``train``; picklable."""

    def __call__(self, ps: Any, table: Table, options: Any, /, *, on_step: OnStep) -> Any:
        """Train on the servers of a context, and return the result."""


@dataclass(frozen=True, eq=False)
class _Program:
    train: Train
    table: Table
    options: Any
    servers: int

    def __call__(self, worker: Any, reading: Reading) -> Outcome:
        def trained(on_step: OnStep) -> Any:
            with in_process(self.servers, int(free_bytes() * SHARE_OF_MEMORY), reading) as ps:
                return self.train(ps, self.table, self.options, on_step=on_step)

        return outcome_of(trained)


def train_in_only_worker(ps: Any, table: Table, form: Form, train: Train, options: Any, on_step: OnStep) -> Any:
    """Return what ``train`` returns on as many servers as the context has, in the process of one worker.

    Args:
        table: rows in one rdd_partition.
        form: the form that the rows must have.
        on_step: called for each step, after the training has ended.
    """
    program = _Program(train, replace(table, frame=None), options, len(ps.servers))
    return result_of(run_alone(ps, Training(table, form, program, seed=options.seed)), on_step)
