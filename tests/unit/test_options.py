"""What ``getOrCreate`` is asked for is checked before anything is started."""

from __future__ import annotations

import dataclasses
import os
import re

import pytest

from ps2 import DCV, EmbeddingTable, PS2Context
from ps2.config import WireConfig
from ps2.coordinator.conf import NAMES, PS2Conf, with_overrides
from ps2.coordinator.settings import addresses, variable_name
from ps2.errors import ConfigError, UnavailableError
from ps2.serving import Scorer


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"recover": "all"}, "recover: expected 'auto', 'shard' or 'consistent', got 'all'"),
        ({"replicas": 2}, "replicas: expected 0 or 1, got 2"),
        ({"replicas": True}, "replicas: expected 0 or 1, got True"),
        ({"replicas": 1, "servers": 1}, "replicas=1 needs at least two servers, got 1"),
        ({"replicas": 1, "fleet": ("h:1",)}, "replicas=1 needs at least two servers, got 1"),
        ({"checkpointEveryS": 30.0}, "checkpointEveryS and checkpointEverySteps need a checkpointDir"),
        ({"checkpointEverySteps": 3}, "checkpointEveryS and checkpointEverySteps need a checkpointDir"),
        ({"checkpointDir": "d", "checkpointEverySteps": 0}, "checkpointEverySteps: expected at least 1, got 0"),
        ({"checkpointDir": "d", "checkpointEveryS": 0}, "checkpointEveryS: expected a positive number of seconds"),
        ({"checkpointDir": "d", "checkpointEveryS": "30"}, "checkpointEveryS: expected a positive number of seco"),
        ({"checkpointDir": ""}, "checkpointDir: expected a path or a URL, got ''"),
        ({"restore": 7}, "restore: expected a path or a URL, got 7"),
        ({"keep": 0}, "keep: expected at least 1, got 0"),
        ({"keep": 2.5}, "keep: expected an integer, got 2.5"),
        ({"heartbeatS": -1.0}, "heartbeatS: expected a positive number of seconds, got -1.0"),
        ({"lostAfterS": float("nan")}, "lostAfterS: expected a positive number of seconds, got nan"),
        ({"lostAfterS": 1.5}, "lostAfterS: expected at least two heartbeats of 1.0 s, got 1.5"),
        ({"startTimeoutS": 0}, "startTimeoutS: expected a positive number of seconds, got 0"),
        ({"launcher": "yarn"}, "launcher: expected one of 'attach', 'local', 'spark', got 'yarn'"),
        ({"launcher": "spark", "fleet": ("h:1",)}, "launcher='spark' starts servers, and fleet attaches to running"),
        ({"sparkConf": {"spark.x": "1"}}, "sparkConf needs launcher='spark'"),
        (
            {"launcher": "spark", "sparkConf": "spark.x=1"},
            "sparkConf: expected a dict of Spark's settings, got 'spark.x=1'",
        ),
        ({"retryTimeoutS": 0}, "retryTimeoutS: expected a positive number of seconds, got 0"),
    ],
)
def test_options_when_one_cannot_be_used_then_it_is_named(fields, message):
    with pytest.raises(ConfigError) as caught:
        PS2Conf(**fields).check()
    assert str(caught.value).startswith(message)


def test_options_when_nothing_is_said_then_there_are_two_servers():
    assert PS2Conf().count == 2
    assert PS2Conf(fleet=("h:1", "h:2", "h:3")).count == 3


def test_check_same_when_no_other_setting_then_context_is_reused():
    PS2Conf(servers=3, replicas=1, checkpointDir="d").check_same(PS2Conf())
    PS2Conf(servers=3).check_same(PS2Conf(servers=3))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"replicas": 1}, "replicas: the running context has 0, not 1; stop() it first"),
        ({"checkpointDir": "d"}, "checkpointDir: the running context has None, not d; stop() it first"),
        ({"restore": "d"}, "restore: a context is running; stop() it first"),
        ({"servers": 3}, "a context with 2 local servers is running, not with 3 local servers; stop() it first"),
    ],
)
def test_check_same_when_setting_differs_then_error_names_both(asked, message):
    with pytest.raises(ConfigError) as caught:
        PS2Conf(servers=2).check_same(PS2Conf(**asked))
    assert str(caught.value) == message


@pytest.mark.parametrize("fleet", ["", " , ", [], 7, ["h:1", 2]])
def test_addresses_when_there_are_none_then_the_form_is_named(fleet):
    with pytest.raises(ConfigError, match="fleet: expected HOST:PORT,HOST:PORT"):
        addresses(fleet)


