"""Kernels are compiled once: before the first request, and by one process at a time."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

import numpy as np
import pytest
from compiled_kernels import compiled

from ps2.ops import (
    access,
    blocks,
    distinct,
    elementwise,
    embedding_steps,
    factors,
    kernels,
    keyindex,
    matrix,
    nonzero,
    optimizers,
    orthants,
    packing,
    steps,
    touched,
)
from ps2.ops.keyindex import KeyIndex
from ps2.ops.warm import compile_all, compiling_alone, warm

MODULES = (
    blocks,
    distinct,
    embedding_steps,
    factors,
    kernels,
    keyindex,
    nonzero,
    orthants,
    packing,
    steps,
    touched,
)


def test_kernels_when_warm_then_are_all_compiled():
    compile_all()
    assert [name for name, signatures in compiled(MODULES).items() if not signatures] == []


def test_warm_when_all_are_compiled_then_new_process_loads_none():
    warm()
    script = "from ps2.ops import kernels, warm; warm.warm(); print(kernels.gather.signatures)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"[]\n"


def test_kernels_when_compiled_then_are_no_longer_missing(tmp_path):
    script = (
        "from pathlib import Path\nfrom ps2.ops import kernels, warm\nprint(warm.is_missing())\n"
        "with warm.compiling_alone(Path(kernels.gather.stats.cache_path)): pass\nprint(warm.is_missing())"
    )
    command, env = [sys.executable, "-c", script], {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    assert subprocess.run(command, capture_output=True, check=True, env=env).stdout == b"True\nFalse\n"


def test_ops_when_called_after_warm_then_compile_nothing():
    compile_all()
    before = compiled(MODULES)
    slots = np.frombuffer(b"x" + np.arange(3).tobytes(), np.int64, 3, 1)
    values = np.frombuffer(b"x" + np.ones(3, np.float32).tobytes(), np.float32, 3, 1)
    table = values.reshape(1, 3)
    row, block = np.zeros(9, np.float32), np.zeros((4, 9), np.float32)
    access.scatter_add(row, slots, values)
    access.gather(row, slots)
    elementwise.axpy(row, row, alpha=2)
    matrix.rows_scatter_add(block, slots[:1], slots, values)
    matrix.rows_pair_update(block, slots, slots, np.ones(3))
    matrix.pair_changes(block, *matrix.index_pairs(slots, slots)[1:], np.ones(3))
    optimizers.adam(*block, lr=0.1, step=1)
    optimizers.adam(*block, lr=0.1, step=1, l1=1)
    matrix.gram(block, slots, slots[:1])
    matrix.combine(row, block, slots, np.frombuffer(b"x" + bytes(24), np.float64, 3, 1))
    optimizers.adam(*block, lr=0.1, step=1, lazy=True)
    factors.add_factors(row, slots, np.ones(3, np.uint8), np.zeros(3, np.uint16), values, table, width=3)
    factors.add_dense_factors(row, slots, table.reshape(3, 1), table, width=3)
    optimizers.ftrl_weights_at(*block[:3], slots, alpha=0.1, l1=1, l2=0)
    columns = touched.Touched(64)
    columns.mark(slots[:1])
    optimizers.adam(*block, lr=0.1, step=1, lazy=True, columns=columns.columns)
    elementwise.fill(row, value=0, columns=columns.columns)
    columns.clear()
    packing.widen(packing.narrow(values, "float16"), "float32")
    packing.widen(packing.narrow(values, "bfloat16"), "float64")
    packing.unpack_keys(*packing.pack_keys(slots))
    distinct.sort_keys(slots)
    index = KeyIndex()
    index.insert(slots)
    index.lookup(np.arange(3))
    assert compiled(MODULES) == before


def is_locked(folder):
    with open(folder / "ps2-kernels.lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_lock_when_nothing_is_compiled_then_keeps_others_out(tmp_path):
    with compiling_alone(tmp_path) as expected:
        assert expected
        assert is_locked(tmp_path)


def test_lock_when_kernels_are_compiled_then_compiles_nothing(tmp_path):
    with compiling_alone(tmp_path):
        pass
    with compiling_alone(tmp_path) as expected:
        assert not expected


def test_lock_when_compiling_fails_then_the_next_compiles_again(tmp_path):
    with pytest.raises(ZeroDivisionError), compiling_alone(tmp_path):
        raise ZeroDivisionError
    with compiling_alone(tmp_path) as expected:
        assert expected
