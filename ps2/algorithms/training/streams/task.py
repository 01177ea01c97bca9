"""``BatchTask``, a task's part of a batch: it reads rows, predicts them, measures the predictions, and learns."""

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
    """A family's program for the tasks; picklable with its handles to the model."""

    def learn(self, rows: LabelledRows) -> Float64s:
        """Predict rows, then learn from them; return the margins (logits) before learning, float64 of shape (n,)."""

    def advance(self, now_s: float) -> None:
        """Advance the time of the model's keys. The driver calls this after a batch, with the largest time of a row."""


@dataclass
class TaskReport:
    """The report of a task to the driver.

    Attributes:
        rows: the number of rows that the task learned from.
        late: the number of rows that it left out because they came too late.
        newest_s: the largest time of a row, in seconds; minus infinity: no row had a time.
        held: the number of rows with a value in each column.
        seconds: the durations of the task's parts, by name.
        fault: the message of the error that rows of the task caused; "": there was none.
    """

    rows: int = 0
    late: int = 0
    newest_s: float = NEVER
    held: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: {"wait": 0.0, "read": 0.0, "learn": 0.0})
    fault: str = ""


@dataclass(frozen=True)
class BatchTask:
    """The function of a batch's tasks, for ``mapInArrow``.

    Attributes:
        program: the family's program.
        reader: reads the rows.
        state: takes the measures of the predictions.
        rows: the number of rows to learn from at once.
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
            # Another attempt of the task would fail as well: a value of its rows, or a gradient, is too large.
            report.fault = str(error)
        flush()
        yield pa.record_batch([pa.array([json.dumps(asdict(report))])], names=["report"])

    def _learn(self, batches: Iterator[pa.RecordBatch], report: TaskReport) -> None:
        seconds, began_s, num_before = report.seconds, time.perf_counter(), 0
        for batch in in_chunks(batches, self.rows):
            got_s = time.perf_counter()
            rows = self.reader.read(batch, num_before, self.min_time_s)
            read_s = time.perf_counter()
            if len(rows.labels):
                margins = self.program.learn(rows)
                self.state.add(tally_of(margins, rows.labels, rows.weights), rows.late)
            elif rows.late:
                self.state.add(None, rows.late)
            learned_s = time.perf_counter()
            seconds["wait"] += got_s - began_s
            seconds["read"] += read_s - got_s
            seconds["learn"] += learned_s - read_s
            num_before, began_s = num_before + batch.num_rows, learned_s
            report.rows += len(rows.labels)
            report.late += rows.late
            for name, count in rows.held.items():
                report.held[name] = report.held.get(name, 0) + count
            report.newest_s = max(report.newest_s, rows.newest_s)


def in_chunks(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in order, in batches of ``rows`` rows; the last one can have fewer."""
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
    """Advance the time of a table's keys to the time of the newest row, in seconds, and let old keys expire.

    Nothing changes unless the keys expire by the times of rows, as the table's policy says (``clock="event"``).
    """
    policy = table.matrix.keyPolicy
    if policy is None or policy.clock != "event":
        return
    # The keys of the batch get the time of its newest row, even after a long time without rows. The rows of another
    # training can be newer, and time does not go back.
    table.advance(max(now_s, table.keyStatus().nowS), touched=True)
    if policy.expire_after_s is not None:
        table.expire()


def check_clock(table: EmbeddingTable, time: str | None) -> None:
    """Raise ConfigError unless rows have times (a column ``time``) exactly if a table's keys expire by them."""
    policy = table.matrix.keyPolicy
    if policy is None or policy == KeyPolicy(initial=policy.initial, clock=policy.clock):
        return  # keys get their slots at once, and never lose them
    if policy.clock == "event" and time is None:
        raise ConfigError("timeCol: expected a column, as the model's keys go by the times of rows, got none")
    if policy.clock == "wall" and time is not None:
        raise ConfigError(f"timeCol: expected none, as the model's keys go by the driver's clock, got {time!r}")
