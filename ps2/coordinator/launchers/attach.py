"""Servers that another program has started, such as a service manager, a StatefulSet or ``ps2 launch``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ps2.coordinator.launcher import Launcher, LaunchRequest
from ps2.errors import LaunchError, PS2Error, StoppedError, UnavailableError
from ps2.rpc.control import Activation, ServerControl, ServerInfo
from ps2.transport.concurrent_calls import call_concurrently

log = logging.getLogger(__name__)

# Time limit of a call that checks whether a server runs.
HELLO_TIMEOUT_S = 1.0


class AttachLauncher(Launcher):
    """Connects to each server at a known address; starts and ends no process."""

    replaces = False

    def __init__(
        self,
        addresses: Sequence[str],
        server: ServerControl,
        register: Callable[[int, str, str], None],
        coordinator: str = "",
    ) -> None:
        """``register`` gets (index, server id, address) of each server; ``coordinator``: the fleet's id."""
        self._addresses = list(addresses)
        self._server = server
        self._register = register
        self._coordinator = coordinator
        self._server_ids: dict[int, str] = {}
        self.leaving = frozenset()

    @classmethod
    def of(cls, request: LaunchRequest) -> AttachLauncher:
        return cls(request.addresses, request.control, request.register, request.fleet)

    @property
    def servers(self) -> int:
        return len(self._addresses)

    def start(self, index: int, master: str) -> None:
        address = self._addresses[index]
        try:
            info = self._server.hello(address)
            if index in self._server_ids:
                # The server is being recovered. It answers nobody before it has all its shards, and forgets those that
                # an earlier, failed recovery has loaded.
                self._server.activate(address, Activation(self._coordinator, afresh=True))
            self._server_ids[index] = info.server_id
        except UnavailableError as error:
            raise UnavailableError(f"no server answers at {address}: {error}") from error
        if len(set(self._server_ids.values())) < len(self._server_ids):
            raise LaunchError(f"{address}: this server is named twice in the fleet")
        self._register(index, self._server_ids[index], address)

    def poll(self) -> dict[int, str | None]:
        """Ask every server for its id. A server with a new id was restarted, and has lost its data."""
        replies = dict(zip(self._server_ids, call_concurrently(self._server_ids, self._hello), strict=True))
        answers = {index: info for index, info in replies.items() if info is not None}
        for info in answers.values():
            if info.coordinator not in ("", self._coordinator):
                raise StoppedError(
                    f"another driver (coordinator {info.coordinator}) has taken over namespace "
                    f"{self._server.namespace!r} of this fleet"
                )
        self.leaving = frozenset(index for index, info in answers.items() if info.leaving)
        return {
            index: None if info.server_id == self._server_ids[index] else "it was restarted, and has lost its data"
            for index, info in answers.items()
        }

    def _hello(self, index: int) -> ServerInfo | None:
        try:
            return self._server.hello(self._addresses[index], self._coordinator, HELLO_TIMEOUT_S)
        except PS2Error as error:  # the master declares a server lost only after a longer silence
            log.debug("server %d: %s", index, error)
            return None

    def stop(self) -> None:
        """Let the servers continue to run."""
