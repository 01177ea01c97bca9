"""A launcher whose servers are plain child processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ps2.config import write_token
from ps2.coordinator.launcher import Launcher, LaunchRequest


class PlainLauncher(Launcher):
    def __init__(self, request: LaunchRequest) -> None:
        self._request = request
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="plain-"))
        write_token(self._folder / "token", str(request.token))

    @classmethod
    def of(cls, request: LaunchRequest) -> PlainLauncher:
        return cls(request)

    @property
    def servers(self) -> int:
        return self._request.servers

    def start(self, index: int, master: str) -> None:
        if index in self._processes:  # it may hang
            self._processes[index].kill()
            self._processes[index].wait()
        arguments = [
            *("server", "--master", master, "--index", str(index), "--listen", self._request.binding.listen),
            *("--token-file", str(self._folder / "token"), "--exit-with-parent", str(os.getpid())),
            *(word for module in self._request.ops for word in ("--ops", module)),
        ]
        command = [sys.executable, "-m", "ps2.cli.main", *arguments]
        self._processes[index] = subprocess.Popen(command, start_new_session=True)

    def poll(self) -> dict[int, str | None]:
        codes = {index: process.poll() for index, process in list(self._processes.items())}
        return {index: f"ended with exit code {code}" for index, code in codes.items() if code is not None}

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
