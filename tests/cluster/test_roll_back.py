"""A program lets the whole fleet roll back to its newest checkpoint."""

from __future__ import annotations

import numpy as np
import pytest

from ps2 import DCV, PS2Context
from ps2.errors import RecoveryError


@pytest.mark.parametrize("replicas", [0, 1])
def test_roll_back_when_called_then_all_is_at_the_checkpoint(tmp_path, replicas):
    with PS2Context.getOrCreate(servers=2, checkpointDir=str(tmp_path), replicas=replicas) as ps:
        weight = DCV.dense(100, dtype="float64").fill(1.0)
        ps.checkpoint(step=5)
        weight.fill(2.0)
        assert ps.rollBack() == 5
        weight.add(np.ones(100))
        assert weight.sum() == 200
        assert [(r.servers, r.source, r.rolledBack) for r in ps.recoveries] == [((), "checkpoint", True)]


def test_roll_back_when_there_is_no_checkpoint_then_it_says_so():
    with PS2Context.getOrCreate(servers=1) as ps, pytest.raises(RecoveryError, match="there is no checkpoint"):
        ps.rollBack()
