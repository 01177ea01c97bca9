"""An unnamed file of blocks of arrays: blocks are appended, and one block at a time is mapped into memory.

The operating system deletes the file when the process ends, even if the process crashes.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from ps2.errors import SpillError, UsageError
from ps2.ops.kernels import kernel

Array = npt.NDArray[Any]
T = TypeVar("T")

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
    """Blocks of named 1-D arrays in a file. The file is deleted with the last reference to this object.

    Attributes:
        size: the size of the file in bytes.
    """

    def __init__(self, folder: str) -> None:
        """Create an empty file that only this user can read; raise SpillError if that fails."""
        self.folder = folder
        self.size = 0
        try:
            # If the file system supports O_TMPFILE, the file has no name; if not, its name is removed immediately.
            with tempfile.TemporaryFile(dir=folder, prefix="ps2-rows-", buffering=0) as file:
                self._fd = os.dup(file.fileno())
        except OSError as error:
            raise SpillError(f"rows cannot be stored in a file in {folder}: {error.strerror}") from error
        weakref.finalize(self, os.close, self._fd)

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "rows in a file stay in the process that wrote them: return results computed from them instead"
        )

    def append(self, arrays: Mapping[str, Array]) -> BlockSlice:
        """Append a block; raise SpillError, with the needed and the free bytes, if the disk is full or fails."""
        slices, size = {}, 0
        for name, array in arrays.items():
            size = _round_up(size, ALIGNMENT) if len(array) else size  # the file ends with the last element
            slices[name] = ArraySlice(size, array.dtype, len(array))
            size += array.nbytes
        block = BlockSlice(self.size, size, slices)
        for name, array in arrays.items():
            self._write(array, block.offset + slices[name].offset, size)
        self.size = _round_up(block.offset + size, PAGE_BYTES)
        return block

    def overwrite(self, block: BlockSlice, name: str, array: Array) -> None:
        """Overwrite an array of a block with an array of the same dtype and length."""
        old = block.arrays[name]
        assert (array.dtype, len(array)) == (old.dtype, old.length)
        self._write(array, block.offset + old.offset, array.nbytes)

    def arrays(self, block: BlockSlice) -> dict[str, Array]:
        """Map a block into memory until its last array is freed. Changes to the arrays do not change the file."""
        if not block.size:
            return {name: np.empty(0, part.dtype) for name, part in block.arrays.items()}
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        mapped = mmap.mmap(self._fd, block.size, flags=mmap.MAP_PRIVATE, prot=protection, offset=block.offset)
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        return {
            name: np.frombuffer(mapped, part.dtype, part.length, part.offset) for name, part in block.arrays.items()
        }

    def reserve(self, length: int, dtype: npt.DTypeLike) -> FileArray:
        """Append an array of zeros, which can be changed; raise SpillError if the disk is full or fails."""
        array = FileArray(self, self.size, length, np.dtype(dtype))
        if array.nbytes:
            try:
                # The disk's space is allocated now: a full disk would end the process when a mapped page is written.
                os.posix_fallocate(self._fd, self.size, array.nbytes)
            except OSError as error:
                os.ftruncate(self._fd, self.size)
                raise SpillError(self._error_text(error, array.nbytes)) from error
            self.size = _round_up(self.size + array.nbytes, PAGE_BYTES)
        return array

    def view(self, offset: int, length: int, dtype: np.dtype[Any]) -> Array:
        """Map elements into memory until the array is freed. Changes to the array change the file."""
        if not length:
            return np.empty(0, dtype)
        skipped = offset % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(self._fd, skipped + length * dtype.itemsize, offset=offset - skipped)
        return np.frombuffer(mapped, dtype, length, skipped)

    def _write(self, array: Array, offset: int, needed_bytes: int) -> None:
        if not len(array):
            return
        data = memoryview(np.ascontiguousarray(array).view(np.uint8))  # type: ignore[arg-type]
        try:
            while data:
                written = os.pwrite(self._fd, data, offset)
                data, offset = data[written:], offset + written
        except OSError as error:
            os.ftruncate(self._fd, self.size)  # remove the written part of the block
            raise SpillError(self._error_text(error, needed_bytes)) from error

    def _error_text(self, error: OSError, needed_bytes: int) -> str:
        system = os.statvfs(self.folder)
        free_bytes = system.f_bavail * system.f_frsize
        rows = f"{self.size:,} bytes of rows are in a file in {self.folder}"
        if error.errno in FULL:
            return (
                f"{rows}, and {needed_bytes:,} more bytes do not fit: {error.strerror}, {free_bytes:,} bytes are free "
                "there. Give Spark larger local disks (spark.local.dir) or its workers more memory, or use more workers"
            )
        return f"{rows}, and {needed_bytes:,} more bytes cannot be written: {error.strerror}"


@dataclass(frozen=True, eq=False)
class FileArray:
    """A 1-D array in a file. A slice is mapped into memory until it is freed; changes to it change the file."""

    file: BlockFile
    offset: int
    length: int
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> Array:
        begin, end, step = part.indices(self.length)
        assert step == 1
        return self.file.view(self.offset + begin * self.dtype.itemsize, max(end - begin, 0), self.dtype)

    @property
    def nbytes(self) -> int:
        return self.length * self.dtype.itemsize


# An array in memory, or in a file.
StoredArray = Array | FileArray


def read_ahead(reads: Sequence[Callable[[], T]]) -> Iterator[T]:
    """Yield the results of functions that read blocks; while the caller uses one, a thread reads the next one."""
    if not reads:
        return
    with ThreadPoolExecutor(1, "ps2-rows") as reader:
        future = reader.submit(reads[0])
        for read in reads[1:]:
            block, future = future.result(), reader.submit(read)
            yield block
            del block  # free the block before the next one is returned
        yield future.result()


def read_pages(array: Array) -> None:
    """Read the pages of a mapped array into memory, without the GIL."""
    _touch(array.view(np.uint8))


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


@kernel
def _touch(data: npt.NDArray[np.uint8]) -> int:
    total = 0
    for position in range(0, len(data), 4096):  # one byte of each page, of at least 4 KiB
        total += data[position]
    return total
