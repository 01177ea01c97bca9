"""Servers that something else runs: a service manager, a StatefulSet, ``ps2 launch``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ps2.errors import LaunchError, UnavailableError
from ps2.wire.control import ServerControl


class AttachLauncher:
    """Meets each server at a known address; starts and ends nothing."""

    def __init__(
        self, addresses: Sequence[str], server: ServerControl, register: Callable[[int, str, str], None]
    ) -> None:
        """Args:
        addresses: ``host:port`` of each server.
        register: told index, server id and address of each server that answers.
        """
        self._addresses = list(addresses)
        self._server = server
        self._register = register
        self._met: dict[int, str] = {}

    @property
    def servers(self) -> int:
        return len(self._addresses)

    def start(self, index: int, master: str) -> None:
        address = self._addresses[index]
        try:
            self._met[index] = self._server.hello(self._addresses[index])
        except UnavailableError as error:
            raise UnavailableError(f"no server answers at {address}: {error}") from error
        if len(set(self._met.values())) < len(self._met):
            raise LaunchError(f"{address}: this server is named twice in the fleet")
        self._register(index, self._met[index], address)

    def gone(self, index: int) -> str | None:
        """Ask the server; one that answers with another id has been restarted, and holds nothing."""
        found = self._server.hello(self._addresses[index])
        return None if found == self._met[index] else "it was restarted, and what it held is gone"

    def stop(self) -> None:
        """Leave the servers as they are."""
