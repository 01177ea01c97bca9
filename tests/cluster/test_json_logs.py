"""With PS2_LOG=json a server process and a driver say one line of JSON for each event."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ps2.config import new_token, write_token
from tests.commands import ps2

ENVIRONMENT = {**os.environ, "PS2_LOG": "json"}
DRIVER = """
import logging, sys
from ps2 import DCV, PS2Context

with PS2Context.getOrCreate(fleet=sys.argv[1], tokenFile=sys.argv[2]) as ps:
    logging.getLogger("ps2.of_this_test").warning("sum %g", DCV.dense(10).fill(1.0).sum())
    print(ps._coordinator.fleet.master.id)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory, leaves_nothing, until, forked):
    """The lines of a server and of a driver, and the id of the fleet."""
    folder = tmp_path_factory.mktemp("logs")
    token, log = folder / "token", folder / "log"
    write_token(token, new_token())
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PS2_LOG", "json")
        server = forked(["server", "--listen", "127.0.0.1:0", "--token-file", token], log)
    try:
        until(lambda: b"listening on" in log.read_bytes(), "the server listens", 60)
        address = json.loads(log.read_text().splitlines()[0])["message"].split()[2].rstrip(",")
        driver = subprocess.run(
            [sys.executable, "-c", DRIVER, address, str(token)],
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
            env=ENVIRONMENT,
        )
    finally:
        server.terminate()
        server.wait(20)
    lines = {"server": log.read_text(), "driver": driver.stderr}
    return {who: [json.loads(line) for line in text.splitlines()] for who, text in lines.items()}, driver.stdout.strip()


def test_server_when_json_is_asked_for_then_all_lines_are_json(said):
    lines, fleet = said
    assert all({"ts", "level", "logger", "message", "server"} <= line.keys() for line in lines["server"])
    assert lines["server"][-1]["message"] == "stopping"
    assert len({line["server"] for line in lines["server"]}) == 1
    assert {line.get("fleet") for line in lines["server"]} <= {None, fleet}


def test_driver_when_json_is_asked_for_then_all_lines_are_json(said):
    lines, fleet = said
    assert {line["fleet"] for line in lines["driver"]} == {fleet}
    assert "sum 10" in [line["message"] for line in lines["driver"]]
    assert any("live page at http" in line["message"] for line in lines["driver"])


def test_server_when_the_format_is_unknown_then_exits_2():
    finished = ps2("server", "--insecure", PS2_LOG="xml")
    assert (finished.returncode, finished.stderr) == (2, "ps2: PS2_LOG: expected 'text' or 'json', got 'xml'\n")
