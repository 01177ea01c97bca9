"""Arrays whose number of columns changes without copying: their memory is mapped, and its pages are moved.

A resize only changes page tables, which takes about a hundredth of the time of copying, and returns freed pages to the
system. If the system has no ``mremap``, columns are copied.
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
# Constants of Linux's mman.h.
PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
MAY_MOVE, FIXED, KEEP_OLD_RANGE = 1, 2, 4
MAP_FIXED = 0x10
USE_HUGE_PAGES, HUGE_PAGE = 14, 2 << 20
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
    """A range of mapped memory, initially zeros. It is unmapped when no array views it any more."""

    def __init__(self, size: int) -> None:
        """Raises MemoryError if the system refuses."""
        self.size = max(-(-size // PAGE), 1) * PAGE
        # The borders of page ranges that were moved into this region. Linux before 6.17 cannot move a range across one.
        self._borders: set[int] = set()
        aligned = self.size >= HUGE_PAGE
        mapped = self.size + HUGE_PAGE * aligned
        start = _libc.mmap(None, mapped, mmap.PROT_READ | mmap.PROT_WRITE, PRIVATE_ANONYMOUS, -1, 0)
        if start == FAILED:
            self.size = 0
            raise MemoryError(f"the system refuses {size:,} bytes")
        self.address = start
        if aligned:
            # Huge pages halve the time of random access to a large array. They can be moved whole if they are aligned.
            self.address = -(-start // HUGE_PAGE) * HUGE_PAGE
            before, after = self.address - start, start + mapped - self.address - self.size
            if before:
                _libc.munmap(start, before)
            if after:
                _libc.munmap(self.address + self.size, after)
            _libc.madvise(self.address, self.size, USE_HUGE_PAGES)
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (self.size,),
            "data": (self.address, False),
        }

    def take(self, other: _Region, begin: int, size: int, target: int) -> int:
        """Move whole pages of another region to this one; return the number of bytes that the system has moved.

        The remaining bytes of the target are zeros. In the other region, zeros replace the moved pages, so arrays that
        view it remain valid.
        """
        inner = [border for border in other._borders if begin < border < begin + size]
        borders = sorted({begin, begin + size, *inner})
        self._borders.update(target + border - begin for border in borders)
        for start, end in pairwise(borders):
            if not self._take_piece(other, start, end - start, target + start - begin):
                return start - begin
        return size

    def _take_piece(self, other: _Region, begin: int, size: int, target: int) -> bool:
        if _mremap is None or self.address is None or other.address is None:
            return False
        moved = _mremap(other.address + begin, size, size, MAY_MOVE | FIXED | KEEP_OLD_RANGE, self.address + target)
        if moved == self.address + target:
            return True
        # A failed move may have unmapped its target.
        remapped = _libc.mmap(
            self.address + target, size, mmap.PROT_READ | mmap.PROT_WRITE, PRIVATE_ANONYMOUS | MAP_FIXED, -1, 0
        )
        if remapped != self.address + target:
            # Rows that were moved already would be lost silently. After the end of this process, a copy or checkpoint
            # restores them.
            log.critical("the system refuses to map %d bytes again: this process ends", size)
            os.abort()
        return False

    def __del__(self) -> None:
        if self.size:
            _libc.munmap(self.address, self.size)


class MappedArray:
    """A C-contiguous array of shape (rows, columns) whose number of columns can change.

    Attributes:
        array: the whole array; a view is valid until the next ``resize``.
    """

    def __init__(self, rows: int, columns: int, dtype: Any) -> None:
        """Allocate zeros. With several rows, the columns are rounded up so that each row begins at a page."""
        self._dtype = np.dtype(dtype)
        self._region, self.array = self._allocate(rows, columns)

    @property
    def columns(self) -> int:
        return int(self.array.shape[1])

    @property
    def nbytes(self) -> int:
        return self._region.size

    def nbytes_for(self, columns: int) -> int:
        """Return the size of the array in bytes if it had this many columns."""
        return self.size_bytes(len(self.array), columns, self._dtype)

    @classmethod
    def size_bytes(cls, rows: int, columns: int, dtype: np.dtype[Any]) -> int:
        """Return the size of an array in bytes."""
        return max(-(-rows * cls.rounded(rows, columns, dtype) * dtype.itemsize // PAGE), 1) * PAGE

    @staticmethod
    def rounded(rows: int, columns: int, dtype: np.dtype[Any]) -> int:
        """Return the number of columns rounded up to whole pages, if there are several rows."""
        step = max(1, PAGE // dtype.itemsize) if rows > 1 else 1
        return -(-columns // step) * step

    def resize(self, columns: int) -> None:
        """Change the number of columns: new columns are zeros, and the memory of dropped columns is freed."""
        old_region, old = self._region, self.array
        region, array = self._allocate(len(old), columns)
        used_bytes = min(old.shape[1], array.shape[1]) * self._dtype.itemsize
        for row in range(len(old)):
            begin, target = row * old.shape[1] * self._dtype.itemsize, row * array.shape[1] * self._dtype.itemsize
            moved = region.take(old_region, begin, -(-used_bytes // PAGE) * PAGE, target) // self._dtype.itemsize
            copied = slice(moved, used_bytes // self._dtype.itemsize)
            array[row, copied] = old[row, copied]
        if used_bytes % PAGE:
            # The last page may have values of dropped columns.
            array.reshape(-1).view(np.uint8)[used_bytes : array.nbytes][: PAGE - used_bytes % PAGE] = 0
        self._region, self.array = region, array

    def _allocate(self, rows: int, columns: int) -> tuple[_Region, Array]:
        columns = self.rounded(rows, columns, self._dtype)
        size = rows * columns * self._dtype.itemsize
        region = _Region(size)
        return region, np.asarray(region)[:size].view(self._dtype).reshape(rows, columns)
