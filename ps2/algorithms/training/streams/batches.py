"""Learning from a DataFrame in passes, by the rules of streams: each pass is a batch that counts once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ps2.algorithms.training.record import StepReport, Words
from ps2.algorithms.training.streams.failures import is_repeatable
from ps2.algorithms.training.streams.labelled_rows import LabelledReader
from ps2.algorithms.training.streams.learner import BatchLearner, BatchProgress, LearnerOptions
from ps2.algorithms.training.streams.state import StreamState
from ps2.algorithms.training.streams.task import LearningProgram
from ps2.errors import InputError, PS2Error

log = logging.getLogger(__name__)

NO_ROWS = "expected rows to learn from, got an empty DataFrame"
# How often passes may begin again, in all, after a rollback of the fleet.
MAX_ROLLBACKS = 20
PASS = Words("pass", "log loss")


@dataclass(frozen=True)
class Passes:
    """How often to learn from all rows, at least once.

    Attributes:
        on_step: called after each pass.
    """

    count: int
    on_step: Callable[[StepReport], None]


def learn_frame(
    ps: Any,
    program: LearningProgram,
    reader: LabelledReader,
    options: LearnerOptions,
    frame: Any,
    passes: Passes,
) -> list[BatchProgress]:
    """Learn from a DataFrame; return the progress of each pass. The caller has opened the stream of the model.

    With a checkpointDir, the fleet makes a checkpoint first, and rolls back to it if a server is lost.

    Raises:
        InputError: there are no rows, or some cannot be learned from; the model may hold some of the others.
        UnavailableError: a server or an executor was lost, and there is no checkpoint.
        WorkerError: a task failed for another reason.
    """
    # A later pass has the rows of the first one: they are not late.
    options = replace(options, late_after_s=None)
    with StreamState.temporary() as state:
        return _learn_passes(ps, BatchLearner(ps, program, reader, state, options), frame, passes)


def _learn_passes(ps: Any, learner: BatchLearner, frame: Any, passes: Passes) -> list[BatchProgress]:
    learned: list[BatchProgress] = []
    can_return = ps.conf.checkpointDir is not None and ps.conf.recover != "shard"
    if can_return:
        ps.checkpoint()
    rollbacks = 0
    while len(learned) < passes.count:
        try:
            progress = learner.learn(frame, len(learned))
        except PS2Error as error:
            if not (is_repeatable(error) and can_return) or rollbacks == MAX_ROLLBACKS:
                raise
            rollbacks += 1
            learner.roll_back()
            log.warning("the pass begins again: %s", error)
            del learned[learner.position.learned + 1 :]
            continue
        assert progress is not None
        if not progress.rows + progress.late:
            raise InputError(NO_ROWS)
        learned.append(progress)
        log.info("%s", progress)
        passes.on_step(report_of(learned))
    return learned


def report_of(learned: Sequence[BatchProgress]) -> StepReport:
    """Return the last pass as a step of a training: its loss is that of rows before they were learned."""
    last = learned[-1]
    seconds, rows = (sum(getattr(each, name) for each in learned) for name in ("seconds", "rows"))
    return StepReport(
        len(learned), last.validation.logLoss, seconds, rows, 0, metrics={"AUC": last.validation.auc}, words=PASS
    )
