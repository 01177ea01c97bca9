"""Learning from a DataFrame that is no stream: its passes are the batches."""

from __future__ import annotations

import logging
import uuid
from typing import Any

from ps2.algorithms.training.streams.labelled_rows import LabelledReader
from ps2.algorithms.training.streams.learner import BatchLearner, BatchProgress, LearnerOptions
from ps2.algorithms.training.streams.state import StreamState
from ps2.algorithms.training.streams.task import LearningProgram
from ps2.errors import PS2Error, UsageError

log = logging.getLogger(__name__)

# How often a pass begins again.
MOST_RETURNS = 20


def learn_frame(
    ps: Any,
    program: LearningProgram,
    reader: LabelledReader,
    options: LearnerOptions,
    frame: Any,
    passes: int,
) -> list[BatchProgress]:
    """Learn from a DataFrame; return the progress of each pass.

    With a checkpointDir, the fleet makes a checkpoint first, and goes back to it if a server is lost.

    Raises:
        InputError: rows cannot be learned from; the model may hold some of the others.
        LostError: a server was lost, and there is no checkpoint.
    """
    learned: list[BatchProgress] = []
    can_return = ps.conf.checkpointDir is not None and ps.conf.recover != "shard"
    with ps._steps.streams.stream(uuid.uuid4().hex):
        state = StreamState.new()
        learner = BatchLearner(ps, program, reader, state, options)
        if can_return:
            ps.checkpoint()
        returns = 0
        while len(learned) < passes:
            try:
                progress = learner.learn(frame, len(learned))
            except UsageError:
                raise
            except PS2Error as error:
                if not can_return or returns == MOST_RETURNS:
                    raise
                returns += 1
                learner.go_back()
                log.warning("the pass begins again: %s", error)
                del learned[learner.position.learned + 1 :]
                continue
            assert progress is not None
            learned.append(progress)
            log.info("%s", progress)
    return learned
