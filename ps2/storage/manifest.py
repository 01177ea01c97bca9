"""The manifest of a checkpoint as plain data. Servers write the files; the process that saves writes the manifest.

A checkpoint contains all matrices of a fleet, or saved rows of one matrix.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from ps2.errors import CheckpointCorruptError, UsageError
from ps2.matrix.key_policy import Initial, KeyPolicy
from ps2.matrix.partition import MatrixSpec, Partition, partitions

TYPE_NAMES = {
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


class Fields:
    """The fields of a JSON object, with checks of their types. ``location``: the file and field, for errors."""

    def __init__(self, location: str, content: object) -> None:
        self.location = location
        if not isinstance(content, dict):
            raise CheckpointCorruptError(f"{location}: expected an object, got {shortened(content)}")
        self._content = content

    def __contains__(self, name: str) -> bool:
        return name in self._content

    def get(self, name: str, *types: type) -> Any:
        """Return a field of one of these types; booleans do not count as integers."""
        if name not in self._content:
            raise CheckpointCorruptError(f"{self.location}: {name} is missing")
        value = self._content[name]
        if not isinstance(value, types) or isinstance(value, bool):
            raise self.error(name, " or ".join(TYPE_NAMES[type] for type in types))
        return value

    def count(self, name: str) -> int:
        """Return a non-negative integer."""
        value: int = self.get(name, int)
        if value < 0:
            raise self.error(name, "a non-negative integer")
        return value

    def counts(self, name: str) -> tuple[int, ...]:
        """Return a list of non-negative integers."""
        values: list[Any] = self.get(name, list)
        if not all(is_count(value) for value in values):
            raise self.error(name, "a list of non-negative integers")
        return tuple(values)

    def objects(self, name: str) -> list[Fields]:
        values: list[Any] = self.get(name, list)
        return [Fields(f"{self.location}: {name}[{i}]", value) for i, value in enumerate(values)]

    def object(self, name: str) -> Fields:
        return Fields(f"{self.location}: {name}", self.get(name, dict))

    def error(self, name: str, expected: str) -> CheckpointCorruptError:
        """Return the error for a field with an unexpected value."""
        value = shortened(self._content[name])
        return CheckpointCorruptError(f"{self.location}: {name}: expected {expected}, got {value}")


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


FORMAT = "ps2.checkpoint.v1"
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
XXH3 = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class SavedFile:
    """One file of a checkpoint; ``xxh3`` is the XXH3-128 of its bytes, in hex."""

    name: str
    nbytes: int
    xxh3: str


@dataclass(frozen=True)
class SavedShard:
    """The files of one shard, by kind.

    "values" is a .npy file of shape (rows in use, columns), or (columns, rows of the matrix) with layout "column". A
    sparse matrix also has "keys", and "life" if its keys are managed. A fleet's checkpoint also has "ids": the ids of
    the applied mutations.
    """

    matrix: int
    partition: Partition
    files: Mapping[str, SavedFile]


@dataclass(frozen=True)
class LoadMatrix:
    """A matrix that a server must load into new partitions, from saved shards with the same or other bounds.

    Attributes:
        spec: the new spec; rows that are not in the files are zeros.
        partitions: the new partitions of this server.
        saved: the spec at the checkpoint.
        sources: the saved shards that overlap the partitions; empty if the matrix was created after the checkpoint.
        rows: the ids of the rows in the files, ascending.
        unused: the ids of rows that are not in use.
        zeros: the ids of rows in use that were allocated after the checkpoint.
    """

    matrix: int
    spec: MatrixSpec
    partitions: tuple[Partition, ...]
    saved: MatrixSpec
    sources: tuple[SavedShard, ...]
    rows: tuple[int, ...]
    unused: tuple[int, ...] = ()
    zeros: tuple[int, ...] = ()


@dataclass(frozen=True)
class SaveMatrix:
    """The rows (ascending ids) and partitions that a server must write; ``stem``: prefix of the file names."""

    matrix: int
    rows: tuple[int, ...]
    partitions: tuple[int, ...]
    url: str
    stem: str


def array_kinds(spec: MatrixSpec) -> tuple[str, ...]:
    """Return the kinds of array files of a shard of a matrix with this spec."""
    managed = ("life",) if spec.key_policy is not None else ()
    return ("keys", *managed, "values") if spec.kind == "sparse" else ("values",)


def file_name(stem: str, matrix: int, partition: Partition, kind: str) -> str:
    """Return the name of a file of a shard; ``stem`` is a prefix that no earlier save has used."""
    return f"{stem}{matrix:x}-{partition.index}-{kind}.{'json' if kind == 'ids' else 'npy'}"


@dataclass(frozen=True)
class SavedMatrix:
    """A matrix as it was at the checkpoint.

    Attributes:
        spec: the spec of the matrix; ``spec.rows`` is the number of rows at the time of the checkpoint.
        bounds: the columns at which the partitions begin, and the end of the last one.
        generations: the generation of each row in use, by row id. A row that is used again after it was freed gets a
            later generation.
        names: the row ids of named vectors, by name.
        fresh: the lowest id of the rows that were never in use.
        retired: the ids of freed rows, which will be used again.
    """

    id: int
    spec: MatrixSpec
    bounds: tuple[int, ...]
    generations: Mapping[int, int]
    names: Mapping[str, int]
    fresh: int
    retired: tuple[int, ...]
    shards: tuple[SavedShard, ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """The ids of the rows in use, ascending; the files contain the rows in this order."""
        return tuple(sorted(self.generations))

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for shard in self.shards for file in shard.files.values())

    def sources(self, needed: Sequence[Partition]) -> tuple[SavedShard, ...]:
        """Return the saved shards that overlap the needed partitions, which may have other bounds."""
        return tuple(
            shard
            for shard in self.shards
            if any(p.begin < shard.partition.end and shard.partition.begin < p.end for p in needed)
        )


@dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint. A checkpoint is complete once its folder holds the manifest.

    Attributes:
        number: the checkpoint's number, which increases from one checkpoint to the next; 0: saved rows of one matrix.
        step: the first training step that the checkpoint does not include; None if the driver counts no steps.
        pause_s: the longest pause of requests on a server, in seconds.
        seconds: the time from the beginning of that pause until all files were written.
        messages: the file with the driver's messages to workers; None if there were no messages.
    """

    number: int
    step: int | None
    created_s: float
    pause_s: float
    seconds: float
    version: str
    matrices: tuple[SavedMatrix, ...]
    messages: SavedFile | None = None

    @property
    def nbytes(self) -> int:
        return sum(matrix.nbytes for matrix in self.matrices) + (self.messages.nbytes if self.messages else 0)

    def files(self) -> list[tuple[SavedMatrix, SavedShard, str, SavedFile]]:
        """Return every file with its matrix, shard and kind."""
        return [
            (matrix, shard, kind, file)
            for matrix in self.matrices
            for shard in matrix.shards
            for kind, file in shard.files.items()
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "number": self.number,
            "step": self.step,
            "created_s": self.created_s,
            "pause_s": self.pause_s,
            "seconds": self.seconds,
            "version": self.version,
            "matrices": [matrix_to_json(matrix) for matrix in self.matrices],
            **({} if self.messages is None else {"messages": asdict(self.messages)}),
        }

    @classmethod
    def from_json(cls, content: object, path: str) -> Manifest:
        """Return the manifest from JSON data of ``to_json``; ``path``: the file's path, for errors.

        Raise CheckpointCorruptError if a field is wrong or contradicts another field.
        """
        fields = Fields(path, content)
        if (format := fields.get("format", str)) != FORMAT:
            raise CheckpointCorruptError(f"{path}: expected format {FORMAT!r}, got {format!r}")
        return cls(
            number=fields.count("number"),
            step=None if fields.get("step", int, type(None)) is None else fields.count("step"),
            created_s=float(fields.get("created_s", float, int)),
            pause_s=float(fields.get("pause_s", float, int)),
            seconds=float(fields.get("seconds", float, int)),
            version=fields.get("version", str),
            matrices=tuple(_complete_matrix(matrix) for matrix in fields.objects("matrices")),
            messages=saved_file(fields.object("messages")) if "messages" in fields else None,
        )


