"""Users' functions that numba compiles: how they come to the workers, and where what is compiled is kept.

Numba keeps compiled functions (``cache=True``) by where their source lies. That is right for what is installed. But
Spark puts the files that it ships (``addPyFile``, ``--py-files``) into a new folder for each application, and numba's
dispatchers are pickled by value, without their cache, even where their module could be imported.
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
from numba.core.caching import CacheImpl
from numba.extending import is_jitted
from numba.misc import appdirs

from ps2.client.task import shipped_folder

# What Spark ships as Python, and where: YARN has a folder of its own for single files.
SHIPPED = ("*.py", "*.zip", "*.egg", "__pyfiles__/*.py")


def importable_name(function: Any, by_value: Collection[str]) -> str | None:
    """Return the name in its module of a compiled function that a worker can import; None of anything else.

    Args:
        by_value: modules that are pickled with their code, and those in them.
    """
    compiled: bool = is_jitted(function)
    if not compiled or function.__module__ == "__main__":
        return None
    if any(f"{function.__module__}.".startswith(f"{module}.") for module in by_value):
        return None
    name: str = function.__qualname__
    try:
        found = attrgetter(name)(sys.modules[function.__module__])
    except (KeyError, AttributeError):  # made in a function, or not kept under its own name
        return None
    return name if found is function else None


def keep_compiled() -> None:
    """Let this process keep what it compiles of shipped files for all applications that ship the same."""
    locators: list[Any] = CacheImpl._locator_classes
    if ShippedLocator not in locators:
        locators.insert(0, ShippedLocator)


class ShippedLocator:
    """Tells numba where to keep functions of shipped files: by what the files hold, not by where they lie.

    A compiled function has those that it calls in it, and numba does not see when they change. So what counts is what
    all shipped files hold; what they import besides is installed, where numba's own rules hold.
    """

    def __init__(self, function: Callable[..., Any], name: str, shipped: list[Path]) -> None:
        """Args:
        name: of its file, in the folder of shipped files.
        """
        self._line = function.__code__.co_firstlineno
        holding = [(file.name, _digest(file, (stat := file.stat()).st_mtime_ns, stat.st_size)) for file in shipped]
        self._stamp = hashlib.sha256(repr((name, holding)).encode()).hexdigest()

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
        except OSError:  # numba finds another place, or says that there is none
            return None
        return locator

    def ensure_cache_path(self) -> None:
        os.makedirs(self.get_cache_path(), exist_ok=True)
        tempfile.TemporaryFile(dir=self.get_cache_path()).close()  # it may be written to

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
def _digest(file: Path, changed_ns: int, size: int) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
