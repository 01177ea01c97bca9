"""PS2's files in the folder of a stream's Spark checkpoint: a record of the model, and counts of columns' values."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, replace
from typing import Any

from ps2.algorithms.training.streams.spark_checkpoint import SparkCheckpoint
from ps2.algorithms.training.streams.state import ValueCounts
from ps2.errors import UsageError
from ps2.storage.files import read_json, resolve_url, write_json

# The formats, with their versions, and the names of the files of the record and of the counts in FOLDER.
RECORD_FORMAT, COUNTS_FORMAT = "ps2-stream-1", "ps2-stream-columns-2"
FOLDER, RECORD_FILE, COUNTS_FILE = "ps2", "stream.json", "columns.json"


@dataclass(frozen=True)
class StreamRecord:
    """A record of the model that learns from a stream.

    Attributes:
        stream: the name of the stream; the name of its ``StreamState`` on the fleet is "stream-" and this name.
        kind: the kind of the model, such as "logistic".
        settings: the settings of the model; an estimator that resumes the stream must have equal settings.
        columns: the type of each column of the stream, by name.
    """

    stream: str
    model: str
    kind: str
    settings: dict[str, Any]
    columns: dict[str, str]
    snapshots: str


def read_record(location: str) -> StreamRecord | None:
    """Return the record in a checkpointLocation; None: there is no record. CheckpointCorruptError: it is damaged."""
    fs, root = resolve_url(location, "checkpointLocation")
    content = read_json(fs, f"{root}/{FOLDER}/{RECORD_FILE}", RECORD_FORMAT)
    if content is None:
        return None
    return StreamRecord(**{key: value for key, value in content.items() if key != "format"})


def read_counts(location: str) -> ValueCounts:
    """Return the counts of values in the columns of the stream at the last snapshot."""
    fs, root = resolve_url(location, "checkpointLocation")
    content = read_json(fs, f"{root}/{FOLDER}/{COUNTS_FILE}", COUNTS_FORMAT)
    return ValueCounts() if content is None else ValueCounts(content["rows"], content["held"], content["batch"])


def write_counts(location: str, counts: ValueCounts) -> None:
    """Write the counts for a later driver, which compares its first batch with earlier rows (``ValueCounts.check``)."""
    fs, root = resolve_url(location, "checkpointLocation")
    content = {"format": COUNTS_FORMAT, "rows": counts.rows, "held": dict(counts.counts), "batch": counts.batch}
    write_json(fs, f"{root}/{FOLDER}/{COUNTS_FILE}", content)


def claim_location(checkpoint: SparkCheckpoint, expected: StreamRecord) -> StreamRecord:
    """Return the record of a checkpointLocation; if the location is new, write the expected record with a new name.

    Raise UsageError if the location belongs to another query or another model, or has other columns.
    """
    location = checkpoint.location
    record = read_record(location)
    if record is None:
        if checkpoint.exists():
            raise UsageError(
                f"checkpointLocation {location}: expected a new folder, or one of this model; it is of a query that "
                "fitStream has not started"
            )
        new = replace(expected, stream=uuid.uuid4().hex[:12])
        fs, root = resolve_url(location, "checkpointLocation")
        fs.makedirs(f"{root}/{FOLDER}", exist_ok=True)
        write_json(fs, f"{root}/{FOLDER}/{RECORD_FILE}", {"format": RECORD_FORMAT, **asdict(new)})
        return new
    if record.model != expected.model:
        raise UsageError(
            f"checkpointLocation {location}: it belongs to model {record.model}, got model {expected.model}: each "
            "model and stream needs its own location; without model= the stream continues with its model"
        )
    check_same(f"checkpointLocation {location}: kind of model", record.kind, expected.kind)
    for name in sorted({*record.settings, *expected.settings}):
        check_same(f"checkpointLocation {location}: {name}", record.settings.get(name), expected.settings.get(name))
    for name in sorted(record.columns):
        check_same(f"checkpointLocation {location}: column {name!r}", record.columns[name], expected.columns.get(name))
    return record


def check_same(setting: str, expected: Any, got: Any) -> None:
    """Raise UsageError if a setting has changed since the stream began; for a dict or list, name the changed item."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for name in sorted({*expected, *got}):
            check_same(f"{setting}: {name}", expected.get(name), got.get(name))
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for index, pair in enumerate(zip(expected, got, strict=True)):
            check_same(f"{setting} {index}", *pair)
    elif expected != got:
        raise UsageError(f"{setting}: expected {expected!r:.200}, as when the stream began, got {got!r:.200}")
