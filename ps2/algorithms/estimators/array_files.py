"""Arrays of a model beside pyspark's metadata, which say what they are and their checksums; read without Spark."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ps2.errors import CheckpointCorruptError, CheckpointMissingError
from ps2.storage.arrays import npy
from ps2.storage.files import place, reported, write

# In the metadata, beside what pyspark writes.
KEY = "ps2"


def write_arrays(url: str, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Write arrays as files of a folder; return what the metadata have to say of them.

    Args:
        arrays: by the file's name.

    Raises:
        RecoveryError: the file system refuses.
    """
    fs, root = place(url)
    with reported(root, "making the folder"):
        fs.makedirs(root, exist_ok=True)
    return {name: _write(fs, f"{root}/{name}", array) for name, array in arrays.items()}


def read_array(url: str, name: str, files: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Read a file by what ``write_arrays`` has returned.

    Raises:
        CheckpointCorruptError: it is not what the metadata say.
    """
    fs, root = place(url)
    path = f"{root}/{name}"
    try:
        data = fs.cat_file(path)
    except FileNotFoundError as error:
        raise CheckpointCorruptError(f"{path}: named by the metadata, but not there") from error
    if xxhash.xxh3_128(data).hexdigest() != files[name]["xxh3_128"]:
        raise CheckpointCorruptError(f"{path}: its checksum is not that of the metadata: the file has changed")
    return np.load(io.BytesIO(data), allow_pickle=False)


def load_content(path: str) -> Any:
    """Return what the metadata of a saved model have to say beside what pyspark writes; None if that is nothing.

    Args:
        path: folder, local or a URL that fsspec knows.

    Raises:
        CheckpointMissingError: there is no model.
        CheckpointCorruptError: the metadata cannot be read.
    """
    fs, root = place(path, "path")
    with reported(root, "reading the metadata"):
        parts = [file for file in sorted(fs.glob(f"{root}/metadata/part-*")) if not file.endswith(".crc")]
        lines = [line for file in parts for line in fs.cat_file(file).splitlines()]
    if not lines:
        raise CheckpointMissingError(f"{path}: expected a model, and there is no folder metadata in it")
    try:
        content = json.loads(lines[0])
    except ValueError as error:
        raise CheckpointCorruptError(f"{path}: the metadata are not JSON: {error}") from error
    return content.get(KEY) if isinstance(content, dict) else None


def _write(fs: Any, path: str, array: npt.NDArray[Any]) -> dict[str, Any]:
    size, digest = write(fs, path, npy(array))
    return {"bytes": size, "xxh3_128": digest}
