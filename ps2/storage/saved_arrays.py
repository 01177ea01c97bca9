"""Reads saved vectors and matrices as NumPy arrays in this process, without servers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Int64s
from ps2.errors import CheckpointCorruptError, NotFoundError, UsageError
from ps2.storage import folders
from ps2.storage.files import resolve_url
from ps2.storage.manifest import Manifest, SavedMatrix, SavedShard
from ps2.storage.shard_files import checked, read_keys, read_values

Array = npt.NDArray[Any]


def load_numpy(url: str, name: str | None = None) -> Array | tuple[Int64s, Array]:
    """Read a vector or matrix from a ``save``, or a named vector from a fleet's checkpoint, without servers.

    Every byte that is read is compared with the manifest's checksums. The arrays must fit into this process's memory.

    Args:
        url: a path or fsspec URL: the folder of ``DCV.save`` or ``DCVMatrix.save``, of a checkpoint, or of several
            checkpoints (the newest complete checkpoint is read).
        name: the vector's name in a checkpoint; None: the folder was written by a ``save``.

    Returns:
        Values in the stored dtype (float32, float64, int32 or int64). For a dense vector or matrix: an array of shape
        (dim,) or (rows, dim). For a sparse vector or matrix: ``(keys, values)``, as ``pull()`` returns them: the active
        keys, int64 of shape (n,), ascending; and their values, shape (n,) or (rows, n). A matrix of one row is returned
        as a vector.

    Raises:
        UsageError: the folder is a checkpoint, and ``name`` is None.
        NotFoundError: no vector of the checkpoint has this name.
        CheckpointMissingError: the folder has no complete save or checkpoint.
        CheckpointCorruptError: the files do not match the manifest.
        RecoveryError: the file system fails.
    """
    url = folders.newest(str(url))
    manifest = folders.read_manifest(url)
    matrix, rows = _find_rows(url, manifest, name)
    arrays = _sparse(url, matrix, rows) if matrix.spec.kind == "sparse" else (_dense(url, matrix, rows),)
    values = arrays[-1][0] if len(rows) == 1 else arrays[-1]
    return values if len(arrays) == 1 else (arrays[0], values)


def _find_rows(url: str, manifest: Manifest, name: str | None) -> tuple[SavedMatrix, Int64s]:
    """Return the matrix to read, and the ids of the rows to read, ascending."""
    vectors = {vector: (matrix, row) for matrix in manifest.matrices for vector, row in matrix.names.items()}
    if name is None:
        if manifest.number or len(manifest.matrices) != 1:
            raise UsageError(
                f"{url}: expected the save of a vector or a matrix, but this is a checkpoint of a fleet; "
                f"load_numpy(url, name) reads one of its named vectors: {_name_list(vectors)}"
            )
        return manifest.matrices[0], np.array(manifest.matrices[0].rows, np.int64)
    if name not in vectors:
        raise NotFoundError(f"{url}: expected a vector named {name!r}, got a checkpoint with {_name_list(vectors)}")
    matrix, row = vectors[name]
    return matrix, np.array([row], np.int64)


def _name_list(names: Any) -> str:
    return ", ".join(map(repr, sorted(names)[:10])) + ", ..." * (len(names) > 10) if names else "no names"


def _dense(url: str, matrix: SavedMatrix, rows: Int64s) -> Array:
    values = np.empty((len(rows), matrix.spec.dim), matrix.spec.np_dtype)
    for shard in matrix.shards:
        begin, end = shard.partition.begin, shard.partition.end
        _read(url, matrix, shard, rows, values[:, begin:end])
    return values


def _sparse(url: str, matrix: SavedMatrix, rows: Int64s) -> tuple[Int64s, Array]:
    keys, values = [np.empty(0, np.int64)], [np.empty((len(rows), 0), matrix.spec.np_dtype)]
    fs, root = resolve_url(url)
    for shard in matrix.shards:
        with checked(fs, root, shard.files["keys"]) as file:
            keys += [part.copy() for _, part in read_keys(file)]
        count = sum(map(len, keys)) - sum(part.shape[1] for part in values)
        values.append(np.empty((len(rows), count), matrix.spec.np_dtype))
        _read(url, matrix, shard, rows, values[-1])
    all_keys = np.concatenate(keys)
    order = np.argsort(all_keys)
    if len(np.unique(all_keys)) != len(all_keys):
        raise CheckpointCorruptError(f"{url}: expected distinct keys of matrix {matrix.id}, but some occur twice")
    return all_keys[order], np.concatenate(values, axis=1)[:, order]


def _read(url: str, matrix: SavedMatrix, shard: SavedShard, rows: Int64s, out: Array) -> None:
    """Read a shard's values of these rows into ``out``, shape (len(rows), columns of the shard)."""
    fs, root = resolve_url(url)
    all_rows = np.array(matrix.rows, np.int64)
    with checked(fs, root, shard.files["values"]) as file:
        for row_ids, column, values in read_values(file, matrix.spec, all_rows, out.shape[1]):
            is_requested = np.isin(row_ids, rows)
            positions = np.searchsorted(rows, row_ids[is_requested])
            out[positions, column : column + values.shape[1]] = values[is_requested]
