"""The driver's messages, as a worker reads them."""

from __future__ import annotations

from typing import Any

from ps2.protocol.plain_data import decode
from ps2.rpc.run_control import Entered, RunControl


class Inbox:
    """The messages up to the one that came with the clock that the worker is in.

    The newest came with it; older ones are asked for when they are read.

    Attributes:
        count: of these messages.
        newest: None if there are none.
    """

    def __init__(self, control: RunControl) -> None:
        self._control = control
        self.count = 0
        self.newest: Any = None
        self._read = 0  # so many has ``take`` returned

    def enter(self, entry: Entered) -> None:
        """Take what came with a clock."""
        if entry.message:
            self.newest = decode(entry.message)
        elif not entry.messages:
            self.newest = None
        self.count = entry.messages

    def begin_again(self) -> None:
        """Let the next ``take`` begin with the first message."""
        self._read = 0

    def take(self) -> list[Any]:
        """Return the messages that have not been taken, the oldest first."""
        missing = self.count - self._read
        taken = [self.newest] if missing == 1 else []
        if missing > 1:
            taken = [decode(message) for message in self._control.messages(self._read, self.count)]
        self._read = self.count
        return taken
