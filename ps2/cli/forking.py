"""A fork server: ``python -m ps2.cli.forking PARENT`` imports a server's modules once, and forks servers on request.

The imports of NumPy, numba and gRPC take a second of a core. A fork starts in milliseconds and shares the memory of the
imported modules. This process has only one thread, because a fork of a process with several threads can deadlock.

A request is a line of JSON on stdin, and its answer is a line of JSON on stdout. The answer to ``{"start": ...}`` is
the pid of a new server, or the error. The new process waits for ``{"run": pid}``, and ends if this process ends before:
so the parent can record each server before it does anything. The answer to ``{"ended": pid}`` is the exit code of an
ended server.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from contextlib import suppress
from typing import Any

import numpy as np

import ps2.client.network
import ps2.server.process  # noqa: F401 - forked servers use these modules
from ps2.cli.main import main
from ps2.ops.kernels import total
from ps2.ops.modules import GROUP
from ps2.processes import wait_readable
from ps2.programs import installed_entry_points
from ps2.server.fast_path_compiled import is_compiled, load

# The interval of checks that the parent still runs.
PARENT_CHECK_S = 0.5


def fork_request(parent: int) -> dict[str, Any] | None:
    """Answer requests until the parent closes stdin or ends; then return None. A fork returns its start request."""
    waiting: dict[int, int] = {}  # pid of a process that waits for its ``run`` request -> the pipe that it reads
    while True:
        while not wait_readable(sys.stdin, PARENT_CHECK_S):
            if os.getppid() != parent:
                return None
        line = sys.stdin.readline()  # the parent sends a request only after the answer to the previous one
        if not line:
            return None
        request = json.loads(line)
        answer: dict[str, object] = {}
        if "ended" in request:
            with suppress(ChildProcessError):  # the process is a fork of an earlier fork server, which was killed
                answer = {"code": os.waitstatus_to_exitcode(os.waitpid(request["ended"], 0)[1])}
        elif "run" in request:
            # An earlier fork server, which was killed, may have started the process; then it has ended.
            if (waiting_writer := waiting.pop(request["run"], None)) is not None:
                with suppress(BrokenPipeError), open(waiting_writer, "wb") as pipe:
                    pipe.write(b"+")
        else:
            # Read the installed entry points on the driver's import path before the fork, once for all servers.
            sys.path[:] = request["start"]["path"]
            installed_entry_points(GROUP)
            try:
                reader, writer = os.pipe()
                pid = os.fork()
            except OSError as error:
                answer = {"error": str(error)}
            else:
                if pid == 0:
                    for pipe_end in (writer, *waiting.values()):
                        os.close(pipe_end)
                    with open(reader, "rb") as pipe:
                        if not pipe.read(1):
                            os._exit(0)
                    return dict(request["start"])
                os.close(reader)
                waiting[pid] = writer
                answer = {"pid": pid}
        print(json.dumps(answer), flush=True)


def become(arguments: list[str], environment: dict[str, str], path: list[str], folder: str, log: str) -> None:
    """Turn this process into the ``ps2`` command, in its own session. ``log`` is an existing file for the output."""
    os.setsid()
    # Never create the log: if it is missing, the driver has ended, and its folder is being removed.
    null_fd, log_fd = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY)
    for source, target in ((null_fd, 0), (log_fd, 1), (log_fd, 2)):
        os.dup2(source, target)
    os.close(null_fd)
    os.close(log_fd)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = path
    sys.argv = ["ps2", *arguments]
    if os.path.exists("/proc/self/comm"):  # the process's name in ps and top
        with open("/proc/self/comm", "w") as file:
            file.write("ps2-server")
    try:
        main()
    except SystemExit as exit:
        sys.stdout.flush()
        sys.stderr.flush()
        # At a normal exit, Python would free all objects. That takes 0.15 s of a core, because it copies shared memory.
        os._exit(exit.code if isinstance(exit.code, int) else int(exit.code is not None))


if __name__ == "__main__":
    total(np.ones(1))  # the first call of a numba kernel in a process takes a third of a second
    if is_compiled():
        load()
    gc.freeze()
    if (request := fork_request(int(sys.argv[1]))) is not None:
        become(**request)
