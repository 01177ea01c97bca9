"""Arrays of a model, saved beside pyspark's metadata; the metadata list them with checksums. Reading needs no Spark."""

from __future__ import annotations

import io
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from ps2.errors import CheckpointCorruptError, CheckpointMissingError, UsageError
from ps2.storage.arrays import npy
from ps2.storage.files import reported, resolve_url, write

A = TypeVar("A", bound="ArrayFiles")

# The key in the metadata, beside those that pyspark writes.
KEY = "ps2"
# The maximum number of numbers of a model that travels inside the functions that use it; a larger one is broadcast.
MAX_LIGHT = 1 << 14


def write_arrays(url: str, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Write arrays, by file name, to a folder; return their entries for the metadata."""
    fs, root = resolve_url(url)
    with reported(root, "making the folder"):
        fs.makedirs(root, exist_ok=True)
    entries = {}
    for name, array in arrays.items():
        size, digest = write(fs, f"{root}/{name}", npy(array))
        entries[name] = {"bytes": size, "xxh3_128": digest}
    return entries


def read_array(url: str, name: str, files: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Read the file of an entry of ``write_arrays``; raise CheckpointCorruptError if it does not match the entry."""
    fs, root = resolve_url(url)
    path = f"{root}/{name}"
    try:
        data = fs.cat_file(path)
    except FileNotFoundError as error:
        raise CheckpointCorruptError(f"{path}: named by the metadata, but not there") from error
    if xxhash.xxh3_128(data).hexdigest() != files[name]["xxh3_128"]:
        raise CheckpointCorruptError(f"{path}: its checksum is not that of the metadata: the file has changed")
    return np.load(io.BytesIO(data), allow_pickle=False)


def load_content(path: str) -> Any:
    """Return PS2's part of a saved model's metadata, None if there is none; args and errors as of ``load_metadata``."""
    return load_metadata(path).get(KEY)


def load_metadata(path: str) -> dict[str, Any]:
    """Return a saved model's metadata, as pyspark writes them: class, paramMap and others; PS2's part is ``KEY``.

    Raise CheckpointMissingError without a model, and CheckpointCorruptError for metadata that cannot be read.
    """
    fs, root = resolve_url(path, "path")
    with reported(root, "reading the metadata"):
        folder = f"{root}/metadata"
        files = sorted(fs.ls(folder, detail=False)) if fs.isdir(folder) else []
        parts = [file for file in files if "/part-" in file and not file.endswith(".crc")]
        lines = [line for file in parts for line in fs.cat_file(file).splitlines()]
    if not lines:
        raise CheckpointMissingError(f"{path}: expected a model, and there is no folder metadata in it")
    try:
        content = json.loads(lines[0])
    except ValueError as error:
        raise CheckpointCorruptError(f"{path}: the metadata are not JSON: {error}") from error
    return content if isinstance(content, dict) else {}


@contextmanager
def reading(path: str, content: Any, expected: str, what: str) -> Iterator[None]:
    """Raise UsageError for another format than ``expected``; turn errors of reading into CheckpointCorruptError."""
    saved_format = content.get("format") if isinstance(content, dict) else None
    if saved_format != expected:
        raise UsageError(
            f"{path}: expected {what} of format {expected!r}, got {saved_format!r}: another version wrote that"
        )
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointCorruptError(f"{path}: a part of the metadata is missing or wrong: {error!r}") from error


def save_without_spark(
    path: str, model_class: str, params: Mapping[str, Any], write_content: Callable[[str], Any]
) -> None:
    """Write a model to a new folder, with metadata as pyspark writes them; raise UsageError if the folder exists.

    ``write_content`` writes all else to a URL, and returns PS2's part of the metadata.
    """
    fs, root = resolve_url(path, "path")
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


@dataclass(frozen=True)
class ModelFiles:
    """The files of a kind of ``ArrayFiles``.

    Attributes:
        format: the format, with its version.
        what: the content in words, for errors.
        arrays: the names of the arrays, each with the kinds of dtype that it may have, NumPy's letters. The file of an
            array is NAME.npy; an array that the model did not write has none.
        values: the names of the other values, each with its conversion from JSON, which raises ValueError or TypeError
            for a wrong value.
    """

    format: str
    what: str
    arrays: Mapping[str, str]
    values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)


class ArrayFiles:
    """Arrays and values that are written to a model's folder, and read from it without Spark.

    The names in ``_FILES`` are attributes, and arguments of the constructor, unless the hooks convert them.
    """

    _FILES: ClassVar[ModelFiles]

    @classmethod
    def load(cls: type[A], path: str) -> A:
        """Read a model that ``save``, or the public model's ``save``, wrote.

        Args:
            path: a folder, local or a URL that fsspec knows.

        Raises:
            CheckpointMissingError: the folder holds no model.
            UsageError: it is another model, or its version is unknown.
            CheckpointCorruptError: the files do not match the metadata.
        """
        return cls.read(path, path, load_content(path))

    def _arrays_to_write(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays as the files hold them."""
        return {name: getattr(self, name) for name in self._FILES.arrays}

    def _values_to_write(self) -> dict[str, Any]:
        """Return the other values as the metadata hold them."""
        return {name: getattr(self, name) for name in self._FILES.values}

    @classmethod
    def _from_files(cls: type[A], **parts: Any) -> A:
        """Make the model of the arrays and values that were read."""
        make: Any = cls
        made: A = make(**parts)
        return made

    def write(self, url: str) -> dict[str, Any]:
        """Write the arrays to a folder; return their entries for the metadata."""
        files = write_arrays(url, {f"{name}.npy": array for name, array in self._arrays_to_write().items()})
        return {"format": self._FILES.format, **self._values_to_write(), "files": files}

    @classmethod
    def read(cls: type[A], path: str, url: str, content: Any) -> A:
        """Read what ``write`` wrote to a URL, for which the user gave a path; raises like ``load``."""
        saved = cls._FILES
        with reading(path, content, saved.format, saved.what):
            values = {name: convert(content[name]) for name, convert in saved.values.items()}
            files = dict(content["files"])
            arrays = {name: read_array(url, f"{name}.npy", files) for name in saved.arrays if f"{name}.npy" in files}
            for name, array in arrays.items():
                if array.dtype.kind not in saved.arrays[name]:
                    raise ValueError(f"{name}: dtype {array.dtype}")
            try:
                return cls._from_files(**arrays, **values)
            except UsageError as error:
                raise CheckpointCorruptError(f"{path}: {error}") from error


class ArrayModel(ArrayFiles):
    """A trained model as arrays, usable without Spark and servers; picklable."""

    # The name of the public model whose files these are.
    _MODEL_CLASS: ClassVar[str]
    # Whether features may be missing (NaN).
    takes_missing: bool = False

    @property
    def is_light(self) -> bool:
        """Whether the model may travel inside the function that uses it."""
        return sum(getattr(self, name).size for name in self._FILES.arrays) <= MAX_LIGHT

    def save(self, path: str) -> None:
        """Write the model to a new folder, local or a URL that fsspec knows; the public model reads it, too.

        Raises:
            UsageError: the folder exists.
            RecoveryError: the file system refuses.
        """
        save_without_spark(path, self._MODEL_CLASS, self._params(), self.write)

    def _params(self) -> dict[str, Any]:
        """Return the params that the public model has, as plain data."""
        return {}
