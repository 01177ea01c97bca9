"""``BatchTask``, a task's part of a batch: read rows, predict them, add the predictions to the tally, and learn."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from ps2.algorithms.training.streams.labelled_rows import NEVER, LabelledReader, LabelledRows
from ps2.algorithms.training.streams.progressive import tally_of
from ps2.algorithms.training.streams.state import StreamState
from ps2.array_types import Float64s
from ps2.client.embedding_table import EmbeddingTable
from ps2.client.sessions import flush
from ps2.errors import ConfigError, InputError, OutOfRangeError
from ps2.matrix.key_policy import KeyPolicy

SCHEMA = "report string"


class LearningProgram(Protocol):
    """A family's program for the tasks, with handles to the model; picklable."""

    def learn(self, rows: LabelledRows) -> Float64s:
        """Predict rows, then learn from them; return the margins (logits) before learning, float64 of shape (n,)."""

    def advance(self, now_s: float) -> None:
        """Advance the time for the expiry of keys. The driver calls this after a batch, with a row's largest time."""


@dataclass
class TaskReport:
    """The report of a task to the driver.

    Attributes:
        late: the number of late rows, which the task skipped.
        newest_s: the largest time of a row, in seconds; ``NEVER``: no row had a time.
        value_counts: the number of rows in which a column is not null, by the column's name.
        seconds: the durations of the task's parts, by name.
        fault: the message of the error that faulty rows caused; "": no error.
    """

    rows: int = 0
    late: int = 0
    newest_s: float = NEVER
    value_counts: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"wait": 0.0, "read": 0.0, "learn": 0.0})
    fault: str = ""


@dataclass(frozen=True)
class BatchTask:
    """The function of a batch's tasks, for ``mapInArrow``.

    Attributes:
        state: the stream's vector, to which the task adds its tally.
        rows: the number of rows in a minibatch.
        min_time_s: rows with an earlier time are late.
    """

    program: LearningProgram
    reader: LabelledReader
    state: StreamState
    rows: int
    min_time_s: float = NEVER

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        report = TaskReport()
        try:
            self._learn(batches, report)
        except (InputError, OutOfRangeError) as error:
            # Reported, not raised: Spark would retry the task, which would fail again because of the same rows.
            report.fault = str(error)
        flush()
        yield pa.record_batch([pa.array([json.dumps(asdict(report))])], names=["report"])

    def _learn(self, batches: Iterator[pa.RecordBatch], report: TaskReport) -> None:
        seconds, began_s, num_before = report.seconds, time.perf_counter(), 0
        for batch in in_chunks(batches, self.rows):
            received_s = time.perf_counter()
            rows = self.reader.read(batch, num_before, self.min_time_s)
            read_s = time.perf_counter()
            if len(rows.labels):
                margins = self.program.learn(rows)
                self.state.add(tally_of(margins, rows.labels, rows.weights), rows.late)
            elif rows.late:
                self.state.add(None, rows.late)
            learned_s = time.perf_counter()
            seconds["wait"] += received_s - began_s
            seconds["read"] += read_s - received_s
            seconds["learn"] += learned_s - read_s
            num_before, began_s = num_before + batch.num_rows, learned_s
            report.rows += len(rows.labels)
            report.late += rows.late
            for name, count in rows.value_counts.items():
                report.value_counts[name] = report.value_counts.get(name, 0) + count
            report.newest_s = max(report.newest_s, rows.newest_s)


def in_chunks(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in order, in batches of ``rows`` rows; the last batch can have fewer."""
    slices: list[Any] = []
    count = 0
    for batch in batches:
        while count + batch.num_rows >= rows:
            missing = rows - count
            slices.append(batch.slice(0, missing))
            yield _joined(slices)
            slices, count, batch = [], 0, batch.slice(missing)
        if batch.num_rows:
            slices.append(batch)
            count += batch.num_rows
    if count:
        yield _joined(slices)


def _joined(batches: list[Any]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def advance_keys(table: EmbeddingTable, now_s: float) -> None:
    """Advance a table's time to the time of the newest row, in seconds, and let old keys expire.

    This does nothing unless the table's policy has ``clock="event"``: its keys expire by the times of rows.
    """
    policy = table.matrix.keyPolicy
    if policy is None or policy.clock != "event":
        return
    # The keys of the batch get the time of its newest row, even after a long gap. The table's time may already be later
    # because of another training; it never decreases.
    table.advance(max(now_s, table.keyStatus().nowS), touched=True)
    if policy.expire_after_s is not None:
        table.expire()


def check_clock(table: EmbeddingTable, time: str | None) -> None:
    """Raise ConfigError unless ``time``, the column of rows' times, is set exactly if a table's keys expire by it."""
    policy = table.matrix.keyPolicy
    if policy is None or policy == KeyPolicy(initial=policy.initial, clock=policy.clock):
        return  # keys get their slots at once, and never lose them
    if policy.clock == "event" and time is None:
        raise ConfigError("timeCol: expected a column, as the model's keys expire by the times of rows, got none")
    if policy.clock == "wall" and time is not None:
        raise ConfigError(f"timeCol: expected none, as the model's keys expire by the driver's clock, got {time!r}")
