"""A worker's view of the driver's messages."""

from __future__ import annotations

from typing import Any

from ps2.protocol.plain_data import decode
from ps2.rpc.run_control import Entered, RunControl


class Inbox:
    """The messages up to the worker's clock. The newest came with the clock; older ones are fetched when they are read.

    Attributes:
        count: of these messages.
        newest: None if there are none.
    """

    def __init__(self, control: RunControl) -> None:
        self._control = control
        self.count = 0
        self.newest: Any = None
        self._read = 0  # how many ``take`` has returned

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
