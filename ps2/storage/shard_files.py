"""Reads the files of a checkpoint, and compares size and checksum of each file with the manifest."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np
import xxhash

from ps2.array_types import Int64s
from ps2.errors import CheckpointCorruptError, CheckpointMissingError
from ps2.matrix.partition import MatrixSpec
from ps2.storage.arrays import NpyHeader, check_dtype, read_blocks, read_npy_header
from ps2.storage.files import BLOCK_BYTES, recovery_errors
from ps2.storage.manifest import SavedFile, SavedMatrix, SavedShard

# Row ids, first column, values of shape (rows, columns).
Values = tuple[Int64s, int, np.ndarray[Any, Any]]


class CheckedFile:
    """A file that is read sequentially; counts and hashes the bytes read."""

    def __init__(self, path: str, file: IO[bytes], progress: Callable[[int], None] | None) -> None:
        self.path = path
        self._file = file
        self._progress = progress
        self._digest = xxhash.xxh3_128()
        self._size = 0

    def read(self, size: int = BLOCK_BYTES) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        self._size += len(data)
        if self._progress is not None:
            self._progress(len(data))
        return data

    def finish(self, expected: SavedFile) -> None:
        """Read to the end; raise CheckpointCorruptError unless size and checksum are as expected."""
        while self.read():
            pass
        if self._size != expected.nbytes:
            raise CheckpointCorruptError(f"{self.path}: expected {expected.nbytes:,} bytes, got {self._size:,}")
        if (digest := self._digest.hexdigest()) != expected.xxh3:
            raise CheckpointCorruptError(f"{self.path}: expected bytes with XXH3-128 {expected.xxh3}, got {digest}")


@contextlib.contextmanager
def checked(
    fs: Any, root: str, file: SavedFile, progress: Callable[[int], None] | None = None
) -> Iterator[CheckedFile]:
    """Open a file of a checkpoint; the end of the with-block compares the whole file with the manifest.

    Raises CheckpointCorruptError if the file is missing, or has another size or checksum than in the manifest.
    """
    path = f"{root}/{file.name}"
    with recovery_errors(path, "reading"):
        try:
            size = fs.info(path)["size"]
            raw = fs.open(path, "rb")
        except (FileNotFoundError, NotADirectoryError) as error:
            if not fs.exists(root):
                raise CheckpointMissingError(f"{root}: expected a checkpoint, but there is nothing") from error
            raise CheckpointCorruptError(f"{path}: named by the manifest, but missing") from error
        with raw:
            if size is not None and size != file.nbytes:
                raise CheckpointCorruptError(f"{path}: expected {file.nbytes:,} bytes, got {size:,}")
            checked_file = CheckedFile(path, raw, progress)
            yield checked_file
            checked_file.finish(file)


def read_json(fs: Any, root: str, file: SavedFile) -> Any:
    """Return the content of a JSON file; raises like ``checked``."""
    with checked(fs, root, file) as checked_file:
        data = b"".join(iter(checked_file.read, b""))
    try:
        return json.loads(data)
    except ValueError as error:
        raise CheckpointCorruptError(f"{root}/{file.name}: not JSON: {error}") from error


def count_keys(fs: Any, root: str, file: SavedFile) -> int:
    """Return the number of keys in a file from its header, without verifying its bytes."""
    path = f"{root}/{file.name}"
    with recovery_errors(path, "reading"):
        try:
            with fs.open(path, "rb") as raw:
                header = read_npy_header(path, raw)
        except FileNotFoundError as error:
            raise CheckpointCorruptError(f"{path}: named by the manifest, but missing") from error
    _check_keys(path, header)
    return header.shape[0]


def read_keys(file: CheckedFile) -> Iterator[tuple[int, Int64s]]:
    """Yield the int64 keys in blocks, each with the index of its first key."""
    header = read_npy_header(file.path, file)
    _check_keys(file.path, header)
    for _, start, keys in read_blocks(file, np.dtype(np.int64), 1, header.shape[0]):
        yield start, keys[0]


def read_bytes(file: CheckedFile) -> bytes:
    """Return the content of a .npy file of uint8 as bytes."""
    header = read_npy_header(file.path, file)
    check_dtype(file.path, header, np.dtype(np.uint8))
    return b"".join(iter(file.read, b""))


def read_values(file: CheckedFile, spec: MatrixSpec, rows: Int64s, columns: int) -> Iterator[Values]:
    """Yield the values of a shard in blocks.

    ``rows``: the ids of the rows in use at the checkpoint, ascending. ``columns``: the number of the shard's columns.
    """
    header = read_npy_header(file.path, file)
    check_dtype(file.path, header, spec.np_dtype)
    is_by_column = spec.layout == "column"
    shape = (columns, spec.rows) if is_by_column else (rows.size, columns)
    if header.shape != shape:
        raise CheckpointCorruptError(f"{file.path}: expected values of shape {shape}, got {header.shape}")
    for row, column, values in read_blocks(file, spec.np_dtype, *shape):
        if not is_by_column:
            yield rows[row : row + len(values)], column, values
            continue
        row, column = column, row  # the file is transposed, and also has the rows that are not in use
        begin, end = np.searchsorted(rows, (row, row + values.shape[1]))
        if begin < end:
            are_all_in_use = end - begin == values.shape[1]
            yield rows[begin:end], column, values.T if are_all_in_use else values.T[rows[begin:end] - row]


def verify(
    fs: Any,
    root: str,
    file: SavedFile,
    source: tuple[str, SavedMatrix, SavedShard] | None,
    progress: Callable[[int], None] | None,
) -> None:
    """Read a file to its end; raise like ``checked``, ``read_keys`` and ``read_values``.

    ``source``: the kind of the file, its matrix and its shard; None: the file belongs to no shard.
    """
    kind, matrix, shard = source or (None, None, None)
    if kind == "ids":
        read_json(fs, root, file)
        return
    columns = 0
    if kind == "values" and matrix is not None and shard is not None:
        is_sparse = matrix.spec.kind == "sparse"
        columns = count_keys(fs, root, shard.files["keys"]) if is_sparse else shard.partition.width
    with checked(fs, root, file, progress) as checked_file:
        if kind == "life":
            read_bytes(checked_file)
        elif kind == "keys":
            deque(read_keys(checked_file), maxlen=0)
        elif matrix is not None:
            deque(read_values(checked_file, matrix.spec, np.array(matrix.rows, np.int64), columns), maxlen=0)


def _check_keys(path: str, header: NpyHeader) -> None:
    check_dtype(path, header, np.dtype(np.int64))
    if len(header.shape) != 1:
        raise CheckpointCorruptError(f"{path}: expected one dimension of keys, got shape {header.shape}")
