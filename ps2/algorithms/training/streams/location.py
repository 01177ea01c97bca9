"""Files beside Spark's checkpoint: which model learns from the stream, its snapshots, and what its columns held."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass
from typing import Any

from ps2.algorithms.training.streams.spark_checkpoint import SparkCheckpoint
from ps2.algorithms.training.streams.state import HeldColumns
from ps2.errors import UsageError
from ps2.storage.files import read_json, resolve_url, write_json

FORMAT = "ps2-stream-1"
HELD_FORMAT = "ps2-stream-columns-2"
FOLDER, FILE, HELD_FILE = "ps2", "stream.json", "columns.json"


@dataclass(frozen=True)
class StreamRecord:
    """Which model learns from a stream.

    Attributes:
        stream: name of the stream; the vector of its position is ``stream-NAME``.
        model: name on the fleet of the model that learns from the stream.
        kind: kind of the model, such as "logistic".
        settings: settings of the model; an estimator that goes on must have the same.
        columns: type of each column of the stream, by name.
        snapshots: folder of the fleet's snapshots.
    """

    stream: str
    model: str
    kind: str
    settings: dict[str, Any]
    columns: dict[str, str]
    snapshots: str


def read_record(location: str) -> StreamRecord | None:
    """Return the record of a checkpointLocation; None if it has none. CheckpointCorruptError: the file is damaged."""
    fs, root = resolve_url(location, "checkpointLocation")
    content = read_json(fs, f"{root}/{FOLDER}/{FILE}", FORMAT)
    if content is None:
        return None
    return StreamRecord(**{key: value for key, value in content.items() if key != "format"})


def write_record(location: str, record: StreamRecord) -> None:
    """Write the record of a checkpointLocation."""
    fs, root = resolve_url(location, "checkpointLocation")
    fs.makedirs(f"{root}/{FOLDER}", exist_ok=True)
    write_json(fs, f"{root}/{FOLDER}/{FILE}", {"format": FORMAT, **asdict(record)})


def read_held(location: str) -> HeldColumns:
    """Return how many rows of the stream had a value, by column, when the last snapshot was made."""
    fs, root = resolve_url(location, "checkpointLocation")
    content = read_json(fs, f"{root}/{FOLDER}/{HELD_FILE}", HELD_FORMAT)
    return HeldColumns() if content is None else HeldColumns(content["rows"], content["held"], content["batch"])


def write_held(location: str, held: HeldColumns) -> None:
    """Write the counts for a later driver, so that its first batch is compared with the rows before it."""
    fs, root = resolve_url(location, "checkpointLocation")
    content = {"format": HELD_FORMAT, "rows": held.rows, "held": dict(held.held), "batch": held.batch}
    write_json(fs, f"{root}/{FOLDER}/{HELD_FILE}", content)


def snapshots_in(location: str) -> str:
    """Return the folder of the snapshots below a checkpointLocation."""
    return f"{location.rstrip('/')}/{FOLDER}/snapshots"


def claimed(checkpoint: SparkCheckpoint, wanted: StreamRecord) -> StreamRecord:
    """Claim a checkpointLocation for a model: return its record, and write it if the location is new.

    Raise UsageError if the location belongs to another query, another model, or other columns.
    """
    location = checkpoint.location
    record = read_record(location)
    if record is None:
        if checkpoint.exists():
            raise UsageError(
                f"checkpointLocation {location}: expected a new folder, or one of this model; it is of a query that "
                "fitStream has not started"
            )
        new = StreamRecord(**{**asdict(wanted), "stream": uuid.uuid4().hex[:12]})
        write_record(location, new)
        return new
    if record.model != wanted.model:
        raise UsageError(
            f"checkpointLocation {location}: it belongs to model {record.model}, got model {wanted.model}: each model "
            "and stream has a location of its own; without model= the stream goes on with the model that it had"
        )
    check_same(f"checkpointLocation {location}: kind of model", record.kind, wanted.kind)
    for name in sorted({*record.settings, *wanted.settings}):
        check_same(f"checkpointLocation {location}: {name}", record.settings.get(name), wanted.settings.get(name))
    for name in sorted(record.columns):
        check_same(f"checkpointLocation {location}: column {name!r}", record.columns[name], wanted.columns.get(name))
    return record


def check_same(what: str, expected: Any, got: Any) -> None:
    """Raise UsageError unless a setting is as it was when the stream began; of dicts and lists, names what differs."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for name in sorted({*expected, *got}):
            check_same(f"{what}: {name}", expected.get(name), got.get(name))
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for number, (was, given) in enumerate(zip(expected, got, strict=True)):
            check_same(f"{what} {number}", was, given)
    elif expected != got:
        raise UsageError(f"{what}: expected {expected!r:.200}, as when the stream began, got {got!r:.200}")
