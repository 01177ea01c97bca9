"""The servers of a fleet as a whole: starting, activating and loading them."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from ps2.coordinator.checkpoints import Newest, to_load
from ps2.coordinator.launcher import Launcher
from ps2.coordinator.master import Master
from ps2.coordinator.recovery import backup_of, backups
from ps2.errors import LaunchError, PS2Error
from ps2.interrupts import check
from ps2.rpc.control import Activation, ServerControl
from ps2.transport.concurrent_calls import call_concurrently

log = logging.getLogger(__name__)

# Interval at which new processes are checked: each has registered, or has ended already.
START_POLL_S = 0.05


class FleetControl:
    """Calls to all servers of one coordinator; ``control`` calls single servers."""

    def __init__(self, master: Master, launcher: Launcher, servers: ServerControl, replicas: int) -> None:
        self.master = master
        self.launcher = launcher
        self.control = servers
        self._replicas = replicas
        self._master_address = ""

    def start(self, master: str) -> None:
        """Start all servers, and wait until they have registered with the master at that address."""
        self._master_address = master
        for index in range(self.launcher.servers):
            self.launch(index)
        self.wait_registered(range(self.launcher.servers))

    def launch(self, index: int) -> None:
        """Start one server, in place of an earlier one."""
        self.launcher.start(index, self._master_address)

    def activate(
        self,
        lost: Collection[int] = (),
        seed: Collection[int] = (),
        loaded: Collection[int] = (),
        copies: bool = True,
    ) -> None:
        """Raise the route version, and activate every server that is not lost.

        ``seed``: indices of the servers whose backups hold no copies of their shards yet. ``loaded``: indices of the
        servers that replace their shards by the loaded ones. ``copies``: keep copies in sync, if the fleet has
        replicas.
        """
        lease_s = self.master.config.lost_after_s if self.launcher.replaces else 0.0
        self.master.rehome()
        addresses = self.master.registry.addresses()
        backup_addresses = backups(addresses, lost, self._replicas if copies else 0)
        for index, address in enumerate(addresses):
            if index not in lost:
                backup, is_loaded, is_seed = backup_addresses[index], index in loaded, index in seed
                order = Activation(self.master.id, lease_s, loaded=is_loaded, backup=backup, seed=is_seed)
                self.control.activate(address, order)

    def release(self) -> None:
        """Stop coordinating the servers, so that another coordinator can take over."""
        for address in self.master.registry.addresses():
            try:
                self.control.activate(address, Activation(self.master.id, leave=True))
            except PS2Error as error:
                log.debug("leaving %s: %s", address, error)

    def load(self, newest: Newest, indices: Collection[int], ids: bool) -> int:
        """Let servers read their shards from a checkpoint, for ``take_loaded``; return the number of bytes."""
        entries, addresses = self.master.entries(), self.master.registry.addresses()

        def load(index: int) -> int:
            matrices = [matrix for entry in entries if (matrix := to_load(newest.manifest, entry, index))]
            return self.control.load(addresses[index], newest.path, matrices, ids)

        return sum(call_concurrently(indices, load))

    def discard_checkpoints(self) -> None:
        """Discard a checkpoint that is under way, such as one of an earlier coordinator."""
        for address in self.master.registry.addresses():
            self.control.discard(address, "")

    def take_loaded(self, indices: Collection[int]) -> None:
        """Let servers replace their shards by the loaded ones, and make new copies of all shards."""
        everyone = range(self.launcher.servers)
        if not self._replicas:
            self.activate(loaded=indices)
            return
        # Loaded shards also replace the copies that a server holds.
        self.activate(loaded=indices, copies=False)
        for index in everyone:
            self.allocate(index, backup_of(index, len(everyone)), copies=True)
        self.activate(seed=everyone)

    def allocate(self, owner: int, holder: int, copies: bool) -> None:
        """Allocate the shards of one server on itself, or as copies on another."""
        address = self.master.registry.addresses()[holder]
        for entry in self.master.entries():
            if partitions := entry.partitions_of(owner):
                self.control.create_matrix(address, entry.id, entry.spec, partitions, copies)
                if entry.retired:
                    self.control.update_rows(address, entry.id, freed=entry.retired)

    def end_stages(self, indices: Collection[int]) -> None:
        """Tell new servers which stages are over, so that they refuse late requests of these stages."""
        addresses = self.master.registry.addresses()
        for index in indices:
            for series, below, live in self.master.stages_over():
                self.control.end_stages(addresses[index], series, below, live)

    def wait_registered(self, indices: Collection[int]) -> None:
        timeout_s = self.master.config.start_timeout_s
        deadline_s = time.monotonic() + timeout_s
        while missing := self.master.registry.wait_registered(indices, START_POLL_S):
            check()
            ended = self.launcher.poll()
            for index in missing:
                if (reason := ended.get(index)) is not None:
                    raise LaunchError(f"server {index} did not start: {reason}")
            if time.monotonic() > deadline_s:
                status = self.launcher.status_text()
                raise LaunchError(
                    f"servers {missing} did not register within {timeout_s:.0f} s{f': {status}' if status else ''}"
                )
