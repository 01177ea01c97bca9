"""Kernels are kept while nothing changes that they depend on; where they cannot be kept, that is said once."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from faults.processes import is_dead
from numba import njit

from ps2.ops import kernels
from ps2.ops.compiling import CompilingNotice, GarbageCollectionPause
from ps2.ops.kernels import inline, reduction

SCRIPT = """
import logging, resource
import numpy as np
logging.basicConfig()
from ps2.ops import kernels
from ps2.ops.warm import compiling_alone
from pathlib import Path
if {full}:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as on a disk that is full
print(kernels.total(np.ones(5000)), kernels.extent(np.arange(9)))
with compiling_alone(Path(kernels.gather.stats.cache_path or "/proc/nowhere")) as wanted:
    print(wanted)
"""


# A kernel, functions that become part of it, one of them defined below it, and a constant.
FILES = {
    "outer.py": (
        "from inner import *\nfrom ps2.ops.kernels import inline, kernel\n@kernel\ndef whole(x):\n    return below(x)\n"
        "@inline\ndef below(x):\n    return plus(x)\n"
    ),
    "inner.py": "from step import *\nfrom ps2.ops.kernels import inline\n@inline\ndef plus(x):\n    return x + STEP\n",
    "step.py": "STEP = 1\n",
}
CALL = "import outer; print(outer.whole(1), sum(outer.whole.stats.cache_hits.values()))"


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(script, **variables):
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env={**os.environ, **variables}
    )


def test_kernels_when_cache_disk_is_full_then_work_and_warn_once(tmp_path):
    finished = run(SCRIPT.format(full=True), NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert finished.stdout.split("\n")[:2] == ["5000.0 (0, 8, True)", "True"], finished.stderr
    assert finished.stderr.count("cannot be cached") == 1
    assert not list(tmp_path.rglob("*.nbc"))


def test_kernels_when_cache_is_forbidden_then_work_and_warn_once():
    locators = "UserProvidedCacheLocator"  # no other place is looked for, as in a read-only installation
    finished = run(SCRIPT.format(full=False), NUMBA_CACHE_DIR="/proc/nowhere", NUMBA_CACHE_LOCATOR_CLASSES=locators)
    assert finished.stdout.split("\n")[:2] == ["5000.0 (0, 8, True)", "True"], finished.stderr
    assert finished.stderr.count("cannot be cached") == 1


def test_kernels_when_cache_is_writable_then_kept_silently(tmp_path):
    finished = run(SCRIPT.format(full=False), NUMBA_CACHE_DIR=str(tmp_path))
    assert "cannot be cached" not in finished.stderr
    assert len(list(tmp_path.rglob("*.nbc"))) == 2


def test_import_when_numba_jit_is_disabled_then_error_says_so():
    finished = run("import ps2; ps2.DCV", NUMBA_DISABLE_JIT="1")
    assert "ConfigError: NUMBA_DISABLE_JIT is set" in finished.stderr.splitlines()[-1]


def call(folder):
    finished = run(CALL, NUMBA_CACHE_DIR=str(folder / "cache"), PYTHONPATH=str(folder), PYTHONDONTWRITEBYTECODE="1")
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.split()


@pytest.mark.parametrize(("name", "old", "new"), [("inner.py", "x + STEP", "x + 9"), ("step.py", "1", "9")])
def test_kernel_when_source_of_a_part_changes_then_recompiled(folder, name, old, new):
    assert call(folder) == ["2", "0"]
    (folder / name).write_text(FILES[name].replace(old, new))
    assert call(folder) == ["10", "0"]


def test_kernel_when_files_are_as_before_then_loaded(folder):
    call(folder)
    for name in FILES:
        os.utime(folder / name, (0, 0))
    assert call(folder) == ["2", "1"]


PAIRS = "from typing import NamedTuple\nclass Pair(NamedTuple):\n    a: int\n    b: int\n"
SUM = "from pairs import Pair\nfrom ps2.ops.kernels import kernel\n@kernel\ndef whole(x):\n    return x.a + x.b\n"
CALL_WITH_PAIR = "import outer; print(outer.whole(outer.Pair(1, 2)), sum(outer.whole.stats.cache_hits.values()))"


@pytest.mark.parametrize("moved", ["module", "class"])
def test_kernel_when_class_of_argument_was_moved_then_recompiled(tmp_path, moved):
    def call():
        variables = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)}
        finished = run(CALL_WITH_PAIR, **variables, PYTHONDONTWRITEBYTECODE="1")
        assert finished.returncode == 0, finished.stderr
        return finished.stdout.split()

    (tmp_path / "pairs.py").write_text(PAIRS)
    (tmp_path / "outer.py").write_text(SUM)
    assert [call(), call()] == [["3", "0"], ["3", "1"]]
    (tmp_path / "tuples.py").write_text(PAIRS)
    (tmp_path / "outer.py").write_text(SUM.replace("from pairs", "from tuples"))
    if moved == "module":
        (tmp_path / "pairs.py").unlink()
    else:
        (tmp_path / "pairs.py").write_text("")
    assert [call(), call()] == [["3", "0"], ["3", "1"]]


def test_inline_function_when_kernel_is_kept_then_has_no_file(folder):
    call(folder)
    assert [file.name.split("-")[0] for file in (folder / "cache").rglob("*.nbi")] == ["outer.whole"]


def test_kernel_when_processes_need_it_then_one_compiles_it(folder):
    (folder / "inner.py").write_text(FILES["inner.py"].replace("x + STEP", "max(x, x) + STEP") + "import startup\n")
    (folder / "startup.py").write_text(
        "import pathlib, time\npathlib.Path(f'{__file__}-{time.monotonic_ns()}').touch()\n"
        "while len(list(pathlib.Path(__file__).parent.glob('startup.py-*'))) < 3:\n    time.sleep(0.01)\n"
    )
    with ThreadPoolExecutor(3) as pool:
        ends = list(pool.map(call, [folder] * 3))
    assert sorted(ends) == [["2", "0"], ["2", "1"], ["2", "1"]]
    assert not list((folder / "cache").rglob("*.lock"))


def test_kernel_when_compiled_ahead_then_this_process_loads_it(folder):
    (folder / "caller.py").write_text("import outer\ndef call():\n    outer.whole(1)\n")
    script = (
        "import time, outer\nfrom ps2.ops import ahead\nahead.usable_cores = lambda: 2\n"
        "for _ in range(2):\n    ahead.compile_ahead(outer.whole, 'caller:call')\n"
        "    while outer.whole._cache.is_empty(): time.sleep(0.1)\n"
        "    ahead.compiling_process = None\n"  # the second time there is nothing to do
    )
    finished = run(script + CALL, NUMBA_CACHE_DIR=str(folder / "cache"), PYTHONPATH=str(folder))
    assert finished.stdout.split() == ["2", "1"], finished.stderr


def test_compiling_process_when_its_parent_ends_then_ends(until):
    script = "from ps2.ops import ahead\nprint(ahead.compiling_process('import time; time.sleep(60)').pid)"
    compiler = int(run(script).stdout)
    until(lambda: is_dead(compiler), "it has ended")


def test_garbage_when_kernels_compile_then_is_collected_later():
    listener, event = GarbageCollectionPause(), compiling(kernels.gather)
    listener.on_start(event)
    listener.on_start(event)
    listener.on_end(event)
    assert not gc.isenabled()
    listener.on_end(event)
    assert gc.isenabled()


def test_kernel_when_it_cannot_be_compiled_then_nobody_waits(folder):
    script = "import outer\ntry:\n    outer.whole('a')\nexcept Exception as error:\n    print(type(error).__name__)"
    finished = run(script, NUMBA_CACHE_DIR=str(folder / "cache"), PYTHONPATH=str(folder))
    assert finished.stdout.split() == ["TypingError"], finished.stderr
    assert not list((folder / "cache").rglob("*.lock"))


def compiling(function):
    return SimpleNamespace(data={"dispatcher": function}, _exc_details=None)


def wait_for_line(capsys):
    deadline, text = time.monotonic() + 20, ""
    while not text and time.monotonic() < deadline:
        text += capsys.readouterr().err
        time.sleep(0.01)
    return text


def test_notice_when_compiling_takes_long_then_is_on_stderr_once(capsys):
    notice, event = CompilingNotice(notice_after_s=0.01), compiling(kernels.gather)
    notice.on_start(event)
    assert wait_for_line(capsys).startswith("ps2: compiling kernels, once for this machine")
    notice.on_end(event)
    notice.on_start(event)
    notice.on_end(event)
    assert capsys.readouterr() == ("", "")


def test_notice_when_compiled_soon_then_nothing_is_said(capsys):
    notice, event = CompilingNotice(notice_after_s=60), compiling(kernels.gather)
    notice.on_start(event)
    notice.on_end(event)
    assert capsys.readouterr() == ("", "")


def test_notice_when_users_function_compiles_then_is_silent(capsys):
    CompilingNotice(notice_after_s=0).on_start(compiling(njit(lambda x: x)))
    assert capsys.readouterr() == ("", "")


@inline
def to_whole(x):
    return (x + 1.5 * 2.0**52) - 1.5 * 2.0**52  # it is x in any other order


@reduction
def whole(x):
    return to_whole(x)


def test_inline_function_when_in_reduction_then_keeps_its_order():
    assert whole(0.8) == 1.0
