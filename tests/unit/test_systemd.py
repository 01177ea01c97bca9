"""The unit of systemd: what it starts is a command that there is."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

from ps2.cli.server import server

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "ps2-server.service"


def test_the_server_knows_all_arguments_of_the_unit():
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read(UNIT)
    program, command, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert (Path(program).name, command) == ("ps2", "server")
    server.make_context("server", arguments)
