"""Begin a fit again when a server was lost and the run could not roll back to a checkpoint."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import TypeVar

from ps2.algorithms.training.run import NotWhole
from ps2.coordinator.context import PS2Context
from ps2.coordinator.training_host import training_host
from ps2.errors import PS2Error, RecoveryError

T = TypeVar("T")

log = logging.getLogger(__name__)

# How often a fit may begin.
MAX_BEGINNINGS = 20


def retry_after_server_loss(fit: Callable[[], T]) -> T:
    """Fit; begin again if a server was lost and the run could not recover from it.

    There are three such cases. Before the run's first checkpoint, the server comes back from an older checkpoint, which
    lacks what the fit put there. After all workers have ended, no worker can repeat what is missing. And in its last
    clocks, a run whose workers may be in different clocks cannot roll back (``NotWhole``).
    """
    for beginning in itertools.count(1):
        ps, failure = PS2Context.getActive(), None
        before, recoveries = _losses(ps), _recoveries(ps)
        try:
            fitted = fit()
        except PS2Error as error:
            failure = error
        ps = PS2Context.getActive()
        if failure is not None and not _settled(ps):
            raise failure
        is_part = isinstance(failure, NotWhole) and _recoveries(ps) > recoveries
        if _losses(ps) <= before and not is_part:
            if failure is not None:
                raise failure
            return fitted
        assert ps is not None
        training_host(ps).acknowledge_rollback()
        if beginning == MAX_BEGINNINGS or ps.conf.restore is not None:
            why = (
                f"a fit has begun {beginning} times"
                if ps.conf.restore is None
                else "a fit that goes on with the training of a checkpoint does not begin anew: restore it once more"
            )
            raise RecoveryError(
                f"servers were lost before a checkpoint held what the fit had put there, or after its workers had "
                f"ended, and {why}: {ps.recoveries[-1]}"
            ) from failure
        lacking = str(failure) if is_part else "servers came back without what it had put there"
        log.warning("the fit begins anew: %s: %s", lacking, ps.recoveries[-1])
    raise AssertionError("it counts without end")


def _losses(ps: PS2Context | None) -> int:
    """Return how many recoveries have lost data that no run restored."""
    return 0 if ps is None else training_host(ps).unhandled_losses()


def _recoveries(ps: PS2Context | None) -> int:
    return 0 if ps is None else len(ps.recoveries)


def _settled(ps: PS2Context | None) -> bool:
    """Wait until all servers answer; return False if they do not."""
    if ps is None or (host := training_host(ps)).is_stopped():
        return False
    try:
        host.wait_for_servers()
    except PS2Error:
        return False
    return True
