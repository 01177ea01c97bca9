"""The program of online models, on servers in this process."""

from __future__ import annotations

from ps2.algorithms.online.program import OnlineProgram
from ps2.algorithms.online.settings import OnlineSettings
from ps2.coordinator.in_process import InProcessServers, in_process_session


def test_advance_when_rows_are_older_then_time_stays():
    settings = OnlineSettings(key_arguments={"clock": "event", "expireAfterS": 10.0})
    with in_process_session(InProcessServers(2, 1 << 30)):
        program = OnlineProgram(settings, settings.new_table())
        program.advance(100.0)
        program.advance(50.0)  # the newest row of a later training
        assert program.table.keyStatus().nowS == 100.0
