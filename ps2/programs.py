"""How our own programs are started: no file of the current folder is taken for one of Python's own modules.

Python looks for modules in the current folder first when it is started with ``-m`` or ``-c``, and in ``PYTHONPATH``
before its own: a ``types.py`` there, which a notebook beside it never minds, ends a new process before its first step.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path


def command(module: str, *arguments: str) -> list[str]:
    """Return how a module of ours is run as a program, by this Python and without the current folder."""
    if hasattr(sys.flags, "safe_path"):  # Python 3.11
        return [sys.executable, "-P", "-m", module, *arguments]
    run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", f"import sys; sys.path[:] = filter(None, sys.path); import runpy; {run}", *arguments]


def import_path() -> list[str]:
    """Return where this process imports from, Python's own modules first.

    All of it is handed on: users' functions may come from any module that this process can import.
    """
    own = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    own |= {os.path.join(folder, "lib-dynload") for folder in own}
    own.add(str(Path(sysconfig.get_path("stdlib")).with_name("python{}{}.zip".format(*sys.version_info))))
    entries = dict.fromkeys(entry or os.getcwd() for entry in sys.path)
    return sorted(entries, key=lambda entry: entry not in own)


def hiding(folder: str) -> list[str]:
    """Return the files of a folder that hide modules of Python's own from who looks there first."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    found = []
    for name in names:
        stem, suffix = os.path.splitext(name)
        is_package = not suffix and os.path.exists(os.path.join(folder, name, "__init__.py"))
        if stem in sys.stdlib_module_names and (suffix == ".py" or is_package):
            found.append(name)
    return found
