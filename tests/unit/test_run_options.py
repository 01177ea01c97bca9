"""What ps.run is asked for: each argument that cannot be used is named."""

from __future__ import annotations

import pytest

from ps2.errors import ConfigError
from ps2.rpc.run_control import Logged
from ps2.run.job_monitor import describe
from ps2.run.options import RunOptions


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workers": 0}, "workers: expected an integer from 1 to 65536, got 0"),
        ({"workers": 2.0}, "workers: expected an integer from 1 to 65536, got 2.0"),
        ({"workers": True}, "workers: expected an integer from 1 to 65536, got True"),
        ({"staleness": -1}, r"staleness: expected 0 \(BSP\), a positive integer \(SSP\) or None \(ASP\), got -1"),
        ({"staleness": 0.5}, "staleness: .* got 0.5"),
        ({"staleness": "bsp"}, "staleness: .* got 'bsp'"),
        ({"on_clock": 3}, "onClock: expected a function, got 3"),
        ({"on_log": "print"}, "onLog: expected a function, got 'print'"),
        ({"timeout_s": 0}, "timeoutS: expected a positive number of seconds, got 0"),
        ({"timeout_s": float("nan")}, "timeoutS: expected a positive number of seconds, got nan"),
        ({"timeout_s": "1"}, "timeoutS: expected a positive number of seconds, got '1'"),
        ({"first_clock": -1}, "firstClock: expected an integer that is not negative, got -1"),
        ({"first_clock": None}, "firstClock: expected an integer that is not negative, got None"),
        ({"seed": 0.5}, "seed: expected an integer that is not negative, got 0.5"),
        ({"progress": 1}, "progress: expected True or False, got 1"),
        ({"seed": -1}, "seed: expected an integer that is not negative, got -1"),
    ],
)
def test_run_options_when_one_cannot_be_used_then_it_is_named(fields, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        RunOptions(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"staleness": None},
        {"workers": 2, "staleness": 3},
        {"timeout_s": 0.5, "seed": 1 << 20},
    ],
)
def test_run_options_when_they_can_be_used_then_they_are_taken(fields):
    options = RunOptions(**fields)
    assert {name: getattr(options, name) for name in fields} == fields


def test_run_line_when_a_rank_is_behind_then_names_it():
    message = describe([17, 12], 2, 5, 4.0, Logged("loss", 0.25, 12))
    assert message == [
        "clock 12",
        "2 workers, SSP, staleness 5",
        "loss 0.25",
        "2.5 clocks/s",
        "rank 1 is 5 clocks behind",
    ]
    assert describe([12_345], 0, 0, 2.0, None)[2:] == ["6,172 clocks/s"]
    assert describe([3], 0, 0, 0.1, None) == ["clock 3", "1 worker, BSP"]
