"""Arrays of a model beside pyspark's metadata, which say what they are and their checksums; read without Spark."""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ps2.errors import CheckpointCorruptError, CheckpointMissingError, UsageError
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


@contextmanager
def reading(path: str, content: Any, expected: str, what: str) -> Iterator[None]:
    """See that what metadata have to say is of a format that is known, and say so if the files are not what it says.

    Args:
        path: what the user calls it.
        content: what the metadata have to say.
        expected: the format.
        what: is expected, in words.

    Raises:
        UsageError: it is of another format.
        CheckpointCorruptError: a KeyError, TypeError or ValueError comes of reading.
    """
    found = content.get("format") if isinstance(content, dict) else None
    if found != expected:
        raise UsageError(f"{path}: expected {what} of format {expected!r}, got {found!r}: another version wrote that")
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointCorruptError(f"{path}: a part of the metadata is missing or wrong: {error!r}") from error


def save_without_spark(
    path: str, model_class: str, params: Mapping[str, Any], write_content: Callable[[str], Any]
) -> None:
    """Write a model to a new folder, local or a URL that fsspec knows, with metadata as pyspark writes them.

    Args:
        model_class: whose ``load`` is to read it; params: that are set.
        write_content: writes what is beside the metadata to a URL, and returns what they have to say of it.

    Raises:
        UsageError: there is something already.
        RecoveryError: the file system refuses.
    """
    fs, root = place(path, "path")
    if fs.exists(root):
        raise UsageError(f"{path}: there is something already; save to a new folder")
    metadata = {
        "class": model_class,
        "timestamp": int(time.time() * 1000),
        "sparkVersion": version("pyspark"),
        "uid": f"{model_class.rpartition('.')[2]}_{uuid.uuid4().hex[:12]}",
        "paramMap": params,
        "defaultParamMap": {},
        KEY: write_content(path),
    }
    with reported(root, "writing the metadata"):
        fs.makedirs(f"{root}/metadata", exist_ok=True)
        write(fs, f"{root}/metadata/part-00000", [f"{json.dumps(metadata)}\n".encode()])
        write(fs, f"{root}/metadata/_SUCCESS", [])


def _write(fs: Any, path: str, array: npt.NDArray[Any]) -> dict[str, Any]:
    size, digest = write(fs, path, npy(array))
    return {"bytes": size, "xxh3_128": digest}
