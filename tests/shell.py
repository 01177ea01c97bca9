"""``ps2`` as a shell runs it, with a folder for what it notes of launched fleets."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import psutil

from tests.commands import ps2

PS2 = [sys.executable, "-m", "ps2.cli.main"]
START_TIMEOUT_S = 60.0


class Shell:
    """Runs ``ps2`` with a state folder of its own."""

    def __init__(self, home):
        self.folder = home / "ps2"
        self.environment = {**os.environ, "XDG_STATE_HOME": str(home), "COLUMNS": "80"}
        self.environment.pop("PS2_TOKEN_FILE", None)

    def run(self, *arguments, **variables):
        """Run a command in this process."""
        return ps2(*arguments, XDG_STATE_HOME=str(self.folder.parent), **variables)

    def launch(self, *arguments, **variables):
        """Run ``ps2 launch --detach`` as a process: servers that stay note which process launched them."""
        return subprocess.run(
            [*PS2, "launch", "--detach", *map(str, arguments)],
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )

    @contextlib.contextmanager
    def driver(self, script, **variables):
        """Run a program; kill it in the end."""
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            env={**self.environment, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    @contextlib.contextmanager
    def background(self, *arguments):
        process = subprocess.Popen(
            [*PS2, *map(str, arguments)],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def state(self, name="default"):
        return json.loads((self.folder / name / "fleet.json").read_text())

    def processes(self, name="default"):
        return [psutil.Process(server["process"]["pid"]) for server in self.state(name)["servers"]]


def ended(process):
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
