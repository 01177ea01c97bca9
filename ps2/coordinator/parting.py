"""Lets servers go that were told to end, once nothing is lost with them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from ps2.coordinator.checkpoints import Checkpoints, Newest
from ps2.coordinator.master import Master
from ps2.coordinator.recovery import Policy
from ps2.errors import PS2Error
from ps2.rpc.control import ServerControl

log = logging.getLogger(__name__)

# Until a checkpoint that has failed is tried again: they wait as long as they were told.
RETRY_S = 5.0


class Parting:
    """Looks after the servers that say they are leaving; ``look`` is called again and again, by one thread.

    One whose copies are in step may go at once. Else the fleet makes a checkpoint, after which those that leave take no
    requests any more: what a successor reads from it is all that there was. Without copies or a folder for checkpoints
    there is nothing to wait for.
    """

    def __init__(self, master: Master, servers: ServerControl, checkpoints: Checkpoints, policy: Policy) -> None:
        self._master = master
        self._servers = servers
        self._checkpoints = checkpoints
        self._policy = policy
        # Makes a checkpoint that is the last one for the servers at these addresses.
        self.take: Callable[[Collection[str]], Newest]
        self._released: set[str] = set()  # ids of processes
        self._at_work: threading.Thread | None = None
        self._next_s = 0.0
        self._handed: Mapping[int, Newest] = {}  # what those have left behind that are not back yet

    def look(self, leaving: Collection[int]) -> None:
        """Begin to let these go; return without waiting for it."""
        members = self._master.roster.members()
        going = {index: members[index] for index in leaving if members[index][0] not in self._released}
        if not going or time.monotonic() < self._next_s or (self._at_work is not None and self._at_work.is_alive()):
            return
        self._next_s = time.monotonic() + RETRY_S
        # A checkpoint may take minutes, in which the others are looked after.
        self._at_work = threading.Thread(target=self._let_go, args=(going,), name="ps2-parting", daemon=True)
        self._at_work.start()

    def handed_over(self, indices: Collection[int]) -> Newest | None:
        """Return the checkpoint that all these servers have ended with; None if some have not."""
        first, *others = (self._handed.get(index) for index in indices)
        return first if all(other is first for other in others) else None

    def forget(self, indices: Collection[int]) -> None:
        """Note that these are back, or at another age than what they had handed over."""
        self._handed = {index: newest for index, newest in self._handed.items() if index not in indices}

    def _let_go(self, going: Mapping[int, tuple[str, str]]) -> None:
        addresses = [address for _, address in going.values()]
        try:
            if not self._in_step(addresses):
                self._hand_over(going)
        except PS2Error as error:
            log.warning("servers %s are to end, and what they hold is not safe yet: %s", sorted(going), error)
            return
        for index, (server_id, address) in going.items():
            with suppress(PS2Error):  # if it is still there, it says so again
                self._servers.hello(address, self._master.id, released=True)
                self._released.add(server_id)
                log.info("server %d was told to end, and may", index)

    def _in_step(self, addresses: Collection[str]) -> bool:
        """Tell whether the one that leaves is on its backup as it is; a second one may be that backup."""
        if not self._policy.replicas or len(addresses) > 1:
            return False
        self._master.roster.check_all_there()
        return all(self._servers.status(address).behind == 0 for address in addresses)

    def _hand_over(self, going: Mapping[int, tuple[str, str]]) -> None:
        if self._checkpoints.folder is None:
            log.warning("servers %s end, and what they hold goes with them: there is no checkpointDir", sorted(going))
            return
        made = self.take([address for _, address in going.values()])
        self._handed = {**self._handed, **dict.fromkeys(going, made)}
