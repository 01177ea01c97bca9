"""Arguments of ``PS2Context.getOrCreate`` that cannot work are refused by name, and a context that runs stays."""

from __future__ import annotations

import pytest

from ps2 import PS2Conf, PS2Context
from ps2.errors import ConfigError, UnavailableError


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"servers": 0}, ConfigError, r"servers: expected 1 to 4096, got 0"),
        ({"servers": -1}, ConfigError, r"servers: expected 1 to 4096, got -1"),
        ({"servers": 5000}, ConfigError, r"servers: expected 1 to 4096, got 5000"),
        ({"servers": "2"}, ConfigError, r"servers: expected an integer, got '2'"),
        ({"servers": 2.0}, ConfigError, r"servers: expected an integer, got 2.0"),
        ({"servers": True}, ConfigError, r"servers: expected an integer, got True"),
        ({"spark": 2}, ConfigError, r"spark: expected a SparkSession or SparkContext, got int"),
        ({"servers": 2, "fleet": "a:1"}, ConfigError, r"either servers .* or fleet .*, not both"),
        ({"fleet": ""}, ConfigError, r"fleet: expected HOST:PORT,HOST:PORT... or the name of a fleet, got ''"),
        ({"fleet": []}, ConfigError, r"fleet: expected HOST:PORT,HOST:PORT... or the name of a fleet, got \[\]"),
        ({"fleet": "host"}, UnavailableError, r"no fleet named 'host' was launched here"),
        ({"fleet": "host:99999"}, ConfigError, r"fleet: expected HOST:PORT, got 'host:99999'"),
        ({"fleet": 7070}, ConfigError, r"fleet: expected HOST:PORT,HOST:PORT... or the name of a fleet, got 7070"),
        (
            {"fleet": [7070]},
            ConfigError,
            r"fleet: expected HOST:PORT,HOST:PORT... or the name of a fleet, got \[7070\]",
        ),
        ({"tokenFile": "x"}, ConfigError, r"tokenFile needs fleet"),
        ({"memoryLimit": 0}, ConfigError, r"memoryLimit: expected a positive number of bytes, got 0"),
        (
            {"memoryLimit": 2**70},
            ConfigError,
            r"memoryLimit: expected at most 9,223,372,036,854,775,807 bytes",
        ),
        ({"memoryLimit": "8g"}, ConfigError, r"memoryLimit: expected a positive number of bytes, got '8g'"),
        (
            {"servers": 3},
            ConfigError,
            r"a context with 2 local servers is running, not with 3 local servers; stop\(\) it first",
        ),
        ({"fleet": "h:1"}, ConfigError, "a context with 2 local servers is running, not with the fleet h:1"),
        ({"conf": PS2Conf(strict=True)}, ConfigError, "strict: the running context has False, not True"),
        ({"heartbeatS": 1}, ConfigError, r"heartbeatS is a setting of PS2Conf: give conf=PS2Conf\(heartbeatS=1\)"),
        ({"memoryLimit": 1 << 20}, ConfigError, r"memoryLimit: the running context has None, not 1048576"),
    ],
)
def test_get_or_create_when_an_argument_is_wrong_then_refused(ps, arguments, error, text):
    with pytest.raises(error, match=text):
        PS2Context.getOrCreate(**arguments)
    assert PS2Context.getOrCreate() is ps
