"""What ``getOrCreate`` is asked for is checked before anything is started."""

from __future__ import annotations

import pytest

from ps2.coordinator.options import Options, addresses
from ps2.errors import ConfigError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"recover": "all"}, "recover: expected 'auto', 'shard' or 'consistent', got 'all'"),
        ({"replicas": 2}, "replicas: expected 0 or 1, got 2"),
        ({"replicas": True}, "replicas: expected 0 or 1, got True"),
        ({"replicas": 1, "servers": 1}, "replicas=1 needs two servers at least, got 1"),
        ({"replicas": 1, "fleet": ("h:1",)}, "replicas=1 needs two servers at least, got 1"),
        ({"checkpoint_every_s": 30.0}, "checkpointEveryS and checkpointEverySteps need a checkpointDir"),
        ({"checkpoint_every_steps": 3}, "checkpointEveryS and checkpointEverySteps need a checkpointDir"),
        ({"checkpoint_dir": "d", "checkpoint_every_steps": 0}, "checkpointEverySteps: expected 1 at least, got 0"),
        ({"checkpoint_dir": "d", "checkpoint_every_s": 0}, "checkpointEveryS: expected a positive number of seconds"),
        ({"checkpoint_dir": "d", "checkpoint_every_s": "30"}, "checkpointEveryS: expected a positive number of seco"),
        ({"checkpoint_dir": ""}, "checkpointDir: expected a path or a URL, got ''"),
        ({"restore": 7}, "restore: expected a path or a URL, got 7"),
        ({"keep": 0}, "keep: expected 1 at least, got 0"),
        ({"keep": 2.5}, "keep: expected an integer, got 2.5"),
        ({"heartbeat_s": -1.0}, "heartbeatS: expected a positive number of seconds, got -1.0"),
        ({"lost_after_s": float("nan")}, "lostAfterS: expected a positive number of seconds, got nan"),
        ({"lost_after_s": 1.5}, "lostAfterS: expected at least two heartbeats of 1.0 s, got 1.5"),
        ({"start_timeout_s": 0}, "startTimeoutS: expected a positive number of seconds, got 0"),
        ({"launcher": "yarn"}, "launcher: expected 'local' or 'spark', got 'yarn'"),
        ({"launcher": "spark", "fleet": ("h:1",)}, "launcher='spark' starts servers, and fleet attaches to some that"),
        ({"conf": {"spark.x": "1"}}, "conf goes with launcher='spark'"),
        ({"launcher": "spark", "conf": "spark.x=1"}, "conf: expected a dict of Spark's settings, got 'spark.x=1'"),
        ({"retry_timeout_s": 0}, "retryTimeoutS: expected a positive number of seconds, got 0"),
    ],
)
def test_options_when_one_cannot_be_used_then_it_is_named(fields, message):
    with pytest.raises(ConfigError) as caught:
        Options(**fields)
    assert str(caught.value).startswith(message)


def test_options_when_nothing_is_said_then_there_are_two_servers():
    assert Options().count == 2
    assert Options(fleet=("h:1", "h:2", "h:3")).count == 3


def test_check_same_when_nothing_else_is_asked_for_then_the_running_context_will_do():
    Options(servers=3, replicas=1, checkpoint_dir="d").check_same(Options())
    Options(servers=3).check_same(Options(servers=3))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"replicas": 1}, "replicas: 0 is that of the running context, not 1; stop() it first"),
        ({"checkpoint_dir": "d"}, "checkpointDir: None is that of the running context, not d; stop() it first"),
        ({"restore": "d"}, "restore: a context is running; stop() it first"),
        ({"servers": 3}, "a context with 2 local servers is running, not with 3 local servers; stop() it first"),
    ],
)
def test_check_same_when_something_else_is_asked_for_then_both_are_named(asked, message):
    with pytest.raises(ConfigError) as caught:
        Options(servers=2).check_same(Options(**asked))
    assert str(caught.value) == message


@pytest.mark.parametrize("fleet", ["", " , ", [], 7, ["h:1", 2]])
def test_addresses_when_there_are_none_then_the_form_is_named(fleet):
    with pytest.raises(ConfigError, match="fleet: expected HOST:PORT,HOST:PORT"):
        addresses(fleet)


def test_addresses_when_given_as_text_or_list_then_they_are_the_same():
    assert addresses("h:1, [::1]:2,") == addresses(["h:1", "[::1]:2"]) == ("h:1", "[::1]:2")
