"""Compiles kernels in another process before this process, or one that it waits for, calls them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

from ps2.cgroups import usable_cores
from ps2.ops.compiling import KernelCache

PARENT_POLL_S = 0.5


def compile_ahead(kernel: Any, warmer: str) -> None:
    """Start a process that compiles a kernel, if there is a core for it and numba's cache holds no form of the kernel.

    A caller of the kernel waits for that process meanwhile (``KernelCache``), and compiles it if the process ends
    early. ``warmer``: "module:function"; the function calls the kernel.
    """
    if isinstance(kernel._cache, KernelCache) and kernel._cache.is_empty() and usable_cores() > 1:
        module, _, function = warmer.partition(":")
        process = compiling_process(f"from {module} import {function}; {function}()")
        # Without the wait, the process would stay a zombie.
        threading.Thread(target=process.wait, daemon=True).start()


def compiling_process(statements: str, niceness: int = 0) -> subprocess.Popen[bytes]:
    """Start a process that finds the same modules as this one, and runs statements that compile kernels.

    It ends with this process.
    """
    begin = f"import os, sys; os.nice({niceness}); sys.path[:] = {sys.path!r}; from ps2.ops import ahead"
    program = f"{begin}; ahead.end_with({os.getpid()}); {statements}"
    nothing = subprocess.DEVNULL
    return subprocess.Popen([sys.executable, "-c", program], stdin=nothing, stdout=nothing, stderr=nothing)


def end_with(parent: int) -> None:
    """End this process soon after its parent, given the parent's process id."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os._exit(0)

    threading.Thread(target=watch, name="ps2-parent", daemon=True).start()
