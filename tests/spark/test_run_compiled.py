"""What numba compiles in workers: once on a machine, whichever application comes first; by value, once a process."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly
MODULE = """
import os

from numba import njit

count = int(os.environ.pop("IMPORTS_OF_" + __name__, 0)) + 1
os.environ["IMPORTS_OF_" + __name__] = str(count)


def imports():
    return count


@njit
def double(x):
    return 2 * x


@njit(cache=True)
def total(x):
    return double(x.sum())
"""
KEPT = ("beside", "single", "packed")  # imported by workers: from where the driver does, shipped, shipped in an archive


@pytest.fixture(scope="module")
def runs(run_program, environment, tmp_path_factory):
    """What each run's worker said: two of a first application, two of a second one."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "path").mkdir()
    for file in ("path/beside.py", "single.py"):
        (folder / file).write_text(MODULE)
    with zipfile.ZipFile(folder / "packed.zip", "w") as archive:
        archive.writestr("packed/__init__.py", "")
        archive.writestr("packed/inner.py", MODULE)
    path = f"{folder / 'path'}:{environment.get('PYTHONPATH', '')}"
    env = {**environment, "PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    finished = run_program(sys.executable, Path(__file__).with_name("compiled_app.py"), folder, env=env)
    assert finished.returncode == 0, finished.stderr
    return [json.loads(line) for line in finished.stdout.splitlines()]


def test_functions_when_first_application_runs_then_compile_once(runs):
    assert runs[0]["compiled"] == dict.fromkeys((*KEPT, "here"), 1)


def test_imported_functions_when_second_application_then_cached(runs):
    assert {name: runs[2]["compiled"][name] for name in KEPT} == dict.fromkeys(KEPT, 0)
    assert {name: runs[2]["found"][name] for name in KEPT} == dict.fromkeys(KEPT, 1)


def test_program_function_when_next_application_then_recompiles(runs):
    assert runs[2]["compiled"]["here"] == 1


@pytest.mark.parametrize("first", [0, 2])
def test_worker_when_second_run_comes_then_keeps_its_modules(runs, first):
    assert runs[first + 1] == runs[first]
    assert runs[first]["imports"] == 1
