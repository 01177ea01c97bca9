"""Numbers of steps are checked before anything is done with them."""

from __future__ import annotations

import pytest

from ps2.coordinator.checkpoints import Checkpoints
from ps2.coordinator.conf import PS2Conf
from ps2.coordinator.recovery import RecoveryLog
from ps2.coordinator.steps import Steps
from ps2.errors import ConfigError
from ps2.rpc.control import ServerControl
from ps2.run.host import ActiveRuns
from tests.fakes import FleetInProcess


@pytest.mark.parametrize("step", [-1, True, 1.5, "7"])
def test_checkpoint_when_step_is_no_number_then_is_refused_early(tmp_path, step):
    fleet = FleetInProcess(1)
    checkpoints = Checkpoints(fleet.master, ServerControl(fleet), str(tmp_path), 3)
    steps = Steps(checkpoints, None, fleet.master, ServerControl(fleet), PS2Conf(), ActiveRuns(), RecoveryLog())
    with pytest.raises(ConfigError, match=f"checkpoint: step: expected an integer >= 0, got {step!r}"):
        steps.checkpoint(None, step)
    assert list(tmp_path.iterdir()) == []
