"""Drains servers that must end. A server is released when the fleet no longer needs its data."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

from ps2.coordinator.checkpoints import Checkpoints, Newest
from ps2.coordinator.fleet_control import FleetControl
from ps2.coordinator.recovery import Policy
from ps2.coordinator.steps import Steps
from ps2.errors import PS2Error

log = logging.getLogger(__name__)

# Pause before a failed checkpoint is tried again. Meanwhile the leaving servers keep running, up to their own limit.
RETRY_S = 5.0


class DrainController:
    """Drains servers that are about to end. One thread calls ``update`` repeatedly.

    A server with up-to-date copies is released at once. Otherwise the fleet makes a checkpoint, and the leaving servers
    refuse all later requests, so the checkpoint holds all changes for their successors. Without copies and without a
    folder for checkpoints, a server is released at once, and its data are lost.
    """

    def __init__(self, fleet: FleetControl, checkpoints: Checkpoints, policy: Policy, steps: Steps) -> None:
        self._master = fleet.master
        self._servers = fleet.control
        self._checkpoints = checkpoints
        self._policy = policy
        self._steps = steps
        self._released: set[str] = set()  # ids of processes
        self._thread: threading.Thread | None = None
        self._next_s = 0.0
        self._handed: Mapping[int, Newest] = {}  # the checkpoint that each drained server has ended with

    def update(self, leaving: Collection[int]) -> None:
        """Begin to drain the leaving servers, and return at once."""
        members = self._master.registry.members()
        going = {index: members[index] for index in leaving if members[index][0] not in self._released}
        if not going or time.monotonic() < self._next_s or (self._thread is not None and self._thread.is_alive()):
            return
        self._next_s = time.monotonic() + RETRY_S
        # A checkpoint may take minutes, and the supervisor must not wait.
        self._thread = threading.Thread(target=self._drain, args=(going,), name="ps2-drain", daemon=True)
        self._thread.start()

    def handed_over(self, indices: Collection[int]) -> Newest | None:
        """Return the checkpoint by which all these servers handed over their data; None if they have no common one."""
        first, *others = (self._handed.get(index) for index in indices)
        return first if all(other is first for other in others) else None

    def forget(self, indices: Collection[int]) -> None:
        """Forget the handover of servers, whose data now differ from their last checkpoint."""
        self._handed = {index: newest for index, newest in self._handed.items() if index not in indices}

    def _drain(self, going: Mapping[int, tuple[str, str]]) -> None:
        addresses = [address for _, address in going.values()]
        try:
            if not self._in_sync(addresses):
                self._hand_over(going)
        except PS2Error as error:
            log.warning("servers %s are to end, and what they hold is not safe yet: %s", sorted(going), error)
            return
        for index, (server_id, address) in going.items():
            with suppress(PS2Error):  # a server that misses this call reports again that it is leaving
                self._servers.hello(address, self._master.id, released=True)
                self._released.add(server_id)
                log.info("server %d was told to end, and may", index)

    def _in_sync(self, addresses: Collection[str]) -> bool:
        """Return True if one server is leaving, and its copies are up to date. A second one could hold the copies."""
        if not self._policy.replicas or len(addresses) > 1:
            return False
        self._master.registry.check_all_there()
        return all(self._servers.status(address).behind == 0 for address in addresses)

    def _hand_over(self, going: Mapping[int, tuple[str, str]]) -> None:
        if self._checkpoints.folder is None:
            log.warning("servers %s end, and what they hold goes with them: there is no checkpointDir", sorted(going))
            return
        made = self._steps.hand_over([address for _, address in going.values()])
        self._handed = {**self._handed, **dict.fromkeys(going, made)}
