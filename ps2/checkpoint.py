"""What a checkpoint consists of: plain data that servers write, the coordinator puts into a manifest, and both read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from ps2.errors import CheckpointCorruptError, UsageError
from ps2.partition import MatrixSpec, Partition, partitions

FORMAT = "ps2.checkpoint.v1"
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
XXH3 = re.compile(r"[0-9a-f]{32}")
TYPE_NAMES = {
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


@dataclass(frozen=True)
class SavedFile:
    """One file of a checkpoint.

    Attributes:
        name: in the checkpoint's folder.
        nbytes: its size.
        xxh3: XXH3-128 of its bytes, in hex.
    """

    name: str
    nbytes: int
    xxh3: str


@dataclass(frozen=True)
class SavedShard:
    """The files of one shard: "values" (.npy, of the rows in use), for a sparse one also "keys"; and "ids"."""

    matrix: int
    partition: Partition
    files: Mapping[str, SavedFile]


@dataclass(frozen=True)
class LoadMatrix:
    """A matrix that a server is to read: its new partitions of it, out of shards that may have been cut otherwise.

    Attributes:
        spec: as it is to be; rows that the files lack are zeros.
        partitions: those that this server is to hold.
        saved: the spec as it was saved.
        sources: its saved shards that these partitions need; none: it is younger than the checkpoint, all zeros.
        rows: that their files have, one after the other.
        unused: rows that are not in use.
        zeros: rows that are in use and younger than the checkpoint.
    """

    matrix: int
    spec: MatrixSpec
    partitions: tuple[Partition, ...]
    saved: MatrixSpec
    sources: tuple[SavedShard, ...]
    rows: tuple[int, ...]
    unused: tuple[int, ...] = ()
    zeros: tuple[int, ...] = ()


def file_kinds(spec: MatrixSpec) -> tuple[str, ...]:
    """Return the files that a shard of such a matrix has."""
    return ("keys", "values", "ids") if spec.kind == "sparse" else ("values", "ids")


@dataclass(frozen=True)
class SavedMatrix:
    """A matrix as it was at the checkpoint.

    Attributes:
        spec: with the rows that it had.
        bounds: of its partitions.
        born: of each row in use, which use of its number that is.
        names: rows by the names that users gave them.
        fresh: the first row that was never handed out.
        retired: rows that were freed, to be handed out again.
        shards: one for each partition, in their order.
    """

    id: int
    spec: MatrixSpec
    bounds: tuple[int, ...]
    born: Mapping[int, int]
    names: Mapping[str, int]
    fresh: int
    retired: tuple[int, ...]
    shards: tuple[SavedShard, ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows in use: those that the files have, one after the other."""
        return tuple(sorted(self.born))

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for shard in self.shards for file in shard.files.values())


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of; it is complete once this is in its folder.

    Attributes:
        number: of the checkpoint; later ones have greater ones.
        step: first step that it does not hold, if the driver's loop counts steps.
        created_s: Unix time of the cut.
        pause_s: for which requests were held, on the server that held them longest.
        seconds: from the beginning of the cut until all files were written.
        version: of ps2.
    """

    number: int
    step: int | None
    created_s: float
    pause_s: float
    seconds: float
    version: str
    matrices: tuple[SavedMatrix, ...]

    @property
    def nbytes(self) -> int:
        return sum(matrix.nbytes for matrix in self.matrices)

    def files(self) -> list[tuple[SavedMatrix, SavedShard, str, SavedFile]]:
        """Return every file, with its kind, and the shard and the matrix that it is of."""
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
        }

    @classmethod
    def from_json(cls, content: object, path: str) -> Manifest:
        """Read what ``to_json`` has made.

        Args:
            path: where it was found, for errors.

        Raises:
            CheckpointCorruptError: a part of it is missing, of another type or format, or does not fit the others.
        """
        fields = Fields(path, content)
        if (found := fields.get("format", str)) != FORMAT:
            raise CheckpointCorruptError(f"{path}: expected format {FORMAT!r}, got {found!r}")
        return cls(
            number=fields.count("number"),
            step=None if fields.get("step", int, type(None)) is None else fields.count("step"),
            created_s=float(fields.get("created_s", float, int)),
            pause_s=float(fields.get("pause_s", float, int)),
            seconds=float(fields.get("seconds", float, int)),
            version=fields.get("version", str),
            matrices=tuple(_with_shards(matrix) for matrix in fields.objects("matrices")),
        )


class Fields:
    """The fields of a JSON object, checked as they are read."""

    def __init__(self, where: str, content: object) -> None:
        self.where = where
        if not isinstance(content, dict):
            raise CheckpointCorruptError(f"{where}: expected an object, got {_short(content)}")
        self._content = content

    def get(self, name: str, *types: type) -> Any:
        """Return a field of one of these types; true and false are no integers."""
        if name not in self._content:
            raise CheckpointCorruptError(f"{self.where}: {name} is missing")
        value = self._content[name]
        if not isinstance(value, types) or isinstance(value, bool):
            raise self.wrong(name, " or ".join(TYPE_NAMES[type] for type in types))
        return value

    def count(self, name: str) -> int:
        """Return an integer that is not negative."""
        value: int = self.get(name, int)
        if value < 0:
            raise self.wrong(name, "an integer that is not negative")
        return value

    def counts(self, name: str) -> tuple[int, ...]:
        """Return a list of integers that are not negative."""
        values: list[Any] = self.get(name, list)
        if not all(_is_count(value) for value in values):
            raise self.wrong(name, "a list of integers that are not negative")
        return tuple(values)

    def objects(self, name: str) -> list[Fields]:
        values: list[Any] = self.get(name, list)
        return [Fields(f"{self.where}: {name}[{i}]", value) for i, value in enumerate(values)]

    def object(self, name: str) -> Fields:
        return Fields(f"{self.where}: {name}", self.get(name, dict))

    def wrong(self, name: str, expected: str) -> CheckpointCorruptError:
        return CheckpointCorruptError(f"{self.where}: {name}: expected {expected}, got {_short(self._content[name])}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _with_shards(fields: Fields) -> SavedMatrix:
    matrix = _matrix_from_json(fields)
    if [shard.partition for shard in matrix.shards] != list(partitions(matrix.bounds)):
        found = [shard.partition.index for shard in matrix.shards]
        raise CheckpointCorruptError(
            f"{fields.where}: shards: expected one for each of {len(matrix.bounds) - 1} partitions, in order, got "
            f"{_short(found)}"
        )
    return matrix


def matrix_to_json(matrix: SavedMatrix) -> dict[str, Any]:
    """Return a matrix as plain data."""
    return {
        "id": matrix.id,
        "spec": asdict(matrix.spec),
        "bounds": list(matrix.bounds),
        "born": {str(row): generation for row, generation in matrix.born.items()},
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


def matrices_from_json(content: object, where: str) -> tuple[SavedMatrix, ...]:
    """Read a list of what ``matrix_to_json`` has made, files or not; raises CheckpointCorruptError."""
    return tuple(_matrix_from_json(fields) for fields in Fields(where, {"matrices": content}).objects("matrices"))


def _matrix_from_json(fields: Fields) -> SavedMatrix:
    id, spec, bounds = fields.count("id"), _spec(fields.object("spec")), fields.counts("bounds")
    ascending = all(begin < end for begin, end in pairwise(bounds))
    if len(bounds) < 2 or not ascending or (bounds[0], bounds[-1]) != (0, spec.space):
        raise fields.wrong("bounds", f"ascending integers from 0 to {spec.space}")
    born = {}
    for row, generation in fields.get("born", dict).items():
        if not row.isdecimal() or int(row) >= spec.rows or not _is_count(generation):
            raise fields.wrong("born", f"rows below {spec.rows}, with integers that are not negative")
        born[int(row)] = generation
    names = fields.get("names", dict)
    if not all(_is_count(row) and row in born for row in names.values()):
        raise fields.wrong("names", "names of rows in use")
    fresh, retired = fields.count("fresh"), fields.counts("retired")
    if fresh > spec.rows:
        raise fields.wrong("fresh", f"at most {spec.rows}, the number of rows")
    if any(row >= fresh or row in born for row in retired):
        raise fields.wrong("retired", f"rows below {fresh} that are not in use")
    cut = partitions(bounds)
    shards = [_shard(id, spec, cut, shard) for shard in fields.objects("shards")]
    return SavedMatrix(id, spec, bounds, born, names, fresh, retired, tuple(shards))


def _spec(fields: Fields) -> MatrixSpec:
    try:
        return MatrixSpec(
            dim=fields.get("dim", int),
            rows=fields.get("rows", int),
            dtype=fields.get("dtype", str),
            kind=fields.get("kind", str),
            align=fields.get("align", int),
            partitions_per_server=fields.get("partitions_per_server", int),
            wire=fields.get("wire", str, type(None)),
        )
    except UsageError as error:
        raise CheckpointCorruptError(f"{fields.where}: {error}") from error


def _shard(matrix: int, spec: MatrixSpec, cut: Sequence[Partition], fields: Fields) -> SavedShard:
    index = fields.count("partition")
    if index >= len(cut):
        raise fields.wrong("partition", f"one below {len(cut)}")
    files = fields.object("files")
    return SavedShard(matrix, cut[index], {kind: file_from_json(files.object(kind)) for kind in file_kinds(spec)})


def file_from_json(fields: Fields) -> SavedFile:
    """Read a file of a checkpoint, or of a saved vector; raises CheckpointCorruptError."""
    file = SavedFile(fields.get("name", str), fields.count("nbytes"), fields.get("xxh3", str))
    if not FILE_NAME.fullmatch(file.name):
        raise fields.wrong("name", "the name of a file in this folder")
    if not XXH3.fullmatch(file.xxh3):
        raise fields.wrong("xxh3", "32 hexadecimal digits")
    return file
