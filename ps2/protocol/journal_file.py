"""Encodes, for a checkpoint, a run's messages and the reports that ``onClock`` has not received yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from ps2.errors import CheckpointCorruptError
from ps2.protocol.pb import run_pb2 as pb


@dataclass(frozen=True)
class PendingReports:
    """The reports of finished clocks for which ``onClock`` had not been called yet.

    Attributes:
        called: ``onClock`` had returned for all clocks below this number.
        finished: all workers had finished all clocks below this number.
        reports: (rank, clock, merge, encoded plain data) of each report; the reports of one worker are in order.
    """

    called: int
    finished: int
    reports: tuple[tuple[int, int, str, bytes], ...] = ()


def encode_journal(
    entries: Sequence[tuple[int, bytes]], stopped: tuple[int, int] | None, pending: PendingReports | None = None
) -> bytes:
    """Encode a run's messages, each as (clock, plain data), and its pending reports. b"" if there are none.

    ``stopped``: the clock in which STOP was sent, and the clock at which the workers end; None: no STOP.
    """
    journal = pb.Journal(entries=[pb.Journal.Entry(clock=clock, message=message) for clock, message in entries])
    if stopped is not None:
        journal.stopped, journal.end = stopped
    if pending is not None:
        journal.called, journal.finished = pending.called, pending.finished
        for rank, clock, merge, value in pending.reports:
            journal.pending.add(rank=rank, report=pb.Report(clock=clock, merge=merge, value=value))
    return journal.SerializeToString()


def decode_journal(
    encoded: bytes, where: str
) -> tuple[list[tuple[int, bytes]], tuple[int, int] | None, PendingReports | None]:
    """Return the arguments of ``encode_journal``. ``where``: the file's name for CheckpointCorruptError."""
    try:
        read = pb.Journal.FromString(encoded)
    except DecodeError as error:
        raise CheckpointCorruptError(f"{where}: expected the messages of a run: {error}") from error
    stopped = (read.stopped, read.end) if read.HasField("stopped") else None
    reports = tuple((item.rank, item.report.clock, item.report.merge, item.report.value) for item in read.pending)
    pending = PendingReports(read.called, read.finished, reports) if read.HasField("called") else None
    return [(entry.clock, entry.message) for entry in read.entries], stopped, pending
