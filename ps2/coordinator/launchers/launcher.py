"""What the coordinator needs of whatever runs the servers."""

from __future__ import annotations

from typing import Protocol


class Launcher(Protocol):
    """Starts, watches and ends the servers of one fleet, by index."""

    @property
    def servers(self) -> int:
        """How many servers the fleet has."""
        ...

    def start(self, index: int, master: str) -> None:
        """Start one server, told to register with the master; return without waiting for it.

        Raises:
            LaunchError: it cannot be started.
        """
        ...

    def gone(self, index: int) -> str | None:
        """Return why a server's process has ended, or None while it runs, as far as one knows."""
        ...

    def stop(self) -> None:
        """End what was started, and leave nothing behind."""
        ...
