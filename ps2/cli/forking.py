"""A fork server: ``python -m ps2.cli.forking PARENT`` imports a server's modules once, and forks servers on request.

The imports of NumPy, numba and gRPC take a second of a core. A fork starts in milliseconds and shares their memory.
This process has only one thread, so that forks are safe.

A request is a line of JSON on stdin, and so is its answer on stdout. ``{"start": ...}`` returns the pid of a new
server, or the reason why there is none; ``{"ended": pid}`` returns the exit code of an ended server.
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

PARENT_CHECK_S = 0.5


def fork_request(parent: int) -> dict[str, Any] | None:
    """Answer requests until the parent closes stdin or has ended; then return None. In a fork, return its request."""
    while True:
        while not wait_readable(sys.stdin, PARENT_CHECK_S):
            if os.getppid() != parent:
                return None
        line = sys.stdin.readline()  # requests do not overlap
        if not line:
            return None
        request = json.loads(line)
        answer: dict[str, object] = {}
        if "ended" in request:
            with suppress(ChildProcessError):  # an earlier fork server, which was killed, had forked the process
                answer = {"code": os.waitstatus_to_exitcode(os.waitpid(request["ended"], 0)[1])}
        else:
            # Read the packages' operations on the driver's path before the fork, once for all servers.
            sys.path[:] = request["start"]["path"]
            installed_entry_points(GROUP)
            try:
                pid = os.fork()
            except OSError as error:
                answer = {"error": str(error)}
            else:
                if pid == 0:
                    return dict(request["start"])
                answer = {"pid": pid}
        print(json.dumps(answer), flush=True)


def become(arguments: list[str], environment: dict[str, str], path: list[str], folder: str, log: str) -> None:
    """Turn this process into the ``ps2`` command, in its own session. ``log`` is an existing file for the output."""
    os.setsid()
    # Do not create the log: if it is missing, the driver has ended, and its folder is being removed.
    null, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY)
    for source, target in ((null, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:] = path
    sys.argv = ["ps2", *arguments]
    if os.path.exists("/proc/self/comm"):  # the process's name, which tools show
        with open("/proc/self/comm", "w") as name:
            name.write("ps2-server")
    try:
        main()
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        # Python would free all objects, which takes 0.15 s of a core, as it copies memory shared with the fork server.
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))


if __name__ == "__main__":
    total(np.ones(1))  # numba's first kernel in a process takes a third of a second
    if is_compiled():
        load()
    gc.freeze()
    if (request := fork_request(int(sys.argv[1]))) is not None:
        become(**request)
