"""Save and load a model's arrays as files, whose checksums its metadata list. No Spark session is needed."""

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
from ps2.storage.arrays import npy_bytes
from ps2.storage.files import recovery_errors, resolve_url, write

A = TypeVar("A", bound="ArrayFiles")

# The key of PS2's entry in a saved model's metadata, which otherwise have pyspark's format.
KEY = "ps2"
# A model with at most this many array elements is pickled with each function that uses it. A larger model is broadcast.
MAX_PICKLED_VALUES = 1 << 14


def write_arrays(url: str, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Write arrays, given by file name, to a folder; return the size and checksum of each file for the metadata."""
    fs, root = resolve_url(url)
    with recovery_errors(root, "making the folder"):
        fs.makedirs(root, exist_ok=True)
    entries = {}
    for name, array in arrays.items():
        num_bytes, digest = write(fs, f"{root}/{name}", npy_bytes(array))
        entries[name] = {"bytes": num_bytes, "xxh3_128": digest}
    return entries


def read_array(url: str, name: str, files: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Read an array; raise CheckpointCorruptError if its file differs from the entry in ``write_arrays``' result."""
    fs, root = resolve_url(url)
    path = f"{root}/{name}"
    try:
        data = fs.cat_file(path)
    except FileNotFoundError as error:
        raise CheckpointCorruptError(f"{path}: the metadata list this file, but it does not exist") from error
    if xxhash.xxh3_128(data).hexdigest() != files[name]["xxh3_128"]:
        raise CheckpointCorruptError(f"{path}: its checksum is not that of the metadata: the file has changed")
    return np.load(io.BytesIO(data), allow_pickle=False)


def load_content(path: str) -> Any:
    """Return PS2's entry in a saved model's metadata; None if it is missing. Raises like ``load_metadata``."""
    return load_metadata(path).get(KEY)


def load_metadata(path: str) -> dict[str, Any]:
    """Return a saved model's metadata as pyspark writes them: class, paramMap and others, with PS2's entry at ``KEY``.

    Raise CheckpointMissingError if the folder has no metadata, and CheckpointCorruptError if they are not JSON.
    """
    fs, root = resolve_url(path, "path")
    with recovery_errors(root, "reading the metadata"):
        folder = f"{root}/metadata"
        files = sorted(fs.ls(folder, detail=False)) if fs.isdir(folder) else []
        parts = [file for file in files if "/part-" in file and not file.endswith(".crc")]
        lines = [line for file in parts for line in fs.cat_file(file).splitlines()]
    if not lines:
        raise CheckpointMissingError(f"{path}: expected the folder of a model, but it has no folder metadata")
    try:
        content = json.loads(lines[0])
    except ValueError as error:
        raise CheckpointCorruptError(f"{path}: the metadata are not JSON: {error}") from error
    return content if isinstance(content, dict) else {}


@contextmanager
def reading(path: str, content: Any, expected: str, kind: str) -> Iterator[None]:
    """Raise UsageError unless PS2's entry has the expected format; CheckpointCorruptError: an error in the block."""
    saved_format = content.get("format") if isinstance(content, dict) else None
    if saved_format != expected:
        raise UsageError(
            f"{path}: expected {kind} of format {expected!r}, got {saved_format!r}, which another version wrote"
        )
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointCorruptError(f"{path}: a part of the metadata is missing or wrong: {error!r}") from error


def save_without_spark(
    path: str, model_class: str, params: Mapping[str, Any], write_content: Callable[[str], Any]
) -> None:
    """Write a model to a new folder, with metadata in pyspark's format; raise UsageError if the folder exists.

    ``write_content`` writes the model's other files to the folder, and returns PS2's entry in the metadata.
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
    with recovery_errors(root, "writing the metadata"):
        fs.makedirs(f"{root}/metadata", exist_ok=True)
        write(fs, f"{root}/metadata/part-00000", [f"{json.dumps(metadata)}\n".encode()])
        write(fs, f"{root}/metadata/_SUCCESS", [])


@dataclass(frozen=True)
class ModelFiles:
    """The files of one subclass of ``ArrayFiles``.

    Attributes:
        kind: the kind of the content, for messages, such as "a dictionary".
        arrays: the names of the arrays, each with its valid ``dtype.kind`` letters. The file of an array is NAME.npy.
        values: the names of the other values, each with its conversion from JSON, which raises ValueError or TypeError
            for a wrong value.
        optional: arrays that a model can lack, described like ``arrays``. An absent array has no file.
        optional_values: values that a model can lack, described like ``values``; their attribute is then None.
    """

    format: str
    kind: str
    arrays: Mapping[str, str]
    values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    optional: Mapping[str, str] = field(default_factory=dict)
    optional_values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)


class ArrayFiles:
    """Arrays and values that are written to a model's folder, and read from it without Spark.

    Names in ``_FILES`` are attributes and constructor arguments, unless a subclass overrides the private methods.
    """

    _FILES: ClassVar[ModelFiles]
    # Whether features may be missing (NaN).
    takes_missing: bool = False

    @classmethod
    def load(cls: type[A], path: str) -> A:
        """Read a model that ``save``, or the public model's ``save``, wrote.

        Args:
            path: a folder, local or a URL that fsspec knows.

        Raises:
            CheckpointMissingError: the folder holds no model.
            UsageError: the model is of another class, or its version is unknown.
            CheckpointCorruptError: the files do not match the metadata.
        """
        return cls.read(path, path, load_content(path))

    def _arrays_to_write(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by name, as they are written to files."""
        return {name: getattr(self, name) for name in self._FILES.arrays}

    def _values_to_write(self) -> dict[str, Any]:
        """Return the other values by name, as JSON data for the metadata."""
        values = {name: getattr(self, name) for name in self._FILES.values}
        optional = {name: getattr(self, name) for name in self._FILES.optional_values}
        values |= {name: value for name, value in optional.items() if value is not None}
        return {name: value.to_json() if hasattr(value, "to_json") else value for name, value in values.items()}

    @classmethod
    def _arrays_to_read(cls, content: Any, values: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the names of the arrays to read, each with its valid dtype kinds."""
        present = {name: kinds for name, kinds in cls._FILES.optional.items() if f"{name}.npy" in content["files"]}
        return {**cls._FILES.arrays, **present}

    @classmethod
    def _make(cls: type[A], arrays: dict[str, Any], values: dict[str, Any]) -> A:
        """Return a model with these arrays and values; raise ValueError if they do not match."""
        make: Any = cls
        model: A = make(**arrays, **values)
        return model

    @classmethod
    def _from_files(cls: type[A], path: str, url: str, arrays: dict[str, Any], values: dict[str, Any]) -> A:
        """Return a model with these arrays and values; a subclass can read further files. Raises like ``load``."""
        try:
            return cls._make(arrays, values)
        except ValueError as error:
            raise CheckpointCorruptError(f"{path}: {error}") from error

    def write(self, url: str) -> dict[str, Any]:
        """Write the arrays to a folder; return PS2's entry in the metadata."""
        files = write_arrays(url, {f"{name}.npy": array for name, array in self._arrays_to_write().items()})
        return {"format": self._FILES.format, **self._values_to_write(), "files": files}

    @classmethod
    def read(cls: type[A], path: str, url: str, content: Any) -> A:
        """Read what ``write`` wrote to a URL. ``path`` is the user's path, for messages; raises like ``load``."""
        files = cls._FILES
        with reading(path, content, files.format, files.kind):
            present = {name: convert for name, convert in files.optional_values.items() if name in content}
            values = {name: convert(content[name]) for name, convert in {**files.values, **present}.items()}
            kinds = cls._arrays_to_read(content, values)
            arrays = {name: read_array(url, f"{name}.npy", dict(content["files"])) for name in kinds}
            for name, array in arrays.items():
                if array.dtype.kind not in kinds[name]:
                    raise ValueError(f"{name}: dtype {array.dtype}")
        return cls._from_files(path, url, arrays, values)


class ArrayModel(ArrayFiles):
    """A trained model as arrays, usable without Spark and servers; picklable."""

    # The name of the public model whose files these are.
    _MODEL_CLASS: ClassVar[str]

    @property
    def is_light(self) -> bool:
        """Whether the model is small enough to be pickled with each function that uses it."""
        return sum(getattr(self, name).size for name in self._FILES.arrays) <= MAX_PICKLED_VALUES

    def save(self, path: str) -> None:
        """Write the model to a new folder, local or a URL that fsspec knows. The public model can also read it.

        Raises:
            UsageError: the folder exists.
            RecoveryError: the files cannot be written.
        """
        save_without_spark(path, self._MODEL_CLASS, self._params(), self.write)

    def _params(self) -> dict[str, Any]:
        """Return the params of the public model as plain data."""
        return {}
