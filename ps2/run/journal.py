"""The journal of a run: the messages that ``onClock`` has returned since the first clock."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace

from ps2.errors import LimitError
from ps2.protocol.journal_file import PendingReports, decode_journal, encode_journal

# The maximum size of all messages of a run together. The driver keeps them, and each checkpoint contains them.
LIMIT_BYTES = 1 << 30


@dataclass(frozen=True)
class Stopped:
    """``onClock`` has returned STOP for ``clock``: the run ends before the clock ``end``."""

    clock: int
    end: int


@dataclass(frozen=True, eq=False)
class Journal:
    """The driver's messages to a run's workers. Immutable: adding a message returns another journal.

    Attributes:
        count: the number of messages.
        nbytes: the size of all messages.
        stopped: the clock of the first STOP; None until ``onClock`` has returned STOP.
        pending: in a journal that was read from a checkpoint, the reports that ``onClock`` had not received, if any.
    """

    count: int = 0
    nbytes: int = 0
    stopped: Stopped | None = None
    pending: PendingReports | None = None
    # Pairs (clock, message). Later journals share the list; the first ``count`` entries belong to this journal.
    _entries: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    def newest(self) -> bytes:
        """The newest message; empty if there is none."""
        return self._entries[self.count - 1][1] if self.count else b""

    def with_message(self, clock: int, message: bytes) -> Journal:
        """Add the message that ``onClock`` returned for a clock."""
        nbytes = self.nbytes + len(message)
        if nbytes > LIMIT_BYTES:
            raise LimitError(
                f"onClock: clock {clock}: expected at most {LIMIT_BYTES:,} bytes in all messages of the run, got "
                f"{nbytes:,}: put large data into vectors"
            )
        entries = self._entries if len(self._entries) == self.count else self._entries[: self.count]
        entries.append((clock, message))
        return Journal(self.count + 1, nbytes, self.stopped, _entries=entries)

    def with_stop(self, clock: int, end: int) -> Journal:
        """Record STOP, unless an earlier STOP is recorded."""
        return self if self.stopped is not None else replace(self, stopped=Stopped(clock, end))

    def without_stop(self) -> Journal:
        return replace(self, stopped=None)

    def messages(self, begin: int = 0, end: int = sys.maxsize, limit_bytes: int = LIMIT_BYTES) -> list[bytes]:
        """Return messages begin, begin + 1, ... below ``end`` while they fit the limit, at least one of them."""
        nbytes = 0
        fitting: list[bytes] = []
        for _, message in self._entries[begin : min(end, self.count)]:
            nbytes += len(message)
            if fitting and nbytes > limit_bytes:
                break
            fitting.append(message)
        return fitting

    def before(self, clock: int) -> Journal:
        """Return a journal with the messages of clocks below ``clock``, without pending reports."""
        entries = [
            (entry_clock, message) for entry_clock, message in self._entries[: self.count] if entry_clock < clock
        ]
        stopped = self.stopped if self.stopped is not None and self.stopped.clock < clock else None
        return Journal(len(entries), sum(len(message) for _, message in entries), stopped, _entries=entries)

    def to_bytes(self) -> bytes:
        """Encode the journal for a checkpoint; an empty journal becomes b""."""
        stopped = None if self.stopped is None else (self.stopped.clock, self.stopped.end)
        return encode_journal(self._entries[: self.count], stopped, self.pending)

    @staticmethod
    def from_bytes(encoded: bytes, file: str) -> Journal:
        """Decode the result of ``to_bytes``. ``file`` is the file's name for errors."""
        entries, stopped, pending = decode_journal(encoded, file)
        nbytes = sum(len(message) for _, message in entries)
        return Journal(len(entries), nbytes, None if stopped is None else Stopped(*stopped), pending, entries)
