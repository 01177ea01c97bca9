"""NumPy files (.npy), written and read in blocks of bounded size."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ps2.errors import CheckpointCorruptError
from ps2.storage.files import BLOCK_BYTES

# The header of a numeric array in version 1.0 of the .npy format, after the magic string and the two-byte length.
_HEADER = re.compile(rb"\{'descr': '([<>|][a-zA-Z]\d+)', 'fortran_order': (True|False), 'shape': \(([\d, ]*)\), \} *\n")

# First row, first column, values of shape (rows, columns).
Block = tuple[int, int, np.ndarray[Any, Any]]


class ReadableFile(Protocol):
    def read(self, size: int = ..., /) -> bytes: ...


class NamedFile(ReadableFile, Protocol):
    """An open file with its path, at its beginning."""

    path: str


@dataclass(frozen=True)
class NpyHeader:
    """Dtype and shape of the array in a .npy file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return the header of a .npy file. In the file, the array's bytes in C order follow the header."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    )
    return header.getvalue()


def npy_bytes(*arrays: np.ndarray[Any, Any]) -> Iterator[Any]:
    """Yield the bytes of a .npy file with the concatenation of the arrays along their first axis.

    Arrays that are not contiguous are copied, one block at a time.
    """
    first = arrays[0]
    yield npy_header(first.dtype, (sum(map(len, arrays)), *first.shape[1:]))
    for array in arrays:
        rows = max(1, BLOCK_BYTES // max(array[:1].nbytes, 1))
        for start in range(0, len(array) if array.size else 0, rows):
            flat = np.ascontiguousarray(array[start : start + rows]).reshape(-1).view(np.uint8)
            for begin in range(0, flat.size, BLOCK_BYTES):
                yield flat[begin : begin + BLOCK_BYTES].data


def read_npy_header(path: str, file: ReadableFile) -> NpyHeader:
    """Read the header of a .npy file; raises CheckpointCorruptError if the file has no such header.

    NumPy's own reader parses the header as Python code, which can fail in several threads at once (CPython 3.11: "AST
    constructor recursion depth mismatch"). A regular expression is enough for headers that ``npy_header`` wrote.
    """
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("expected version 1.0 of the format")
        match = _HEADER.fullmatch(file.read(int.from_bytes(file.read(2), "little")))
        if match is None:
            raise ValueError("expected the dtype, order and shape of a numeric array")
        dtype = np.dtype(match[1].decode())
    except (ValueError, TypeError) as error:
        raise CheckpointCorruptError(f"{path}: not a NumPy file: {error}") from error
    if match[2] == b"True":
        raise CheckpointCorruptError(f"{path}: expected C order, got Fortran order")
    return NpyHeader(dtype, tuple(int(length) for length in match[3].split(b",") if length.strip()))


def check_dtype(path: str, header: NpyHeader, dtype: np.dtype[Any]) -> None:
    if header.dtype != dtype:
        raise CheckpointCorruptError(f"{path}: expected values of {dtype}, got {header.dtype}")


def read_blocks(file: NamedFile, dtype: np.dtype[Any], rows: int, columns: int) -> Iterator[Block]:
    """Yield the values after the header in blocks of whole rows, or of parts of a row that is larger than a block."""
    block_items = BLOCK_BYTES // dtype.itemsize
    height = max(1, block_items // max(columns, 1))
    width = min(columns, block_items)
    for row in range(0, rows if columns else 0, height):
        for column in range(0, columns, width):
            shape = (min(height, rows - row), min(width, columns - column))
            size = math.prod(shape) * dtype.itemsize
            data = file.read(size)
            if len(data) != size:
                raise CheckpointCorruptError(
                    f"{file.path}: expected {rows:,} x {columns:,} values of {dtype}, but the file ends early"
                )
            yield row, column, np.frombuffer(data, dtype).reshape(shape)
