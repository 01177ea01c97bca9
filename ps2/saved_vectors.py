"""A vector in a folder: NumPy files, one or two a partition, and the manifest that names them, which comes last."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import xxhash

from ps2.checkpoint import FILE_NAME, Fields, SavedFile, file_from_json
from ps2.checkpoint_files import checked, read_row
from ps2.errors import CheckpointCorruptError, CheckpointMissingError, UsageError
from ps2.files import BLOCK_BYTES, read_json, read_npy_header, reported, write_json
from ps2.partition import Int64Array, MatrixSpec, hash_bucket

MANIFEST = "manifest.json"
FORMAT = "ps2.vector.v2"
# One file for all values, "crc32" of them, and no more of its spec than this: ``as_parts`` makes of it what comes now.
FORMAT_V1 = "ps2.vector.v1"
# What is read at once: as many values, with their keys.
BLOCK_VALUES = BLOCK_BYTES // 8

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SavedPart:
    """Columns ``[begin, end)`` of a saved vector; of a sparse one the keys whose hash buckets are in there.

    Attributes:
        count: of its values.
        files: "values", and for a sparse vector "keys" in the same order: .npy, in one dimension.
    """

    begin: int
    end: int
    count: int
    files: Mapping[str, SavedFile]


@dataclass(frozen=True)
class OldFile:
    """A file of the first format: a .npy file, the number of its values, and the checksum of their bytes."""

    name: str
    count: int
    crc32: int


@dataclass(frozen=True)
class SavedVector:
    """What a saved vector is, and the files that it consists of.

    Attributes:
        spec: its dim, dtype, kind and align; of one row.
        count: of its values: dim, or the active keys of a sparse one.
        parts: in the order of their intervals, which cover all columns or buckets.
        old: its files in the first format, instead of parts.
    """

    spec: MatrixSpec
    count: int
    parts: tuple[SavedPart, ...]
    old: Mapping[str, OldFile]

    @property
    def names(self) -> list[str]:
        """Of all its files, the manifest not included."""
        return [file.name for part in self.parts for file in part.files.values()] + [f.name for f in self.old.values()]


@dataclass(frozen=True)
class Window:
    """Some values of a part.

    Attributes:
        start: the column of the first; for a sparse vector its position in the file.
        keys, buckets: of a sparse vector, int64 of the values' shape: the keys, and the hash buckets that they are in.
    """

    start: int
    values: Array
    keys: Int64Array | None = None
    buckets: Int64Array | None = None


def kinds(spec: MatrixSpec) -> tuple[str, ...]:
    """Return the files that a part of such a vector has."""
    return ("keys", "values") if spec.kind == "sparse" else ("values",)


def write_manifest(fs: Any, root: str, spec: MatrixSpec, parts: list[SavedPart]) -> None:
    """Complete a save."""
    content = {
        "format": FORMAT,
        "dim": spec.dim,
        "dtype": spec.dtype,
        "kind": spec.kind,
        "align": spec.align,
        "parts": [asdict(part) for part in sorted(parts, key=lambda part: part.begin)],
    }
    write_json(fs, f"{root}/{MANIFEST}", content)


def find(fs: Any, root: str) -> SavedVector | None:
    """Return what is saved in a folder, None if nothing is; CheckpointCorruptError if the manifest is not ours."""
    path = f"{root}/{MANIFEST}"
    content = read_json(fs, path, FORMAT, FORMAT_V1)
    if content is None:
        return None
    fields = Fields(path, content)
    return _from_json(fields) if content["format"] == FORMAT else _from_v1(fields)


def existing(fs: Any, root: str) -> SavedVector:
    """Return what is saved in a folder; raises CheckpointMissingError if nothing is, else as ``find`` does."""
    found = find(fs, root)
    if found is None:
        raise CheckpointMissingError(f"{root}: there is no {MANIFEST} here, so no complete save of a vector")
    return found


def as_parts(fs: Any, root: str, saved: SavedVector) -> SavedVector:
    """Return a vector in the first format as one in parts: its files are read once, and compared with their checksums.

    Raises:
        CheckpointCorruptError: a file is missing, or is not what was saved.
    """
    if not saved.old:
        return saved
    dtypes = {"keys": np.dtype(np.int64), "values": saved.spec.np_dtype}
    files = {kind: _described(fs, f"{root}/{file.name}", file, dtypes[kind]) for kind, file in saved.old.items()}
    return replace(saved, parts=(SavedPart(0, saved.spec.space, saved.count, files),), old={})


def read_part(fs: Any, root: str, spec: MatrixSpec, part: SavedPart) -> Generator[Window, None, None]:
    """Yield what a part holds, window by window; its files are known to be what was saved only after the last.

    Raises:
        CheckpointCorruptError: a file is missing, is not what was saved, or does not fit the vector.
        RecoveryError: the file system refuses.
    """
    with ExitStack() as files:
        reading = {kind: files.enter_context(checked(fs, root, part.files[kind])) for kind in kinds(spec)}
        values = read_row(reading["values"], spec.np_dtype, part.count, BLOCK_VALUES)
        keys: Iterator[Int64Array | None] = repeat(None)
        if "keys" in reading:
            keys = read_row(reading["keys"], np.dtype(np.int64), part.count, BLOCK_VALUES)
        start = part.begin if spec.kind == "dense" else 0
        for named, some in zip(keys, values, strict=False):
            buckets = None if named is None else _buckets(reading["keys"].path, spec, part, named)
            yield Window(start, some, named, buckets)
            start += some.size


def _buckets(path: str, spec: MatrixSpec, part: SavedPart, keys: Int64Array) -> Int64Array:
    """Return the hash bucket of each key; raise CheckpointCorruptError for one that cannot be in this part."""
    if keys.min() < 0 or keys.max() >= spec.dim:
        raise CheckpointCorruptError(f"{path}: expected keys below {spec.dim}, got {keys.min()}..{keys.max()}")
    buckets = hash_bucket(keys)
    wrong = (buckets < part.begin) | (buckets >= part.end)
    if wrong.any():
        raise CheckpointCorruptError(f"{path}: key {keys[wrong][0]} belongs to another part")
    return buckets


def _from_json(fields: Fields) -> SavedVector:
    spec = _spec(fields, fields.count("align"))
    parts = tuple(_part(spec, part) for part in fields.objects("parts"))
    bounds = [0, *(part.end for part in parts)]
    if (
        [part.begin for part in parts] != bounds[:-1]
        or bounds[-1] != spec.space
        or any(a >= b for a, b in pairwise(bounds))
    ):
        raise fields.wrong("parts", f"intervals that cover [0, {spec.space}), in order")
    return SavedVector(spec, sum(part.count for part in parts), parts, {})


def _part(spec: MatrixSpec, fields: Fields) -> SavedPart:
    begin, end, count = (fields.count(name) for name in ("begin", "end", "count"))
    if spec.kind == "dense" and count != end - begin:
        raise fields.wrong("count", f"{end - begin}, one value a column")
    files = fields.object("files")
    return SavedPart(begin, end, count, {kind: file_from_json(files.object(kind)) for kind in kinds(spec)})


def _from_v1(fields: Fields) -> SavedVector:
    spec = _spec(fields, 1)
    files = fields.object("files")
    old = {kind: _old_file(files.object(kind)) for kind in kinds(spec)}
    count = spec.dim if spec.kind == "dense" else old["keys"].count
    if old["values"].count != count:
        raise CheckpointCorruptError(f"{fields.where}: expected {count} values, got a file of {old['values'].count}")
    return SavedVector(spec, count, (), old)


def _spec(fields: Fields, align: int) -> MatrixSpec:
    try:
        return MatrixSpec(fields.count("dim"), 1, fields.get("dtype", str), fields.get("kind", str), align)
    except UsageError as error:
        raise CheckpointCorruptError(f"{fields.where}: {error}") from error


def _old_file(fields: Fields) -> OldFile:
    file = OldFile(fields.get("name", str), fields.count("count"), fields.count("crc32"))
    if not FILE_NAME.fullmatch(file.name):
        raise fields.wrong("name", "the name of a file in this folder")
    return file


def _described(fs: Any, path: str, old: OldFile, dtype: np.dtype[Any]) -> SavedFile:
    """Compare a file of the first format with its checksum; return what is told of files now."""
    digest, crc32 = xxhash.xxh3_128(), 0
    with reported(path, "reading"):
        try:
            with fs.open(path, "rb") as file:
                header = read_npy_header(path, file)
                file.seek(0)
                digest.update(file.read(header.nbytes))
                nbytes = header.nbytes
                while data := file.read(BLOCK_BYTES):
                    digest.update(data)
                    crc32, nbytes = zlib.crc32(data, crc32), nbytes + len(data)
        except FileNotFoundError as error:
            raise CheckpointCorruptError(f"{path}: named by the manifest, but not there") from error
    expected = header.nbytes + old.count * dtype.itemsize
    if header.dtype != dtype:
        raise CheckpointCorruptError(f"{path}: expected values of {dtype}, got {header.dtype}")
    if (nbytes, crc32) != (expected, old.crc32):
        raise CheckpointCorruptError(
            f"{path}: expected {expected:,} bytes, values with checksum {old.crc32}, got {nbytes:,} with {crc32}"
        )
    return SavedFile(old.name, nbytes, digest.hexdigest())
