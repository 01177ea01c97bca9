"""Kernels where numba may not keep them: they are compiled anew, and that is said once."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import logging, resource
logging.basicConfig()
import numpy as np
from ps2.ops import kernels
from ps2.ops.warm import compiling_alone
from pathlib import Path
if {full}:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as on a disk that is full
print(kernels.total(np.ones(5000)), kernels.extent(np.arange(9)))
with compiling_alone(Path(kernels.gather.stats.cache_path or "/proc/nowhere")) as wanted:
    print(wanted)
"""


def run(script, **variables):
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env={**os.environ, **variables}
    )


def test_kernels_when_cache_disk_is_full_then_work_and_warn_once(tmp_path):
    done = run(SCRIPT.format(full=True), NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert done.stdout.split("\n")[:2] == ["5000.0 (0, 8, True)", "True"], done.stderr
    assert done.stderr.count("cannot be cached") == 1
    assert not list(tmp_path.rglob("*.nbc"))


def test_kernels_when_cache_is_forbidden_then_work_and_warn_once():
    locators = "UserProvidedCacheLocator"  # no other place is looked for, as in a read-only installation
    done = run(SCRIPT.format(full=False), NUMBA_CACHE_DIR="/proc/nowhere", NUMBA_CACHE_LOCATOR_CLASSES=locators)
    assert done.stdout.split("\n")[:2] == ["5000.0 (0, 8, True)", "True"], done.stderr
    assert done.stderr.count("cannot be cached") == 1


def test_kernels_when_cache_is_writable_then_kept_silently(tmp_path):
    done = run(SCRIPT.format(full=False), NUMBA_CACHE_DIR=str(tmp_path))
    assert done.stderr == ""
    assert len(list(tmp_path.rglob("*.nbc"))) == 2


def test_import_when_numba_jit_is_disabled_then_error_says_so():
    done = run("import ps2; ps2.DCV", NUMBA_DISABLE_JIT="1")
    assert "ConfigError: NUMBA_DISABLE_JIT is set" in done.stderr.splitlines()[-1]