def test_fleet_when_a_name_is_unknown_then_error_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(
        UnavailableError, match=r"^no fleet named 'audit' was launched here; start one with 'ps2 launch'"
    ):
        PS2Conf(fleet="audit")
    with pytest.raises(ConfigError, match=r"expected HOST:PORT,HOST:PORT.* or the name of a fleet, got 'a,b'"):
        PS2Conf(fleet="a,b")


def test_addresses_when_text_or_list_then_are_equal():
    assert addresses("h:1, [::1]:2,") == addresses(["h:1", "[::1]:2"]) == ("h:1", "[::1]:2")


@pytest.fixture
def variables(monkeypatch):
    """Set variables of the environment; no others are ours."""
    for name in [name for name in os.environ if name.startswith("PS2_")]:
        monkeypatch.delenv(name)
    return lambda **given: [monkeypatch.setenv(name, value) for name, value in given.items()]


def test_load_when_file_variable_keyword_differ_then_last_wins(tmp_path, variables):
    file = tmp_path / "ps2.yaml"
    file.write_text("heartbeatS: 2.0\nlostAfterS: 20\nkeep: 7\nsparkConf: {spark.a: b}\n")
    variables(PS2_LOST_AFTER_S="30", PS2_KEEP="8", PS2_OPS="a.b,c.d", PS2_STRICT="true", PS2_CHECKPOINT_DIR="12")
    result = PS2Conf.load(file, keep=9)
    assert (result.heartbeatS, result.lostAfterS, result.keep) == (2.0, 30, 9)
    assert (result.modules, result.strict, result.checkpointDir) == (("a.b", "c.d"), True, "12")
    assert result.sparkConf == {"spark.a": "b"}


@pytest.mark.parametrize("name", NAMES)
def test_load_when_a_variable_is_empty_then_it_says_nothing(name, variables):
    for text in ("", " \r\n"):
        variables(**{variable_name(name): text})
        assert PS2Conf.load() == PS2Conf()


def test_load_when_a_variable_has_a_line_break_then_cut_off(variables):
    variables(PS2_CHECKPOINT_DIR="/data/checkpoints\n", PS2_TOKEN_FILE=" /run/token\r", PS2_SERVERS="4\r\n")
    assert PS2Conf.load() == PS2Conf(checkpointDir="/data/checkpoints", tokenFile="/run/token", servers=4)


@pytest.mark.parametrize(("text", "value"), [("010", 10), ("+7", 7), ("1_000", 1000), ("08", 8), ("0009", 9)])
def test_load_when_integers_begin_with_0_then_decimal(text, value, variables, tmp_path):
    """As in ``ps2 launch --servers 010`` and in YAML 1.2; YAML 1.1 reads 8."""
    file = tmp_path / "ps2.yaml"
    file.write_text(f"keep: {text}\nsparkConf: {{spark.a: {text}}}\n")
    variables(PS2_SERVERS=text)
    from_file = PS2Conf.load(file)
    assert (from_file.keep, from_file.sparkConf, PS2Conf.load().servers) == (value, {"spark.a": value}, value)


@pytest.mark.parametrize("text", ["1:30", "0x10", "0b11", "0o17", "1__0", "1_"])
def test_load_when_number_is_not_decimal_then_config_error(text, variables):
    variables(PS2_SERVERS=text)
    with pytest.raises(ConfigError, match=f"servers: expected .*'{text}'"):
        PS2Conf.load().check()


@pytest.mark.parametrize("text", ["2.5", "2.5e0", "25e-1", "+02.50"])
def test_load_when_floats_are_decimal_then_are_read(text, variables):
    variables(PS2_HEARTBEAT_S=text)
    assert PS2Conf.load().heartbeatS == 2.5


def test_load_when_float_is_sexagesimal_then_config_error(variables):
    variables(PS2_LOST_AFTER_S="1:30.5")
    with pytest.raises(ConfigError, match=r"lostAfterS: expected .*'1:30\.5'"):
        PS2Conf.load().check()


@pytest.mark.parametrize("text", ["0", "0\n", "false", "Off", "no"])
def test_wire_when_variables_turn_paths_off_then_both_are_off(variables, text):
    variables(PS2_UNIX_SOCKETS=text, PS2_FAST_PATH=text)
    assert (WireConfig().unix_sockets, WireConfig().fast_path) == (False, False)


