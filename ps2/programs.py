"""Commands that start PS2's programs, and the entry points of installed packages.

In these programs, no file of the current folder shadows a module of the standard library. With ``-m`` or ``-c``, Python
looks for modules in the current folder and in ``PYTHONPATH`` before its own modules. A file ``types.py`` in the current
folder, which does not disturb a notebook there, would break a new process at once.
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
    code = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", f"import sys; sys.path[:] = filter(None, sys.path); import runpy; {code}", *arguments]


def import_path() -> list[str]:
    """Return this process's import path, with the folders of the standard library first.

    The path is complete, because users' functions may belong to any module that this process can import.
    """
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    standard |= {os.path.join(folder, "lib-dynload") for folder in standard}
    standard.add(str(Path(sysconfig.get_path("stdlib")).with_name("python{}{}.zip".format(*sys.version_info))))
    entries = dict.fromkeys(entry or os.getcwd() for entry in sys.path)
    return sorted(entries, key=lambda entry: entry not in standard)


def shadowing_files(folder: str) -> list[str]:
    """Return the names of a folder's files and packages that would shadow modules of the standard library."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    shadowing = []
    for name in names:
        stem, suffix = os.path.splitext(name)
        is_package = not suffix and os.path.exists(os.path.join(folder, name, "__init__.py"))
        if stem in sys.stdlib_module_names and (suffix == ".py" or is_package):
            shadowing.append(name)
    return shadowing


def installed_entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group that installed packages declare.

    Reading the entry points of 200 packages takes 20 ms. They are read again only if the import path or one of its
    folders has changed.
    """
    return _entries(group, tuple((folder, _modified_ns(folder)) for folder in sys.path))


@lru_cache(maxsize=8)
def _entries(group: str, path: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def _modified_ns(folder: str) -> int:
    try:
        return os.stat(folder or os.curdir).st_mtime_ns
    except OSError:
        return 0
