"""Start a fit again if a server was lost and the run could not roll back to a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ps2.algorithms.training.run import IncompleteRunError
from ps2.coordinator.context import PS2Context
from ps2.coordinator.training_host import training_host
from ps2.errors import PS2Error, RecoveryError

T = TypeVar("T")

log = logging.getLogger(__name__)

# The maximum number of times that a fit starts.
MAX_STARTS = 20


def retry_after_server_loss(fit: Callable[[], T]) -> T:
    """Call ``fit``; call it again if a server was lost and the run could not recover from it.

    There are three such cases. Before the run's first checkpoint, the server is restored from an older checkpoint,
    which lacks the fit's vectors. After all workers have ended, no worker can repeat the lost updates. If workers can
    be in different clocks, a run in its last clocks cannot roll back (``IncompleteRunError``).
    """
    starts = 0
    while True:
        starts += 1
        ps, failure = PS2Context.getActive(), None
        losses, recoveries = _losses(ps), _recoveries(ps)
        try:
            model = fit()
        except PS2Error as error:
            failure = error
        ps = PS2Context.getActive()
        if failure is not None and not _servers_answer(ps):
            raise failure
        is_incomplete = isinstance(failure, IncompleteRunError) and _recoveries(ps) > recoveries
        if _losses(ps) <= losses and not is_incomplete:
            if failure is not None:
                raise failure
            return model
        assert ps is not None
        training_host(ps).acknowledge_rollback()
        if starts == MAX_STARTS or ps.conf.restore is not None:
            reason = (
                f"a fit has started {starts} times"
                if ps.conf.restore is None
                else "a fit that resumes a checkpoint's training does not start again: restore the checkpoint again"
            )
            raise RecoveryError(
                f"servers were lost before a checkpoint contained the fit's vectors, or after its workers had ended, "
                f"and {reason}: {ps.recoveries[-1]}"
            ) from failure
        cause = str(failure) if is_incomplete else "servers were restored without its vectors"
        log.warning("the fit starts again: %s: %s", cause, ps.recoveries[-1])


def _losses(ps: PS2Context | None) -> int:
    """Return the number of recoveries with losses that no run has repaired by a rollback."""
    return 0 if ps is None else training_host(ps).unhandled_losses()


def _recoveries(ps: PS2Context | None) -> int:
    return 0 if ps is None else len(ps.recoveries)


def _servers_answer(ps: PS2Context | None) -> bool:
    """Wait until all servers answer; return False if they do not."""
    if ps is None or (host := training_host(ps)).is_stopped():
        return False
    try:
        host.wait_for_servers()
    except PS2Error:
        return False
    return True
