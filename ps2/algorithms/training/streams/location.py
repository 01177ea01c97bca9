"""The folder of a stream beside Spark's checkpoint: which model learns from it, and where the snapshots are."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass
from typing import Any

from ps2.algorithms.training.streams.spark_checkpoint import SparkCheckpoint
from ps2.errors import UsageError
from ps2.storage.files import place, read_json, write_json

FORMAT = "ps2-stream-1"
FOLDER, FILE = "ps2", "stream.json"


@dataclass(frozen=True)
class StreamRecord:
    """What the file says.

    Attributes:
        stream: names the stream, and its position on the servers.
        model: names the model that learns from it.
        kind: of model, such as "logistic".
        settings: of the model, which another driver's estimator must have.
        columns: names and types of the stream's columns.
        snapshots: folder of the fleet's snapshots.
    """

    stream: str
    model: str
    kind: str
    settings: dict[str, Any]
    columns: dict[str, str]
    snapshots: str


def read_record(location: str) -> StreamRecord | None:
    """Return the record of a checkpointLocation; None if there is none.

    Raises:
        CheckpointCorruptError: the file has another form.
    """
    fs, root = place(location, "checkpointLocation")
    content = read_json(fs, f"{root}/{FOLDER}/{FILE}", FORMAT)
    if content is None:
        return None
    return StreamRecord(**{key: value for key, value in content.items() if key != "format"})


def write_record(location: str, record: StreamRecord) -> None:
    fs, root = place(location, "checkpointLocation")
    fs.makedirs(f"{root}/{FOLDER}", exist_ok=True)
    write_json(fs, f"{root}/{FOLDER}/{FILE}", {"format": FORMAT, **asdict(record)})


def snapshots_in(location: str) -> str:
    """Return the folder of snapshots of a checkpointLocation."""
    return f"{location.rstrip('/')}/{FOLDER}/snapshots"


def claimed(checkpoint: SparkCheckpoint, wanted: StreamRecord) -> StreamRecord:
    """Return the record of a checkpointLocation, for a model; write it if the location is new.

    Args:
        wanted: what the record shall say; its stream is ignored.

    Raises:
        UsageError: the location belongs to another query, another model, or other columns; names both.
    """
    location = checkpoint.location
    found = read_record(location)
    if found is None:
        if checkpoint.exists():
            raise UsageError(
                f"checkpointLocation {location}: expected a new folder, or one of this model; it is of a query that "
                "fitStream has not started"
            )
        new = StreamRecord(**{**asdict(wanted), "stream": uuid.uuid4().hex[:12]})
        write_record(location, new)
        return new
    if found.model != wanted.model:
        raise UsageError(
            f"checkpointLocation {location}: it belongs to model {found.model}, got model {wanted.model}: each model "
            "and stream has a location of its own; without model= the stream goes on with the model that it had"
        )
    check_same(f"checkpointLocation {location}: kind of model", found.kind, wanted.kind)
    for name in sorted({*found.settings, *wanted.settings}):
        check_same(f"checkpointLocation {location}: {name}", found.settings.get(name), wanted.settings.get(name))
    for name in sorted(found.columns):
        check_same(f"checkpointLocation {location}: column {name!r}", found.columns[name], wanted.columns.get(name))
    return found


def check_same(what: str, expected: Any, got: Any) -> None:
    """Raise UsageError unless a setting is as it was when the stream began."""
    if expected != got:
        raise UsageError(f"{what}: expected {expected!r}, as when the stream began, got {got!r}")
