"""Users' compiled functions (numba): how they are pickled for workers, and where their machine code is cached.

Numba caches compiled functions (``cache=True``) by the path of their source file. But Spark puts shipped files
(``addPyFile``, ``--py-files``) into a new folder for each application. And numba pickles a compiled function
without its machine code, even if a worker could import the function from its module.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Collection
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import numba
from numba.core import event
from numba.core.caching import CacheImpl
from numba.extending import is_jitted
from numba.misc import appdirs

from ps2.client.stopwatch import Stopwatch
from ps2.client.task import shipped_folder

# Numba's event for the time in which it holds the lock of its compiler: it compiles, or loads from the cache.
LOADING = "numba:compiler_lock"
# Python files that Spark ships. YARN puts single files into a folder of their own.
SHIPPED = ("*.py", "*.zip", "*.egg", "__pyfiles__/*.py")


def importable_name(function: Any, by_value: Collection[str]) -> str | None:
    """Return the name of a compiled function in its module if a worker can import it, else None.

    ``by_value``: the modules that cloudpickle pickles with their code, including their submodules.
    """
    compiled: bool = is_jitted(function)
    if not compiled or function.__module__ == "__main__":
        return None
    if any(f"{function.__module__}.".startswith(f"{module}.") for module in by_value):
        return None
    name: str = function.__qualname__
    try:
        imported = attrgetter(name)(sys.modules[function.__module__])
    except (KeyError, AttributeError):  # defined inside a function, or bound to another name
        return None
    return name if imported is function else None


def share_compiled_functions() -> None:
    """Let all applications that ship the same files share their compiled functions on this host."""
    locators: list[Any] = CacheImpl._locator_classes
    if ShippedLocator not in locators:
        locators.insert(0, ShippedLocator)


class _KernelLoads(event.Listener):
    """Measures the time in which numba loads functions from its cache, or compiles them."""

    def __init__(self) -> None:
        self.stopwatch: Stopwatch | None = None

    def on_start(self, event: Any) -> None:
        if self.stopwatch is not None:
            self.stopwatch.start("kernels")

    def on_end(self, event: Any) -> None:
        if self.stopwatch is not None:
            self.stopwatch.stop()


_kernel_loads = _KernelLoads()


def measure_kernel_loads(stopwatch: Stopwatch) -> None:
    """Let a stopwatch measure the time in which numba loads and compiles functions."""
    if _kernel_loads.stopwatch is None:
        register: Any = event.register
        register(LOADING, _kernel_loads)
    _kernel_loads.stopwatch = stopwatch


class ShippedLocator:
    """Tells numba the cache folder of functions in shipped files. The folder's name is a hash of all shipped files.

    The hash includes all files, because a compiled function contains the code of the functions that it calls, and
    numba does not notice if they change.
    """

    def __init__(self, function: Callable[..., Any], name: str, shipped: list[Path]) -> None:
        """``name``: the path of the function's file in the folder of shipped files."""
        self._line = function.__code__.co_firstlineno
        digests = [(file.name, _digest(file, (stat := file.stat()).st_mtime_ns, stat.st_size)) for file in shipped]
        self._stamp = hashlib.sha256(repr((name, digests)).encode()).hexdigest()

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> ShippedLocator | None:
        folder, file = shipped_folder(), os.path.abspath(file)
        if folder is None or not file.startswith(f"{folder}/"):
            return None
        shipped = sorted(path for pattern in SHIPPED for path in Path(folder).glob(pattern))
        if not any(file == str(path) or file.startswith(f"{path}/") for path in shipped):
            return None
        locator = cls(function, os.path.relpath(file, folder), shipped)
        try:
            locator.ensure_cache_path()
        except OSError:  # numba then uses another locator
            return None
        return locator

    def ensure_cache_path(self) -> None:
        os.makedirs(self.get_cache_path(), exist_ok=True)
        tempfile.TemporaryFile(dir=self.get_cache_path()).close()  # raises OSError unless the folder is writable

    def get_cache_path(self) -> str:
        config: Any = numba.config
        folders: Any = appdirs
        folder = config.CACHE_DIR or folders.user_cache_dir("numba", appauthor=False)
        return os.path.join(folder, f"ps2-shipped_{self._stamp[:32]}")

    def get_source_stamp(self) -> str:
        return self._stamp

    def get_disambiguator(self) -> str:
        return str(self._line)


@cache
def _digest(file: Path, modified_ns: int, num_bytes: int) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
