"""Compiles all kernels that a server may call, unless numba's cache contains them."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

import llvmlite.binding as llvm
import numba
import numpy as np

from ps2.matrix.key_policy import Initial
from ps2.matrix.partition import DTYPES, HASH_SPACE, Partition
from ps2.ops import distinct, kernels, packing, slots
from ps2.ops.all import TABLE
from ps2.ops.compiling import warn_once
from ps2.ops.initial import fill_initial
from ps2.ops.kernels import FEW
from ps2.ops.keyindex import KeyIndex
from ps2.ops.managed_index import ManagedIndex
from ps2.ops.modules import user_operations
from ps2.ops.operands import Along
from ps2.ops.table import FLOATS, Op
from ps2.ops.touch_sketch import LINE, TouchSketch
from ps2.ops.touched import Touched
from ps2.ops.waiting import WaitingKeys

log = logging.getLogger(__name__)

Maker = Callable[[np.dtype[Any]], np.ndarray[Any, Any]]

# The lock file for the kernels of this package, in numba's cache folder.
LOCK = "ps2-kernels.lock"
# Functions that make the smallest array of each kind of operand: one column, one row, one slot, one value. Such arrays
# are valid arguments of every operation.
TINY: Mapping[str, Maker] = {
    "row": lambda dtype: np.ones(1, dtype),
    "block": lambda dtype: np.ones((1, 1), dtype),
    "blocks": lambda dtype: np.ones((1, 1), dtype),
    "slots": lambda dtype: np.zeros(1, np.int64),
    "row_ids": lambda dtype: np.zeros(1, np.int64),
    "values": lambda dtype: np.ones(1, dtype),
    "unsigned": lambda dtype: np.ones(1, np.uint8),
    "floats": lambda dtype: np.ones(1, np.float64),
    "integers": lambda dtype: np.zeros(1, np.int64),
}


def warm() -> None:
    """Compile all kernels that the cache lacks: one process of a machine compiles, and the others wait.

    This does not load kernels. A server loads a kernel at its first call, which takes milliseconds.
    """
    folder = kernels.gather.stats.cache_path  # type: ignore[attr-defined]
    # Without a cache folder, each process compiles its own kernels, and does not wait.
    with compiling_alone(Path(folder)) if folder else nullcontext(True) as must_compile:
        if must_compile:
            compile_all()
    for module, ops in user_operations().items():
        file = getattr(sys.modules[module], "__file__", None)
        lock = f"ps2-{hashlib.sha256(str(file).encode()).hexdigest()[:16]}.lock"
        with (
            compiling_alone(Path(folder), lock, [Path(file)]) if folder and file else nullcontext(True) as must_compile
        ):
            if must_compile:
                _compile_user_operations(ops)


def is_missing() -> bool:
    """Return True if numba has a cache folder in which kernels are missing."""
    folder = kernels.gather.stats.cache_path  # type: ignore[attr-defined]
    return bool(folder) and not is_compiled(Path(folder), LOCK, None)


@lru_cache(maxsize=1)
def load_managed() -> None:
    """Load the kernels of managed keys, if they are compiled: the first requests then need not load them.

    This takes some tenths of a second of one core, once per process.
    """
    if kernels.gather.stats.cache_path and not is_missing():  # type: ignore[attr-defined]
        _compile_managed()


def _compile_user_operations(ops: Sequence[Op]) -> None:
    for op in ops:
        try:
            _compile(op)
        except Exception as error:  # users' code may reject these arguments
            log.warning("operation %r of %s could not be compiled in advance: %s", op.name, op.module, error)


def _compile(op: Op) -> None:
    """Call an operation on tiny arrays, for each of its dtypes."""
    for dtype in op.dtypes:
        others = [op.own_dtypes.get(name, dtype) for name in op.reads[1:]] if op.own_dtypes else None
        for scalars in _scalars(op):
            op.fn(*_arguments(op, DTYPES[dtype]), **op.check(op.rows, dtype, scalars, others))


def compile_all() -> None:
    """Call every shared operation for each of its dtypes, and all other kernels, on tiny arrays."""
    for op in list(TABLE.values()):  # a copy, because a request may load a family at the same time
        if op.module.startswith("ps2.ops."):  # each family compiles its own kernels
            _compile(op)
    for dtype in FLOATS:
        for wire in get_args(packing.Wire):
            packing.widen(packing.narrow(np.ones(1, DTYPES[dtype]), wire), DTYPES[dtype])
    many_keys = np.arange(FEW + 1)  # too many for NumPy's code
    for delta in packing.DELTA_DTYPES:
        last = min(FEW + np.iinfo(delta).max // 2, packing.MAX_KEY)
        packing.unpack_keys(*packing.pack_keys(np.append(many_keys, last)))
    packing.is_ascending(many_keys)
    distinct.sort_keys(many_keys)
    numbers, values = np.zeros(1, np.int64), np.ones((1, 1), np.float32)
    distinct.group_by_partition(distinct.find_distinct(numbers)[0], np.array([0, HASH_SPACE]))
    distinct.sum_rows(distinct.take_rows(values, numbers), numbers, 1)
    touched = Touched(1)
    touched.mark(np.arange(1))
    touched.clear()
    index = KeyIndex()
    index.count_absent(index.insert(np.arange(100)))
    _compile_managed()


def _compile_managed() -> None:
    """Call all kernels of managed keys on small arrays."""
    zero = np.zeros(1, np.int64)
    for dtype in FLOATS:
        for kind in ("normal", "uniform"):
            fill_initial(np.empty(1, DTYPES[dtype]), Initial(kind), zero, zero, zero, zero)
    for numbers in (*DTYPES.values(), np.dtype(np.uint32)):
        slots.move_blocks(np.zeros((1, 1), numbers), zero, zero)
    index, keys = ManagedIndex(), np.arange(2000)
    index.insert(keys)
    index.lookup(keys)
    index.remove(keys[:1900:-1].copy())
    index.settle(0)
    for touches in (3, 20):
        waiting = WaitingKeys(touches, exact_keys=1)
        for tick in (1, 2):
            touched = waiting.touch(keys[:3], tick, 0)
        waiting.take_back(touched)
        waiting.expire(3)
    for bits in (4, 8):
        sketch = TouchSketch(bits)
        for _ in range(2):
            sketch.adopt(np.zeros(2 * LINE, sketch.dtype), 4)
            sketch.step(1)
        sketch.target_lines = 1
        sketch.step(1)
    ticks = np.ones(1, np.uint32)
    slots.stamp(ticks, zero, 1)
    slots.older(ticks, 2, 1, 1, 1)
    slots.oldest(ticks, 1, 1)
    slots.newer(ticks, 1, 1, 1, 1)


def _arguments(op: Op, dtype: np.dtype[Any]) -> list[Any]:
    return [
        _argument(op.tiny.get(name), kind, along, DTYPES[op.own_dtypes[name]] if name in op.own_dtypes else dtype)
        for name, kind, along in zip(op.names, op.operands, op.axes, strict=True)
    ]


def _argument(tiny: Maker | None, kind: str, along: Along, dtype: np.dtype[Any]) -> Any:
    """Return a tiny array for an operand of this kind; ``tiny`` makes it if the operand declares a ``Tiny``."""
    if kind == "partition":
        return Partition(0, 0, 1)
    tiny_array = (tiny or TINY[kind])(dtype)
    if kind == "block" or (len(along.axes) == 1 and not isinstance(along.axes[0], int)):
        return tiny_array
    return np.broadcast_to(tiny_array, [axis if isinstance(axis, int) else 1 for axis in along.axes]).copy()


def _scalars(op: Op) -> Iterator[dict[str, Any]]:
    """Yield scalars for several calls, which together use all kernels of an operation."""
    required = {param.name: 1 for param in op.params.values() if param.required}
    yield required
    # Flags and penalties can select other kernels.
    if flags := {param.name: True for param in op.params.values() if param.type is bool}:
        yield required | flags
    if penalties := {name: 1 for name in ("l1", "l2") if name in op.params}:
        yield required | penalties


def is_compiled(folder: Path, lock: str, sources: Sequence[Path] | None) -> bool:
    """Return True if the lock file shows that the kernels of these sources are compiled (None: ``ps2.ops``)."""
    try:
        return (folder / lock).read_text() == _fingerprint(sources)
    except OSError:
        return False


@contextmanager
def compiling_alone(folder: Path, lock: str = LOCK, sources: Sequence[Path] | None = None) -> Iterator[bool]:
    """Lock a file in numba's cache folder within the with-block; yield True if the caller must compile the kernels."""
    with ExitStack() as opened:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = opened.enter_context(open(folder / lock, "ab+", buffering=0))
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            compiled, fingerprint = file.read().decode(), _fingerprint(sources)
        except OSError as error:
            warn_once(error)
            yield True
            return
        yield compiled != fingerprint
        if compiled != fingerprint:
            try:
                file.truncate(0)
                file.write(fingerprint.encode())
            except OSError as error:  # the disk is full
                warn_once(error)


def _fingerprint(sources: Sequence[Path] | None) -> str:
    """Return a hash of the sources (None: ``ps2.ops``), versions and processor that determine compiled kernels."""
    files = sorted(Path(__file__).parent.glob("*.py")) if sources is None else sources
    contents = [(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]
    processor = (platform.machine(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    inputs = (contents, numba.__version__, platform.python_version(), *processor)
    return hashlib.sha256(repr(inputs).encode()).hexdigest()


if __name__ == "__main__":
    warm()
