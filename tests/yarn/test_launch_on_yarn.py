"""``ps2 launch --on spark`` on YARN, as docs/deploy.md says it: a fleet that drivers attach to."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ps2 import DCV, PS2Context
from tests.yarn.conftest import SMALL

pytestmark = pytest.mark.nightly
PS2 = Path(sys.executable).with_name("ps2")


@pytest.fixture
def ps2(cluster, tmp_path):
    """``ps2(*arguments)``: run a command that is to succeed; return what it prints."""

    def run(*arguments):
        environment = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
        finished = subprocess.run(
            [PS2, *arguments], env=environment, capture_output=True, text=True, timeout=200, check=False
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    return run


def test_launch_when_driver_attached_then_ends_with_stop_or_kill(ps2, processes, tmp_path, until):
    launch = ["launch", "--on", "spark", "--servers", "1", "--memory", "64m", "--host", "127.0.0.1", "--detach", "--"]
    launch += ["--master", "yarn", "--queue", "default"]
    launch += [part for name, value in SMALL.items() for part in ("--conf", f"{name}={value}")]
    state = tmp_path / "ps2" / "default"
    for end in ("stop", "kill"):
        addresses = re.findall(r"^  (\S+)  container container_", ps2(*launch), re.MULTILINE)
        with PS2Context.getOrCreate(fleet=addresses, tokenFile=str(state / "token")):
            assert DCV.dense(10).fill(2.0).sum() == 20.0
        (server,) = json.loads(ps2("status", "-o", "json"))["servers"]
        application = re.search(r"container_(?:e\d+_)?(\d+_\d+)_", server["container"])[1]
        assert processes(application)
        if end == "stop":
            ps2("stop")
        else:
            psutil.Process(json.loads((state / "fleet.json").read_text())["launcher"]["pid"]).kill()
        until(lambda found=application: not processes(found), "its containers have ended", 60)
