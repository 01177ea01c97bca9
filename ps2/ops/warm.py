"""Compile, or load from numba's cache, every kernel that a server may be asked for, before it says it is ready."""

from __future__ import annotations

import fcntl
import hashlib
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, get_args

import numba
import numpy as np

from ps2.ops import kernels, packing, sorting
from ps2.ops.keyindex import KeyIndex
from ps2.ops.table import FLOATS, TABLE, Op, load
from ps2.ops.touched import Touched
from ps2.partition import DTYPES

# By name or kind. With one column, one row, one slot and one value, the arguments of any operation fit together.
TINY: Mapping[str, Callable[[np.dtype[Any]], np.ndarray[Any, Any]]] = {
    "row": lambda dtype: np.ones(1, dtype),
    "block": lambda dtype: np.ones((1, 1), dtype),
    "slots": lambda dtype: np.zeros(1, np.int64),
    "row_ids": lambda dtype: np.zeros(1, np.int64),
    "values": lambda dtype: np.ones(1, dtype),
    "unsigned": lambda dtype: np.ones(1, np.uint8),
    "samples": lambda dtype: np.zeros(1, np.uint8),
    "floats": lambda dtype: np.ones(1, np.float64),
}


def warm() -> None:
    """Call every operation of the table for each of its dtypes, and all that has kernels besides, on tiny arrays.

    Where the kernels are not compiled yet, one process compiles them and the others wait, then load.
    """
    load()
    folder = kernels.gather.stats.cache_path  # type: ignore[attr-defined]
    # Without a folder to keep compiled kernels in, there is nothing to wait for.
    with _compiling_alone(Path(folder)) if folder else nullcontext():
        for op in TABLE.values():
            for dtype in op.dtypes:
                for scalars in _scalars(op):
                    op.fn(*_arguments(op, DTYPES[dtype]), **op.check(op.rows, dtype, scalars))
        for dtype in FLOATS:
            for wire in get_args(packing.Wire):
                packing.widen(packing.narrow(np.ones(1, DTYPES[dtype]), wire), DTYPES[dtype])
        for delta in packing.DELTA_DTYPES:
            packing.unpack_keys(*packing.pack_keys(np.array([0, np.iinfo(delta).max // 2])))
        packing.is_ascending(np.arange(2))
        sorting.sort_keys(np.arange(2))
        touched = Touched(1)
        touched.mark(np.arange(1))
        touched.clear()
        index = KeyIndex()
        index.missing(index.insert(np.arange(100)))


def _arguments(op: Op, dtype: np.dtype[Any]) -> list[np.ndarray[Any, Any]]:
    return [TINY.get(name, TINY[kind])(dtype) for name, kind in zip(op.names, op.operands, strict=True)]


def _scalars(op: Op) -> Iterator[dict[str, Any]]:
    """Yield scalars of calls that between them use all of an operation's kernels."""
    required = {param.name: 1 for param in op.params.values() if param.required}
    yield required
    # A flag may choose another kernel, and so may a penalty.
    if flags := {param.name: True for param in op.params.values() if param.type is bool}:
        yield required | flags
    if penalties := {name: 1 for name in ("l1", "l2") if name in op.params}:
        yield required | penalties


@contextmanager
def _compiling_alone(folder: Path) -> Iterator[None]:
    """Hold a lock in numba's cache folder until its kernels are there; do not wait when they are there already."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "ps2-kernels.lock", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        compiled, wanted = file.read(), _fingerprint()
        if compiled == wanted:
            fcntl.flock(file, fcntl.LOCK_UN)
        yield
        if compiled != wanted:
            file.truncate(0)
            file.write(wanted)


def _fingerprint() -> str:
    """Return what the compiled kernels depend on: sources, numba and this machine."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    stamps = [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files]
    parts = (stamps, numba.__version__, platform.python_version(), platform.machine(), platform.node())
    return hashlib.sha256(repr(parts).encode()).hexdigest()


if __name__ == "__main__":
    warm()
