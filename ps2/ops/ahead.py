"""Compiles kernels in another process, before this process or its workers need them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

from ps2.cgroups import usable_cores
from ps2.ops.compiling import KernelCache

# Seconds between two checks whether the parent process runs.
PARENT_POLL_S = 0.5


def compile_ahead(kernel: Any, warmer: str) -> None:
    """Start a process that compiles a kernel, if this process may use several cores and numba's cache lacks the kernel.

    Callers of the kernel wait until that process has compiled it (``KernelCache``). If that process ends early, they
    compile the kernel themselves. ``warmer``: "module:function", the name of a function that calls the kernel.
    """
    if isinstance(kernel._cache, KernelCache) and kernel._cache.is_empty() and usable_cores() > 1:
        module, _, function = warmer.partition(":")
        process = compiling_process(f"from {module} import {function}; {function}()")
        # Without ``wait``, the process would remain a zombie.
        threading.Thread(target=process.wait, daemon=True).start()


def compiling_process(statements: str, niceness: int = 0) -> subprocess.Popen[bytes]:
    """Start a process that runs Python statements with this process's ``sys.path``, and ends with this process."""
    preamble = f"import os, sys; os.nice({niceness}); sys.path[:] = {sys.path!r}; from ps2.ops import ahead"
    program = f"{preamble}; ahead.exit_with_parent({os.getpid()}); {statements}"
    null = subprocess.DEVNULL
    return subprocess.Popen([sys.executable, "-c", program], stdin=null, stdout=null, stderr=null)


def exit_with_parent(parent: int) -> None:
    """End this process soon after its parent has ended; ``parent``: the parent's pid."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os._exit(0)

    threading.Thread(target=watch, name="ps2-parent", daemon=True).start()
