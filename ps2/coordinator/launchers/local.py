"""The default launcher: servers are processes on the driver's host, and end with the driver."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from ps2.certificates import TlsFiles
from ps2.config import Binding, ports_text, write_token
from ps2.coordinator.launcher import Launcher, LaunchRequest
from ps2.coordinator.launchers.processes.child import Child, ForkServer, end, ending, last_lines
from ps2.errors import LaunchError
from ps2.server.memory import available_bytes

# Fraction of the machine's available memory that all servers together may use. The remaining memory is for Spark.
MEMORY_FRACTION = 0.8


class LocalLauncher(Launcher):
    """Starts one process for each server, in a new session: Ctrl-C in a terminal ends only the driver.

    A server notices when this process ends, even if it is killed, and then ends, too.
    """

    def __init__(
        self,
        servers: int,
        token: str,
        binding: Binding | None = None,
        memory_limit_bytes: int | None = None,
        ops: Sequence[str] = (),
        tls: TlsFiles | None = None,
    ) -> None:
        """``binding`` None: servers listen on loopback. ``ops``: modules with operations, which servers import."""
        self._servers = servers
        self._binding = binding or Binding()
        self._memory = memory_limit_bytes or int(available_bytes() * MEMORY_FRACTION) // servers
        self._token = token
        self._ops = list(ops)
        self._tls = tls
        self._folders: list[Path] = []
        self._make_folder()
        self._lock = threading.Lock()
        self._stopped = False
        self._forks = ForkServer()
        self._children: dict[int, Child] = {}

    @classmethod
    def of(cls, request: LaunchRequest) -> LocalLauncher:
        return cls(
            *(request.servers, str(request.token), request.binding),
            *(request.memory_limit_bytes, request.ops, request.tls),
        )

    @staticmethod
    def ports_needed(servers: int) -> int:
        return 2 * servers

    @property
    def servers(self) -> int:
        return self._servers

    def start(self, index: int, master: str) -> None:
        with self._lock:
            if self._stopped:
                raise LaunchError(f"server {index} cannot be started: the fleet was stopped")
            if index in self._children:
                self._children[index].kill()  # SIGTERM does not end a process that SIGSTOP has suspended
                self._children[index].wait()
            self._children[index] = self._spawn(index, master)

    @property
    def _folder(self) -> Path:
        return self._folders[-1]

    @property
    def _token_file(self) -> Path:
        return self._folder / "token"

    def _make_folder(self) -> None:
        """Create a new folder for logs and the token. An existing folder might belong to another user."""
        try:
            folder = Path(tempfile.mkdtemp(prefix="ps2-"))
            try:
                write_token(folder / "token", self._token)
            except OSError:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        except OSError as error:
            raise LaunchError(f"the folder for the servers' logs and their token cannot be created: {error}") from error
        self._folders.append(folder)

    def _spawn(self, index: int, master: str) -> Child:
        if not self._token_file.exists():  # a program that deletes old temporary files has removed it
            self._make_folder()
        return self._forks.start(f"server {index}", self._arguments(index, master), self._log(index))

    def _arguments(self, index: int, master: str) -> list[str]:
        return [
            *("server", "--master", master, "--index", str(index), "--listen", self._binding.listen),
            *("--data-port", ports_text(self._binding.ports), "--advertise", self._binding.advertised),
            *("--token-file", str(self._token_file), "--memory-limit", str(self._memory)),
            *("--exit-with-parent", str(os.getpid()), "--scratch", str(self._folder)),
            *(argument for module in self._ops for argument in ("--ops", module)),
            *(self._tls.arguments() if self._tls is not None else ()),
        ]

    def poll(self) -> dict[int, str | None]:
        codes = {index: child.poll() for index, child in list(self._children.items())}
        return {index: ending(code, last_lines(self._log(index))) for index, code in codes.items() if code is not None}

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
        end(self._children.values())
        self._forks.close()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def pids(self) -> list[int]:
        return [child.process.pid for _, child in sorted(self._children.items())]

    def _log(self, index: int) -> Path:
        return self._folder / f"server-{index}.log"
