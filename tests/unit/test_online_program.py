"""The time of keys, which the programs of online and deep models advance, on servers in this process."""

from __future__ import annotations

import pytest

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.options import DeepOptions
from ps2.algorithms.deep.stream import DeepStreamProgram
from ps2.algorithms.online.program import OnlineProgram
from ps2.algorithms.online.settings import OnlineSettings
from ps2.client.embedding_table import EmbeddingTable
from ps2.coordinator.in_process import InProcessServers, in_process_session

PROGRAMS = {
    "online": lambda table: OnlineProgram(OnlineSettings(), table),
    "deep": lambda table: DeepStreamProgram(Architecture("deepfm", 2, 2, 2, (3,)), DeepOptions(), (), table),
}


@pytest.mark.parametrize("family", PROGRAMS)
@pytest.mark.parametrize(("clock", "now_s"), [("event", 100.0), ("wall", 0.0)])
def test_advance_when_rows_are_older_then_time_stays(family, clock, now_s):
    """Keys that go by the driver's clock have no times of rows."""
    with in_process_session(InProcessServers(2, 1 << 30)):
        program = PROGRAMS[family](EmbeddingTable(3, expireAfterS=10.0, clock=clock))
        program.advance(100.0)
        program.advance(50.0)  # the newest row of a later training
        assert program.table.keyStatus().nowS == now_s


@pytest.mark.parametrize(("optimizer", "l2", "factor_l2"), [("ftrl", 0.3, 0.5), ("adagrad", 0.5, None)])
def test_params_when_settings_differ_in_name_then_user_s(optimizer, l2, factor_l2):
    of_keys = {"expireAfterS": 9.0, "clock": "event"}
    found = OnlineSettings(2, optimizer, l2=0.3, decay=0.5, key_arguments=of_keys).params()
    assert (found["l2"], found.get("factorL2")) == (l2, factor_l2)
    assert (found["factorSize"], found["localSteps"], found["fitIntercept"]) == (2, True, True)
    assert found["expireAfterS"] == 9.0
    assert not {"clock", "life", "factors", "decay"} & set(found)
