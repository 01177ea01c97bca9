"""The messages of a run in a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from ps2.errors import CheckpointCorruptError
from ps2.protocol.pb import run_pb2 as pb


def encode_journal(entries: Sequence[tuple[int, bytes]], stopped: tuple[int, int] | None) -> bytes:
    """Encode messages as (clock, plain data), and the clock and the end of STOP. Without any, the result is empty."""
    made = pb.Journal(entries=[pb.Journal.Entry(clock=clock, message=message) for clock, message in entries])
    if stopped is not None:
        made.stopped, made.end = stopped
    return made.SerializeToString()


def decode_journal(encoded: bytes, where: str) -> tuple[list[tuple[int, bytes]], tuple[int, int] | None]:
    """Decode what ``encode_journal`` returned.

    Args:
        where: where the bytes were found, for errors.

    Raises:
        CheckpointCorruptError: the bytes are no journal.
    """
    try:
        read = pb.Journal.FromString(encoded)
    except DecodeError as error:
        raise CheckpointCorruptError(f"{where}: expected the messages of a run: {error}") from error
    stopped = (read.stopped, read.end) if read.HasField("stopped") else None
    return [(entry.clock, entry.message) for entry in read.entries], stopped
