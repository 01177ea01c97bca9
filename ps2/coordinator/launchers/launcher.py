"""What the coordinator needs of whatever runs the servers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Launcher(Protocol):
    """Starts, watches and ends the servers of one fleet, by index."""

    @property
    def servers(self) -> int:
        """How many servers the fleet has."""
        ...

    @property
    def replaces(self) -> bool:
        """Whether it can end a server that hangs, and start another."""
        ...

    def start(self, index: int, master: str) -> None:
        """Start one server, told to register with the master, in place of any before; return without waiting for it.

        Raises:
            LaunchError: it cannot be started.
        """
        ...

    def look(self) -> dict[int, str | None]:
        """Return by index why servers' processes have ended, and None for those that were found alive by asking."""
        ...

    @property
    def leaving(self) -> Collection[int]:
        """Servers that were found to be told to end, by somebody else."""
        ...

    def status_text(self) -> str:
        """Say what is known of servers that keep one waiting; "" if that is nothing."""
        ...

    def stop(self) -> None:
        """End what was started, and leave nothing behind."""
        ...
