"""An unnamed file of blocks of arrays: blocks are appended, and one block at a time is mapped into memory.

The system frees the file when the process ends, even if the process crashes.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ps2.errors import SpillError, UsageError
from ps2.ops.kernels import kernel

Array = npt.NDArray[Any]

# Arrays begin at multiples of this number of bytes, a cache line.
ALIGNMENT = 64
PAGE_BYTES = mmap.PAGESIZE
# The error numbers of a full disk, a used-up quota, and RLIMIT_FSIZE.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class ArraySlice:
    """An array within its block: the offset in bytes, the dtype and the number of elements."""

    offset: int
    dtype: np.dtype[Any]
    length: int


@dataclass(frozen=True)
class BlockSlice:
    """A block within its file: the offset, a multiple of the page size, and the size, both in bytes."""

    offset: int
    size: int
    arrays: Mapping[str, ArraySlice]


class BlockFile:
    """Blocks of named 1-D arrays in a file; the system frees the file with the last reference to this object."""

    def __init__(self, folder: str) -> None:
        """Make an empty file that only this user can read; raise SpillError if the folder is missing, read-only or
        full."""
        self.folder = folder
        self.size = 0
        try:
            # The file has no name if the file system supports that (O_TMPFILE), else it is unlinked immediately.
            with tempfile.TemporaryFile(dir=folder, prefix="ps2-rows-", buffering=0) as file:
                self._fd = os.dup(file.fileno())
        except OSError as error:
            raise SpillError(f"rows cannot be kept in a file in {folder}: {error.strerror}") from error
        weakref.finalize(self, os.close, self._fd)

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "rows in a file stay in the process that wrote them: return results computed from them instead"
        )

    def append(self, arrays: Mapping[str, Array]) -> BlockSlice:
        """Append a block; raise SpillError, which names the needed and free bytes, if the disk is full or fails."""
        slices, size = {}, 0
        for name, array in arrays.items():
            size = _rounded(size, ALIGNMENT)
            slices[name] = ArraySlice(size, array.dtype, len(array))
            size += array.nbytes
        block = BlockSlice(self.size, size, slices)
        for name, array in arrays.items():
            self._write(array, block.offset + slices[name].offset, size)
        self.size = _rounded(block.offset + size, PAGE_BYTES)
        return block

    def overwrite(self, block: BlockSlice, name: str, array: Array) -> None:
        """Overwrite an array of a block with an array of the same dtype and length."""
        old = block.arrays[name]
        assert (array.dtype, len(array)) == (old.dtype, old.length)
        self._write(array, block.offset + old.offset, array.nbytes)

    def arrays(self, block: BlockSlice) -> dict[str, Array]:
        """Map a block, as long as one of its arrays exists. Changes to the arrays do not change the file."""
        if not block.size:
            return {name: np.empty(0, part.dtype) for name, part in block.arrays.items()}
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        mapped = mmap.mmap(self._fd, block.size, flags=mmap.MAP_PRIVATE, prot=protection, offset=block.offset)
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        return {
            name: np.frombuffer(mapped, part.dtype, part.length, part.offset) for name, part in block.arrays.items()
        }

    def _write(self, array: Array, offset: int, needed: int) -> None:
        if not len(array):
            return
        data = memoryview(np.ascontiguousarray(array).view(np.uint8))  # type: ignore[arg-type]
        try:
            while data:
                written = os.pwrite(self._fd, data, offset)
                data, offset = data[written:], offset + written
        except OSError as error:
            os.ftruncate(self._fd, self.size)  # drop the part of the block that was written
            raise SpillError(self._why(error, needed)) from error

    def _why(self, error: OSError, needed: int) -> str:
        system = os.statvfs(self.folder)
        free = system.f_bavail * system.f_frsize
        rows = f"{self.size:,} bytes of rows are in a file in {self.folder}"
        if error.errno in FULL:
            return (
                f"{rows}, and {needed:,} more bytes do not fit: {error.strerror}, {free:,} bytes are free there. Give "
                "Spark larger local disks (spark.local.dir), or its workers more memory, or use more workers"
            )
        return f"{rows}, and {needed:,} more bytes cannot be written: {error.strerror}"


def load(array: Array) -> None:
    """Read a mapped array's pages into memory, without the GIL."""
    _touch(array.view(np.uint8))


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@kernel
def _touch(data: npt.NDArray[np.uint8]) -> int:
    total = 0
    for position in range(0, len(data), 4096):
        total += data[position]
    return total