@pytest.mark.parametrize("text", ["", "1", "true"])
def test_wire_when_variables_turn_nothing_off_then_both_are_on(variables, text):
    variables(PS2_UNIX_SOCKETS=text, PS2_FAST_PATH=text)
    assert (WireConfig().unix_sockets, WireConfig().fast_path) == (True, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("heartBeatS: 1", "no setting is named 'heartBeatS'; did you mean heartbeatS?"),
        ("- 1", "expected a mapping of names to values, got '- 1'"),
        ("keep: [", "expected YAML, got 'keep: ['"),
        ("keep: many", "keep: expected an integer, got 'many'"),
    ],
)
def test_load_when_a_file_is_none_of_settings_then_says_why(tmp_path, variables, text, message):
    (tmp_path / "ps2.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        PS2Conf.load(tmp_path / "ps2.yaml")
    assert message in str(caught.value)


def test_load_when_there_is_no_file_then_config_error(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        PS2Conf.load(tmp_path / "nowhere.yaml")


def test_load_when_a_variable_is_nearly_a_setting_then_warns(variables, caplog):
    variables(PS2_HEARTBEATS="1", PS2_PORT="tcp://10.0.0.1:7070", PS2_LANES="0")
    assert PS2Conf.load() == PS2Conf()
    assert [record.getMessage() for record in caplog.records] == [
        "environment variable PS2_HEARTBEATS is not a setting of PS2Conf; PS2_HEARTBEAT_S is"
    ]


def test_with_overrides_when_keywords_are_given_then_they_win():
    created = with_overrides(PS2Conf(servers=3, keep=5), {}, servers=2, replicas=None)
    assert created == PS2Conf(servers=2, keep=5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("heartbeatS", "heartbeatS is a setting of PS2Conf: give conf=PS2Conf(heartbeatS=1)"),
        ("heartbeats", "no setting is named 'heartbeats'; did you mean heartbeatS?"),
    ],
)
def test_with_overrides_when_keyword_is_foreign_then_says_where(name, message):
    with pytest.raises(ConfigError) as caught:
        with_overrides(None, {name: 1})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("call", "name", "near"),
    [
        (PS2Conf, "server", "servers"),
        (PS2Conf, "checkpoint_dir", "checkpointDir"),
        (PS2Context.run, "stalness", "staleness"),
        (PS2Context.run, "on_clock", "onClock"),
        (PS2Context.checkpoint, "paht", "path"),
        (DCV.dense, "Dim", "dim"),
        (DCV.sparse, "admit_after", "admitAfter"),
        (EmbeddingTable, "optimiser", "optimizer"),
        (Scorer, "refresh_s", "refreshS"),
    ],
)
def test_call_when_keyword_is_misspelt_then_error_has_nearest(call, name, near):
    expected = f"{call.__qualname__}: there is no keyword {name!r}; did you mean {near}?"
    with pytest.raises(TypeError, match=re.escape(expected)):
        call(**{name: 1})


@pytest.mark.parametrize(("name", "near"), [("sever", "servers"), ("driver_host", "driverHost"), ("Spark", "spark")])
def test_context_when_keyword_is_misspelt_then_error_has_nearest(name, near):
    with pytest.raises(ConfigError, match=rf"getOrCreate: no setting is named '{name}'; did you mean {near}\?"):
        PS2Context.getOrCreate(**{name: 1})


@pytest.mark.parametrize(("conf", "hint"), [({"spark.x": "1"}, "sparkConf={...}"), ("ps2.yaml", "got 'ps2.yaml'")])
def test_with_overrides_when_conf_has_wrong_type_then_error(conf, hint):
    with pytest.raises(ConfigError, match="conf: expected a PS2Conf") as caught:
        with_overrides(conf, {})
    assert hint in str(caught.value)


def test_conf_when_printed_then_each_setting_has_a_line():
    lines = str(PS2Conf(keep=5)).splitlines()
    assert [line.split(" = ")[0] for line in lines] == list(NAMES)
    assert "keep = 5" in lines
    assert "heartbeatS = 1.0 (default)" in lines


def test_conf_when_same_values_in_other_forms_then_equal():
    one = PS2Conf(fleet="h:1, h:2,", ops="a", ports=40000, bindAddress="[::1]")
    assert one == PS2Conf(fleet=["h:1", "h:2"], ops=["a"], ports="40000", bindAddress="::1")
    assert dataclasses.replace(one) == one


def test_conf_when_read_then_each_setting_is_documented():
    assert [name for name in NAMES if f"\n        {name}: " not in PS2Conf.__doc__] == []
