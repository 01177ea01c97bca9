"""The servers of the fleet, and which of them are lost: ``membership``'s decisions, made thread-safe."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from ps2.coordinator.membership import Membership
from ps2.coordinator.recovery import Lost
from ps2.dashboard.fleet_view import ServerHealth
from ps2.errors import LostError, RecoveringError, UnavailableError

log = logging.getLogger(__name__)

# Wait for the decision whether an unreachable server is lost. The supervisor checks the processes more often.
VERDICT_TIMEOUT_S = 1.0


class ServerRegistry:
    """The servers, by index. Thread-safe. Its lock is taken after the master's, and no server is asked under it."""

    def __init__(self, lost_after_s: float, on_give_up: Callable[[str], None] = lambda why: None) -> None:
        """Begin without servers.

        Args:
            lost_after_s: seconds of silence after which a server is lost.
            on_give_up: called with the reason when lost servers are lost for good. The attribute ``on_lost`` is called
                with index and reason of each lost server.
        """
        self._on_give_up = on_give_up
        self.on_lost: Callable[[int, str], object] = lambda index, why: None
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._membership = Membership(lost_after_s)
        self._recoverable = False  # True: lost servers are replaced
        self._give_up_reason = ""
        self._restoring: dict[int, str] = {}  # replaced servers without their shards, and why they were lost

    def register(self, index: int, server_id: str, address: str) -> None:
        with self._changed:
            self._membership.register(index, server_id, address, time.monotonic())
            self._changed.notify_all()
        log.info("server %d is at %s", index, address, extra={"server": index})

    def heartbeat(self, index: int, server_id: str, mutations: int) -> None:
        with self._lock:
            self._membership.heartbeat(index, server_id, time.monotonic(), mutations)

    def alive(self, index: int) -> None:
        """Record that a server has answered."""
        with self._lock:
            member = self._membership.members[index]
            if not member.ended:
                self._membership.heartbeat(index, member.server_id, time.monotonic(), member.mutations)

    def ended(self, index: int, reason: str) -> None:
        with self._changed:
            member = self._membership.members.get(index)
            if member is not None and not member.ended:
                self.on_lost(index, reason)
            self._membership.ended(index, reason)
            self._changed.notify_all()

    def caller_runs(self) -> None:
        """Record that this process runs; see ``Membership.here``."""
        with self._lock:
            self._membership.caller_runs(time.monotonic())

    def silent(self) -> list[tuple[int, str, str]]:
        """Return index, server id and address of the silent servers. The caller asks them before ``tick``."""
        with self._lock:
            members = self._membership.members
            silent = self._membership.silent(time.monotonic())
            return [(index, members[index].server_id, members[index].address) for index in silent]

    def tick(self) -> None:
        with self._changed:
            for index in self._membership.tick(time.monotonic()):
                reason = self._membership.members[index].lost_reason or ""
                log.warning("server %d is lost: %s", index, reason, extra={"server": index})
                self.on_lost(index, reason)
                self._changed.notify_all()

    def wait_registered(self, indices: Collection[int], timeout_s: float) -> list[int]:
        """Wait until servers have registered; return the indices of those that are missing after the timeout."""

        def missing() -> list[int]:
            members = self._membership.members
            return [index for index in indices if index not in members or members[index].ended]

        with self._changed:
            self._changed.wait_for(lambda: not missing(), timeout_s)
            return missing()

    def members(self) -> list[tuple[str, str]]:
        """Return server id and address of each server, by index."""
        with self._lock:
            return [(member.server_id, member.address) for _, member in sorted(self._membership.members.items())]

    def present(self) -> dict[str, str]:
        """Return the address of each server that is not lost, by server id."""
        with self._lock:
            return {m.server_id: m.address for m in self._membership.members.values() if m.lost_reason is None}

    def health(self) -> list[ServerHealth]:
        """Return the health of each server, by index."""
        with self._lock:
            now_s = time.monotonic()
            return [
                ServerHealth(
                    *(index, member.server_id, member.address, max(0.0, now_s - member.last_sign_s)),
                    why=self._restoring.get(index, member.lost_reason),
                    is_recoverable=self._recoverable,
                )
                for index, member in sorted(self._membership.members.items())
            ]

    def addresses(self) -> list[str]:
        """Return the address of each server, by index."""
        return [address for _, address in self.members()]

    def expect_recovery(self) -> None:
        """Record that lost servers can be recovered from now on."""
        self._recoverable = True

    def give_up(self, reason: str) -> None:
        """Record that the servers that are lost now are lost for good."""
        with self._lock:
            self._recoverable, self._give_up_reason = False, reason
        self._on_give_up(reason)

    def supersede(self, reason: str) -> None:
        """Record that another coordinator has taken over the servers: all of them are lost for this one."""
        with self._lock:
            self._recoverable, self._give_up_reason = False, ""
            for index in self._membership.members:
                self._membership.ended(index, reason)

    def check_all_there(self) -> None:
        """Raise if a server is lost: RecoveringError if it can be recovered, else LostError."""
        with self._lock:
            if lost := self._membership.lost() or self._restoring:
                reasons = "; ".join(lost.values())
                raise RecoveringError(reasons) if self._recoverable else LostError(reasons)

    def lost_reasons(
        self, owners: Collection[int], addresses: Collection[str]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return why servers of a matrix are lost for good, and why servers are being replaced.

        Args:
            owners: indices of the matrix's servers.
            addresses: their addresses in the matrix's route.
        """
        with self._lock:
            lost = self._membership.lost()
            reasons = [lost[address] for address in addresses if address in lost]
            reasons += [reason for index, reason in self._restoring.items() if index in owners]
            if self._recoverable:
                return (), tuple(reasons)
            prefix = f"{self._give_up_reason}: " if self._give_up_reason else ""
            return tuple(prefix + reason for reason in reasons), ()

    def lost(self, replaces: bool) -> list[int]:
        """Return the indices of the servers that have to be replaced.

        Args:
            replaces: True if the launcher can replace a silent server. Otherwise only ended servers are returned.
        """
        with self._lock:
            members = self._membership.members.items()
            return [index for index, m in members if m.lost_reason is not None and (replaces or m.ended)]

    def fence(self, indices: Collection[int]) -> Lost:
        """Ignore later signs of life of lost servers; return the state of the fleet now."""
        with self._lock:
            now_s = time.monotonic()
            members = self._membership.members
            lost = Lost(
                servers=tuple(indices),
                reason="; ".join(
                    self._restoring.get(index) or f"server {index}: {members[index].lost_reason}" for index in indices
                ),
                silent_s=max(now_s - members[index].last_sign_s for index in indices),
                mutations=self.counts(),
            )
            for index in indices:
                self._restoring.setdefault(index, f"server {index}: {members[index].lost_reason}")
                self._membership.fence(index)
            return lost

    def counts(self) -> dict[int, tuple[str, int]]:
        """Return by index each server's id and the number of requests that had changed data on it."""
        with self._lock:
            members = self._membership.members
            return {index: (member.server_id, member.mutations) for index, member in members.items()}

    def restored(self) -> None:
        """Record that all servers have their shards."""
        with self._lock:
            self._restoring.clear()

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Replace an UnavailableError of the with-block if a server is lost, or is declared lost within a moment."""
        try:
            yield
        except UnavailableError as error:
            with self._changed:
                lost = self._changed.wait_for(self._membership.lost, VERDICT_TIMEOUT_S)
            if not lost:
                raise
            reasons = "; ".join(lost.values())
            raise (RecoveringError(reasons) if self._recoverable else LostError(reasons)) from error
