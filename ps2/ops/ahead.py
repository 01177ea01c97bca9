"""Kernels that another process compiles while this one, or who it waits for, does what comes before."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

from ps2.cgroups import usable_cores
from ps2.ops.compiling import KernelCache


def compile_ahead(kernel: Any, warmer: str) -> None:
    """Start a process that compiles a kernel, if there is a core for it and numba's cache holds no form of the kernel.

    Who calls the kernel meanwhile waits for it (``KernelCache``). If the process ends early, they compile it.

    Args:
        warmer: "module:function"; the function calls the kernel.
    """
    if isinstance(kernel._cache, KernelCache) and kernel._cache.is_empty() and usable_cores() > 1:
        module, _, function = warmer.partition(":")
        process = compiling_process(f"from {module} import {function}; {function}()")
        # Else it would stay a zombie.
        threading.Thread(target=process.wait, daemon=True).start()


def compiling_process(statements: str, niceness: int = 0) -> subprocess.Popen[bytes]:
    """Start a process that finds the same modules as this one, and runs statements that compile kernels."""
    program = f"import os, sys; os.nice({niceness}); sys.path[:] = {sys.path!r}; {statements}"
    nothing = subprocess.DEVNULL
    return subprocess.Popen([sys.executable, "-c", program], stdin=nothing, stdout=nothing, stderr=nothing)
