"""The unit of systemd: what it starts is a server, which ends as it is told to."""

from __future__ import annotations

import configparser
import shlex
import subprocess
import sys
from pathlib import Path
from string import Template

import pytest

from ps2 import DCV, PS2Context
from ps2.cli.server import server as server_command
from ps2.config import new_token, write_token
from tests.ports import free_port

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "ps2-server.service"


@pytest.fixture
def service():
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read(UNIT)
    return unit["Service"]


def test_unit_when_started_then_serves_driver_and_stops(service, tmp_path, until):
    command = service["ExecStart"]
    assert command.startswith("/opt/ps2/bin/ps2 server --listen [::]:7070 --data-port 7071 ")
    address = f"127.0.0.1:{free_port()}"
    # Here others listen there, and the token is where LoadCredential of this unit brings it.
    program = str(Path(sys.executable).with_name("ps2"))
    for there, here in (("/opt/ps2/bin/ps2", program), ("[::]:7070", address), ("port 7071", "port 0")):
        command = command.replace(there, here)
    credential, source = service["LoadCredential"].split(":")
    assert (credential, source) == ("token", "/etc/ps2/token")
    write_token(tmp_path / credential, new_token())
    arguments = shlex.split(Template(command).substitute(CREDENTIALS_DIRECTORY=tmp_path))
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen(arguments, stdout=log, stderr=log)
    try:
        until(lambda: "listening on" in (tmp_path / "log").read_text(), "it listens", 30)
        with PS2Context.getOrCreate(fleet=address, tokenFile=str(tmp_path / credential)):
            assert DCV.dense(10).fill(2.0).sum() == 20.0
        server.terminate()
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.wait()
    # What is waited for at most, and what the unit waits.
    assert float(server_command.make_context("server", arguments[2:]).params["drain"]) < int(service["TimeoutStopSec"])
