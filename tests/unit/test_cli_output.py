"""What the command line prints, without any server."""

from __future__ import annotations

import json

import click
import pytest
import yaml
from click.testing import CliRunner

from ps2.cli import main as command_line
from ps2.cli.options import parse_bytes
from ps2.cli.output import exit_code
from ps2.errors import AuthError, ConfigError, DeadlineError, OpError, UnavailableError
from ps2.formats import duration, short_time, size
from ps2.ops.all import TABLE
from ps2.text_tables import split_columns


def ps2(*arguments):
    return CliRunner().invoke(command_line.cli, arguments, env={"COLUMNS": "80"})


@pytest.mark.parametrize(
    ("option", "given"), [("--listen", "::1:70"), ("--listen", "[::1]:99999"), ("--master", "host")]
)
def test_server_when_an_address_is_wrong_then_says_so_first(option, given):
    messages = ps2("server", option, given).exception
    assert isinstance(messages, ConfigError)
    assert str(messages).startswith(f"{option}: expected HOST:PORT")


def test_fleet_when_it_is_a_name_then_error_has_the_option():
    assert str(ps2("status", "--fleet", "audit").exception).endswith("got 'audit'; a name needs --name audit")


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), ((1 << 20) - 1, "1.0 MiB"), (25 << 30, "25.0 GiB")],
)
def test_size_when_bytes_are_given_then_uses_the_largest_unit(count, text):
    assert size(count) == text


@pytest.mark.parametrize(
    ("time_s", "text"), [(0.9, "0s"), (42, "42s"), (185, "3m 5s"), (7200, "2h 0m"), (370_000, "4d 6h")]
)
def test_duration_when_seconds_are_given_then_uses_two_units(time_s, text):
    assert duration(time_s) == text


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0, "0"),
        (1.234e-6, "1.23 us"),
        (0.000_999_4, "999 us"),
        (0.000_999_6, "1 ms"),
        (0.0123, "12.3 ms"),
        (59.94, "59.9 s"),
        (185, "3m 5s"),
    ],
)
def test_short_time_when_seconds_are_given_then_has_three_digits(time_s, text):
    assert short_time(time_s) == text


@pytest.mark.parametrize(
    ("error", "code"), [(OpError, 1), (ConfigError, 2), (UnavailableError, 4), (DeadlineError, 4), (AuthError, 6)]
)
def test_exit_code_when_an_error_is_given_then_tells_what_to_do(error, code):
    assert exit_code(error("so")) == code


def test_main_when_interrupted_then_exits_130_in_silence(monkeypatch, capsys):
    @click.command()
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "cli", interrupted)
    monkeypatch.setattr("sys.argv", ["ps2"])
    with pytest.raises(SystemExit) as exit:
        command_line.main()
    assert (exit.value.code, capsys.readouterr().err.strip()) == (130, "")


@pytest.mark.parametrize(
    ("widths", "room", "parts"),
    [
        ((10, 5, 5), 24, [[0, 1, 2]]),
        ((10, 5, 5), 23, [[0, 1], [0, 2]]),
        ((10, 5, 20, 5), 30, [[0, 1], [0, 2], [0, 3]]),
        ((10,), 5, [[0]]),
    ],
)
def test_table_when_too_wide_then_continues_with_first_column(widths, room, parts):
    assert split_columns(widths, room) == parts


def test_ops_when_piped_then_has_one_line_an_operation():
    lines = ps2("ops").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(TABLE)


def test_ops_when_parameter_has_range_then_shows_it_and_default():
    (line,) = [line for line in ps2("ops").stdout.splitlines() if line.startswith("adam ")]
    assert "lr > 0; beta1 = 0.9, in [0, 1); beta2 = 0.999, in [0, 1); eps = 1e-08, > 0; step >= 1" in line


def test_ops_when_one_is_named_then_shows_full_documentation():
    assert "beta1: decay of the gradients' mean" in ps2("ops", "adam").stdout


def test_ops_when_json_then_is_one_object_with_all_operations():
    assert [op["name"] for op in json.loads(ps2("ops", "-o", "json").stdout)["operations"]] == list(TABLE)


@pytest.mark.parametrize("text", ["9223372036854775808", "99999999999999999999g", "9" * 5000, "0", "00k", "8x", ""])
def test_memory_limit_when_it_cannot_be_then_usage_error(text):
    finished = ps2("server", "--insecure", "--memory-limit", text)
    assert finished.exit_code == 2
    assert "bytes" in finished.output


def test_memory_limit_when_it_is_the_largest_then_it_is_read():
    assert parse_bytes("9223372036854775807") == 2**63 - 1


def test_launch_when_ports_would_run_out_then_names_the_last_one():
    result = ps2("launch", "--servers", "9", "--port", "65530")
    assert isinstance(result.exception, ConfigError)
    assert "65538" in str(result.exception)


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 65])
def test_name_when_it_is_no_plain_word_then_is_refused(name):
    assert isinstance(ps2("status", "--name", name).exception, ConfigError)


def test_selectors_when_both_are_given_then_are_refused():
    assert isinstance(ps2("stop", "--name", "a", "--fleet", "h:1").exception, ConfigError)


def test_ops_when_yaml_then_it_says_what_json_says():
    assert yaml.safe_load(ps2("ops", "adam", "-o", "yaml").stdout) == json.loads(
        ps2("ops", "adam", "-o", "json").stdout
    )