def _complete_matrix(fields: Fields) -> SavedMatrix:
    matrix = _matrix_from_json(fields)
    if [shard.partition for shard in matrix.shards] != list(partitions(matrix.bounds)):
        indexes = [shard.partition.index for shard in matrix.shards]
        raise CheckpointCorruptError(
            f"{fields.location}: shards: expected one for each of {len(matrix.bounds) - 1} partitions, in order, got "
            f"{shortened(indexes)}"
        )
    return matrix


def matrix_to_json(matrix: SavedMatrix) -> dict[str, Any]:
    """Return a matrix as JSON data."""
    return {
        "id": matrix.id,
        "spec": _spec_to_json(matrix.spec),
        "bounds": list(matrix.bounds),
        "born": {str(row): generation for row, generation in matrix.generations.items()},
        "names": dict(matrix.names),
        "fresh": matrix.fresh,
        "retired": list(matrix.retired),
        "shards": [
            {
                "partition": shard.partition.index,
                "files": {kind: asdict(file) for kind, file in shard.files.items()},
            }
            for shard in matrix.shards
        ],
    }


def matrices_from_json(content: object, location: str) -> tuple[SavedMatrix, ...]:
    """Return matrices from JSON data of ``matrix_to_json``, with or without shards; raises CheckpointCorruptError."""
    return tuple(_matrix_from_json(fields) for fields in Fields(location, {"matrices": content}).objects("matrices"))


