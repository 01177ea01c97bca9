"""Starts PS2's own programs, and finds the entry points of installed packages.

No file of the current folder shadows a module of Python in these programs. With ``-m`` or ``-c``, Python looks for
modules in the current folder first, and in ``PYTHONPATH`` before its own modules. A file ``types.py`` there, which does
not disturb a notebook in the same folder, would break a new process at once.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of PS2 with this Python and without the current folder."""
    if hasattr(sys.flags, "safe_path"):  # Python 3.11
        return [sys.executable, "-P", "-m", module, *arguments]
    run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", f"import sys; sys.path[:] = filter(None, sys.path); import runpy; {run}", *arguments]


def import_path() -> list[str]:
    """Return this process's import path, with Python's own modules first.

    The path is complete, as users' functions may come from any module that this process can import.
    """
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    standard |= {os.path.join(folder, "lib-dynload") for folder in standard}
    standard.add(str(Path(sysconfig.get_path("stdlib")).with_name("python{}{}.zip".format(*sys.version_info))))
    entries = dict.fromkeys(entry or os.getcwd() for entry in sys.path)
    return sorted(entries, key=lambda entry: entry not in standard)


def hiding(folder: str) -> list[str]:
    """Return the files of a folder that would shadow modules of Python."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    hidden = []
    for name in names:
        stem, suffix = os.path.splitext(name)
        is_package = not suffix and os.path.exists(os.path.join(folder, name, "__init__.py"))
        if stem in sys.stdlib_module_names and (suffix == ".py" or is_package):
            hidden.append(name)
    return hidden


def entries_of(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group that installed packages declare.

    Reading the entry points of 200 packages takes 20 ms. They are read again only if the import path, or a folder on
    it, has changed.
    """
    return _entries(group, tuple((folder, _changed_ns(folder)) for folder in sys.path))


@lru_cache(maxsize=8)
def _entries(group: str, path: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def _changed_ns(folder: str) -> int:
    try:
        return os.stat(folder or os.curdir).st_mtime_ns
    except OSError:
        return 0
