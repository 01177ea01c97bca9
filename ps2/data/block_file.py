"""A file of blocks of arrays that has no name: written from the front, and mapped one block at a time.

The system frees the file's blocks on disk when the process ends, however it ends: nothing has to be cleaned up.
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

# Arrays begin at multiples of this, in bytes: a cache line.
ALIGNMENT = 64
PAGE_BYTES = mmap.PAGESIZE
# Of a disk without room, a quota, and RLIMIT_FSIZE.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class ArrayPlace:
    """The place of an array in its block: offset in bytes, dtype and number of elements."""

    offset: int
    dtype: np.dtype[Any]
    length: int


@dataclass(frozen=True)
class BlockPlace:
    """The place of a block in its file: offset, which begins a page, and size, both in bytes."""

    offset: int
    size: int
    arrays: Mapping[str, ArrayPlace]


class BlockFile:
    """Blocks of named 1-D arrays in a file below a folder; it ends with the last reference to it.

    Attributes:
        folder: the folder whose disk holds the file.
        size: of the file in bytes.
    """

    def __init__(self, folder: str) -> None:
        """Make an empty file, readable by this user only.

        Raises:
            SpillError: the folder is missing, read-only or full.
        """
        self.folder = folder
        self.size = 0
        try:
            # Without a name where the file system can do that (O_TMPFILE), else unlinked at once.
            with tempfile.TemporaryFile(dir=folder, prefix="ps2-rows-", buffering=0) as file:
                self._fd = os.dup(file.fileno())
        except OSError as error:
            raise SpillError(f"rows cannot be kept in a file in {folder}: {error.strerror}") from error
        weakref.finalize(self, os.close, self._fd)

    def __reduce__(self) -> NoReturn:
        raise UsageError("rows in a file stay in the process that wrote them: return what is computed of them instead")

    def append(self, arrays: Mapping[str, Array]) -> BlockPlace:
        """Write a block behind the others.

        Raises:
            SpillError: the disk is full, or fails; names the folder, the bytes needed and those free.
        """
        places, size = {}, 0
        for name, array in arrays.items():
            size = _rounded(size, ALIGNMENT)
            places[name] = ArrayPlace(size, array.dtype, len(array))
            size += array.nbytes
        block = BlockPlace(self.size, size, places)
        for name, array in arrays.items():
            self._write(array, block.offset + places[name].offset, size)
        self.size = _rounded(block.offset + size, PAGE_BYTES)
        return block

    def overwrite(self, block: BlockPlace, name: str, array: Array) -> None:
        """Replace an array by another one of the same dtype and length."""
        place = block.arrays[name]
        assert (array.dtype, len(array)) == (place.dtype, place.length)
        self._write(array, block.offset + place.offset, array.nbytes)

    def arrays(self, block: BlockPlace) -> dict[str, Array]:
        """Map a block; it stays mapped as long as one of the arrays is there. Changes of them do not reach the file."""
        if not block.size:
            return {name: np.empty(0, place.dtype) for name, place in block.arrays.items()}
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        mapped = mmap.mmap(self._fd, block.size, flags=mmap.MAP_PRIVATE, prot=protection, offset=block.offset)
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        return {
            name: np.frombuffer(mapped, place.dtype, place.length, place.offset) for name, place in block.arrays.items()
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
            os.ftruncate(self._fd, self.size)  # what was written of the block takes no room
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
    """Bring a mapped array's pages into memory, without the GIL."""
    _touch(array.view(np.uint8))


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@kernel
def _touch(data: npt.NDArray[np.uint8]) -> int:
    total = 0
    for position in range(0, len(data), 4096):
        total += data[position]
    return total
