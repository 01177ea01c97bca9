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
from ps2.ops.table import FLOATS, TABLE, load
from ps2.ops.touched import Touched
from ps2.partition import DTYPES

# With one column, one row, one slot and one value, the arguments of any operation fit together.
TINY: Mapping[str, Callable[[np.dtype[Any]], np.ndarray[Any, Any]]] = {
    "row": lambda dtype: np.ones(1, dtype),
    "block": lambda dtype: np.ones((1, 1), dtype),
    "slots": lambda dtype: np.zeros(1, np.int64),
    "row_ids": lambda dtype: np.zeros(1, np.int64),
    "values": lambda dtype: np.ones(1, dtype),
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
                required = {param.name: 1 for param in op.params.values() if param.required}
                # A flag may choose another kernel.
                flags = {param.name: True for param in op.params.values() if param.type is bool}
                for given in (required, required | flags) if flags else (required,):
                    op.fn(*(TINY[kind](DTYPES[dtype]) for kind in op.operands), **op.check(op.rows, dtype, given))
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