def _matrix_from_json(fields: Fields) -> SavedMatrix:
    id, spec, bounds = fields.count("id"), _spec_from_json(fields.object("spec")), fields.counts("bounds")
    is_ascending = all(begin < end for begin, end in pairwise(bounds))
    if len(bounds) < 2 or not is_ascending or (bounds[0], bounds[-1]) != (0, spec.space):
        raise fields.error("bounds", f"ascending integers from 0 to {spec.space}")
    generations = {}
    for row, generation in fields.get("born", dict).items():
        if not row.isdecimal() or int(row) >= spec.rows or not is_count(generation):
            raise fields.error("born", f"rows below {spec.rows}, with non-negative integers")
        generations[int(row)] = generation
    names = fields.get("names", dict)
    if not all(is_count(row) and row in generations for row in names.values()):
        raise fields.error("names", "names of rows in use")
    fresh, retired = fields.count("fresh"), fields.counts("retired")
    if fresh > spec.rows:
        raise fields.error("fresh", f"at most {spec.rows}, the number of rows")
    if any(row >= fresh or row in generations for row in retired):
        raise fields.error("retired", f"rows below {fresh} that are not in use")
    shards = tuple(_shard(id, spec, partitions(bounds), shard) for shard in fields.objects("shards"))
    return SavedMatrix(id, spec, bounds, generations, names, fresh, retired, shards)


def _spec_to_json(spec: MatrixSpec) -> dict[str, Any]:
    content = asdict(spec)
    content["life"] = content.pop("key_policy")  # its name in checkpoints
    return content


def _spec_from_json(fields: Fields) -> MatrixSpec:
    names = [field.name for field in dataclasses.fields(MatrixSpec) if field.name != "key_policy"]
    content = {name: fields.get(name, int, str, type(None)) for name in names}
    # Checkpoints of earlier versions, which had no managed keys, lack the field.
    has_policy = "life" in fields and fields.get("life", dict, type(None)) is not None
    try:
        return MatrixSpec(**content, key_policy=_key_policy(fields.object("life")) if has_policy else None)
    except UsageError as error:
        raise CheckpointCorruptError(f"{fields.location}: {error}") from error


def _key_policy(fields: Fields) -> KeyPolicy:
    initial = fields.object("initial")
    return KeyPolicy(**_scalars(fields, KeyPolicy, "initial"), initial=Initial(**_scalars(initial, Initial)))


def _scalars(fields: Fields, cls: type[KeyPolicy | Initial], *without: str) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(cls) if field.name not in without]
    return {name: fields.get(name, int, float, str, type(None)) for name in names}


def _shard(matrix: int, spec: MatrixSpec, all_partitions: Sequence[Partition], fields: Fields) -> SavedShard:
    index = fields.count("partition")
    if index >= len(all_partitions):
        raise fields.error("partition", f"an index below {len(all_partitions)}")
    files = fields.object("files")
    kinds = (*array_kinds(spec), *(["ids"] if "ids" in files else []))
    return SavedShard(matrix, all_partitions[index], {kind: saved_file(files.object(kind)) for kind in kinds})


def saved_file(fields: Fields) -> SavedFile:
    """Read a file's name, size and checksum; raises CheckpointCorruptError."""
    file = SavedFile(fields.get("name", str), fields.count("nbytes"), fields.get("xxh3", str))
    if not FILE_NAME.fullmatch(file.name):
        raise fields.error("name", "the name of a file in this folder")
    if not XXH3.fullmatch(file.xxh3):
        raise fields.error("xxh3", "32 hexadecimal digits")
    return file
