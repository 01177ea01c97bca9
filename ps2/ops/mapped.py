"""Arrays whose number of columns changes without copying: the pages of their mapped memory are moved.

A resize changes only page tables, which takes about a hundredth of the time of a copy, and returns unused pages to the
system. If the system lacks ``mremap``, columns are copied.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
from itertools import pairwise
from typing import Any

import numpy as np

from ps2.ops.table import Array

log = logging.getLogger(__name__)

PAGE = mmap.PAGESIZE
# Constants of Linux's mman.h: flags of mmap and mremap, advice of madvise, and mmap's result after an error.
PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
MAY_MOVE, FIXED, KEEP_OLD_RANGE = 1, 2, 4
MAP_FIXED = 0x10
USE_HUGE_PAGES, HUGE_PAGE_BYTES = 14, 2 << 20
FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_mremap = getattr(_libc, "mremap", None)
if _mremap is not None:
    _mremap.restype = ctypes.c_void_p
    _mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class _Region:
    """A range of mapped memory, initially zeros. It is unmapped when no array uses it any more."""

    def __init__(self, size: int) -> None:
        """Map at least ``size`` bytes. Raises MemoryError if the system refuses."""
        self.size = max(-(-size // PAGE), 1) * PAGE
        # The offsets at which moved page ranges begin and end. Linux before 6.17 cannot move a range that contains such
        # an offset.
        self._borders: set[int] = set()
        aligned = self.size >= HUGE_PAGE_BYTES
        mapped = self.size + HUGE_PAGE_BYTES * aligned
        start = _libc.mmap(None, mapped, mmap.PROT_READ | mmap.PROT_WRITE, PRIVATE_ANONYMOUS, -1, 0)
        if start == FAILED:
            self.size = 0
            raise MemoryError(f"the system refuses {size:,} bytes")
        self.address = start
        if aligned:
            # Huge pages halve the time of random access to a large array. Aligned pages can be moved without splitting.
            self.address = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
            unused_before, unused_after = self.address - start, start + mapped - self.address - self.size
            if unused_before:
                _libc.munmap(start, unused_before)
            if unused_after:
                _libc.munmap(self.address + self.size, unused_after)
            _libc.madvise(self.address, self.size, USE_HUGE_PAGES)
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (self.size,),
            "data": (self.address, False),
        }

    def move_from(self, other: _Region, begin: int, size: int, target: int) -> int:
        """Move pages from offset ``begin`` of another region to offset ``target``; return the number of bytes moved.

        If the system cannot move all of the pages, the remaining bytes are zeros here. In the other region, zeros
        replace the moved pages, so arrays that use it remain valid.
        """
        inner_borders = [border for border in other._borders if begin < border < begin + size]
        borders = sorted({begin, begin + size, *inner_borders})
        self._borders.update(target + border - begin for border in borders)
        for start, end in pairwise(borders):
            if not self._move_range(other, start, end - start, target + start - begin):
                return start - begin
        return size

    def _move_range(self, other: _Region, begin: int, size: int, target: int) -> bool:
        if _mremap is None or self.address is None or other.address is None:
            return False
        new_address = _mremap(
            other.address + begin, size, size, MAY_MOVE | FIXED | KEEP_OLD_RANGE, self.address + target
        )
        if new_address == self.address + target:
            return True
        # A failed move may have unmapped its target: map it again.
        remapped = _libc.mmap(
            self.address + target, size, mmap.PROT_READ | mmap.PROT_WRITE, PRIVATE_ANONYMOUS | MAP_FIXED, -1, 0
        )
        if remapped != self.address + target:
            # Rows that have been moved already would be lost silently. If this process ends, a copy or a checkpoint
            # restores them.
            log.critical("the system refuses to map %d bytes again: this process ends", size)
            os.abort()
        return False

    def __del__(self) -> None:
        if self.size:
            _libc.munmap(self.address, self.size)


class MappedArray:
    """A C-contiguous ``array`` of shape (rows, columns) that can be resized. Views of it are valid until ``resize``."""

    def __init__(self, rows: int, columns: int, dtype: Any) -> None:
        """Allocate zeros. If there are several rows, round up the number of columns: each row begins at a page."""
        self._dtype = np.dtype(dtype)
        self._region, self.array = self._allocate(rows, columns)

    @property
    def columns(self) -> int:
        return int(self.array.shape[1])

    @property
    def nbytes(self) -> int:
        return self._region.size

    def nbytes_for(self, columns: int) -> int:
        """Return the size in bytes that the array would have with this number of columns."""
        return self.size_bytes(len(self.array), columns, self._dtype)

    @classmethod
    def size_bytes(cls, rows: int, columns: int, dtype: np.dtype[Any]) -> int:
        """Return the size in bytes of an array of this shape."""
        return max(-(-rows * cls.rounded(rows, columns, dtype) * dtype.itemsize // PAGE), 1) * PAGE

    @staticmethod
    def rounded(rows: int, columns: int, dtype: np.dtype[Any]) -> int:
        """Return the number of columns; if there are several rows, rounded up to a multiple of the page size."""
        step = max(1, PAGE // dtype.itemsize) if rows > 1 else 1
        return -(-columns // step) * step

    def resize(self, columns: int) -> None:
        """Change the number of columns: new columns are zeros, and the memory of removed columns is freed."""
        old_region, old = self._region, self.array
        region, array = self._allocate(len(old), columns)
        used_bytes = min(old.shape[1], array.shape[1]) * self._dtype.itemsize
        for row in range(len(old)):
            begin, target = row * old.shape[1] * self._dtype.itemsize, row * array.shape[1] * self._dtype.itemsize
            num_moved = (
                region.move_from(old_region, begin, -(-used_bytes // PAGE) * PAGE, target) // self._dtype.itemsize
            )
            copied = slice(num_moved, used_bytes // self._dtype.itemsize)
            array[row, copied] = old[row, copied]
        if used_bytes % PAGE:
            # The last page may contain values of removed columns.
            array.reshape(-1).view(np.uint8)[used_bytes : array.nbytes][: PAGE - used_bytes % PAGE] = 0
        self._region, self.array = region, array

    def _allocate(self, rows: int, columns: int) -> tuple[_Region, Array]:
        columns = self.rounded(rows, columns, self._dtype)
        size = rows * columns * self._dtype.itemsize
        region = _Region(size)
        return region, np.asarray(region)[:size].view(self._dtype).reshape(rows, columns)
