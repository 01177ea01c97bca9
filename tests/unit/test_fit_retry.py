"""A fit whose servers are lost while no run can roll back starts again, a limited number of times."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ps2.algorithms.frame import retry
from ps2.algorithms.frame.retry import MAX_STARTS, retry_after_server_loss
from ps2.algorithms.training.run import IncompleteRunError
from ps2.errors import RecoveryError, UnavailableError, UsageError


class LosesServers:
    """A context whose servers come back from ``source``; as ``PS2Context`` has it."""

    def __init__(self, source="checkpoint", recover="auto", restore=None):
        self.conf, self._source, self._recoveries = SimpleNamespace(recover=recover, restore=restore), source, []
        self._coordinator = SimpleNamespace(
            conf=self.conf,
            is_stopped=False,
            active_runs=SimpleNamespace(rollbacks=0),
            recoveries=SimpleNamespace(all=lambda: self._recoveries),
            steps=SimpleNamespace(wait_for_servers=lambda: self._recoveries, acknowledge_rollback=lambda: None),
        )

    @property
    def recoveries(self):
        return self._recoveries

    def lose(self):
        self._recoveries.append(SimpleNamespace(source=self._source))


@pytest.fixture
def context(monkeypatch):
    """``context(...)``: such a context is the active one."""

    def make(*args, **kwargs):
        created = LosesServers(*args, **kwargs)
        monkeypatch.setattr(retry, "PS2Context", SimpleNamespace(getActive=lambda: created))
        return created

    return make


def losing(ps, times, error=None):
    """A fit that returns how often it has begun, and loses servers so often."""
    begun = []

    def fit():
        begun.append(1)
        if len(begun) <= times:
            ps.lose()
            if error is not None:
                raise error
        return len(begun)

    return fit


def test_a_fit_when_a_loss_is_not_seen_by_it_then_begins_anew(context):
    assert retry_after_server_loss(losing(context(), 2)) == 3


def test_a_fit_when_a_loss_makes_it_fail_then_begins_anew(context):
    assert retry_after_server_loss(losing(context(), 1, UnavailableError("gone"))) == 2


def test_a_fit_when_its_run_rolled_back_then_is_done(context):
    ps = context()

    def fit():
        ps.lose()
        ps._coordinator.active_runs.rollbacks += 1
        return "done"

    assert retry_after_server_loss(fit) == "done"


def test_a_fit_when_its_run_has_come_to_a_part_then_begins_anew(context):
    ps, begun = context(), []

    def fit():
        begun.append(1)
        if len(begun) == 1:
            ps.lose()
            ps._coordinator.active_runs.rollbacks += 1
            raise IncompleteRunError("counts are being made anew")
        return "done"

    assert retry_after_server_loss(fit) == "done"


@pytest.mark.parametrize("settings", [{"source": "replica"}, {"source": "handover"}, {"recover": "shard"}])
def test_a_fit_when_nothing_is_to_be_done_again_then_is_done(context, settings):
    assert retry_after_server_loss(losing(context(**settings), 1)) == 1


def test_a_fit_when_it_fails_by_itself_then_raises_that(context):
    context()

    def fit():
        raise UsageError("of its own")

    with pytest.raises(UsageError, match="of its own"):
        retry_after_server_loss(fit)


def test_a_fit_when_servers_die_for_ever_then_names_the_count(context):
    with pytest.raises(RecoveryError, match=f"a fit has started {MAX_STARTS} times"):
        retry_after_server_loss(losing(context(), MAX_STARTS))


def test_a_fit_when_it_goes_on_from_a_checkpoint_then_says_so(context):
    with pytest.raises(RecoveryError, match="does not start again: restore the checkpoint again"):
        retry_after_server_loss(losing(context(restore="hdfs:///models"), 1))
