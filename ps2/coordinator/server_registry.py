"""Registers the servers of a fleet, and decides which of them are lost (``Membership``, without I/O)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ps2.coordinator.recovery import Outage
from ps2.dashboard.fleet_view import ServerHealth
from ps2.errors import LostError, NotFoundError, RecoveringError, UnavailableError


@dataclass
class Member:
    """One server of the fleet.

    Attributes:
        last_sign_s: time of the last sign of life (a heartbeat or an answer), plus the time for which the coordinator
            was suspended since then.
        lost_reason: the reason why the server is lost; None while it is alive.
        ended: True if the process has ended or is being replaced. Its signs of life are then ignored.
        mutations: number of requests that had changed data on the server until its last heartbeat.
    """

    address: str
    server_id: str
    last_sign_s: float
    lost_reason: str | None = None
    ended: bool = False
    mutations: int = 0


class Membership:
    """The members of a fleet, by index. All times (``now_s``) are seconds of the caller's monotonic clock.

    A server is lost after ``lost_after_s`` seconds without a sign of life. Only seconds in which the caller itself runs
    count, because a suspended caller receives no heartbeats. The caller calls ``record_activity`` often. If two calls
    are more than a quarter of ``lost_after_s`` apart, the caller was suspended: only this quarter counts, and silent
    servers must be asked again before they can be lost.
    """

    def __init__(self, lost_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self.members: dict[int, Member] = {}
        self._last_ran_s: float | None = None  # time of the last call of ``record_activity``
        self._queried: set[int] = set()  # indices of silent servers that were asked since the caller was last suspended

    def register(self, index: int, server_id: str, address: str, now_s: float) -> None:
        """Add a server, in place of an earlier one with this index."""
        self.record_activity(now_s)
        self.members[index] = Member(address, server_id, now_s)

    def heartbeat(self, index: int, server_id: str, now_s: float, mutations: int = 0) -> None:
        """Record a sign of life, even of a silent server that was lost; raise NotFoundError unless it is a member."""
        self.record_activity(now_s)
        member = self.members.get(index)
        if member is None or member.server_id != server_id or member.ended:
            raise NotFoundError(f"process {server_id} is not server {index} of this fleet")
        member.last_sign_s = now_s
        member.mutations = mutations
        member.lost_reason = None

    def mark_ended(self, index: int, reason: str) -> None:
        """Record that a server's process has ended."""
        member = self.members.get(index)
        if member is not None and not member.ended:
            member.ended = True
            member.lost_reason = reason

    def fence(self, index: int) -> Member:
        """Ignore later signs of life of a lost server, because it is being replaced; return its record."""
        self.members[index].ended = True
        return self.members[index]

    def record_activity(self, now_s: float) -> None:
        """Record that the caller runs. If it was suspended, do not count this time as silence of the servers."""
        gap_s = now_s - self._last_ran_s if self._last_ran_s is not None else 0.0
        excess_s = gap_s - self._lost_after_s / 4
        if excess_s > 0:
            for member in self.members.values():
                member.last_sign_s += excess_s
            # Answers that have arrived in the meantime may not have been read yet.
            self._queried.clear()
        self._last_ran_s = now_s

    def find_silent(self, now_s: float) -> list[int]:
        """Return the servers that are silent for ``lost_after_s / 2``; ask them before ``declare_lost`` is called."""
        self.record_activity(now_s)
        self._queried = set(self._silent_for(self._lost_after_s / 2, now_s))
        return sorted(self._queried)

    def declare_lost(self, now_s: float) -> list[int]:
        """Declare servers lost that were asked and are silent for ``lost_after_s``; return their indices."""
        self.record_activity(now_s)
        silent = [index for index in self._silent_for(self._lost_after_s, now_s) if index in self._queried]
        for index in silent:
            self.members[index].lost_reason = f"no sign of life for {now_s - self.members[index].last_sign_s:.0f} s"
        return silent

    def lost_by_address(self) -> dict[str, str]:
        """Return a text with the reason of each loss, by the lost server's address."""
        return {
            member.address: f"server {index} ({member.address}): {member.lost_reason}"
            for index, member in self.members.items()
            if member.lost_reason is not None
        }

    def _silent_for(self, silence_s: float, now_s: float) -> list[int]:
        return [
            index
            for index, member in self.members.items()
            if member.lost_reason is None and now_s - member.last_sign_s > silence_s
        ]


log = logging.getLogger(__name__)

# Maximum time that a failed call waits for the decision whether the server is lost. The supervisor checks servers
# more often than that.
DECISION_TIMEOUT_S = 1.0


class ServerRegistry:
    """The servers, by index. Thread-safe. Its lock is acquired after the master's, and released before any I/O."""

    def __init__(self, lost_after_s: float, on_give_up: Callable[[str], None] = lambda reason: None) -> None:
        """``on_give_up`` gets the reason if recovery is impossible; ``on_lost``: (index, reason) of a lost server."""
        self._on_give_up = on_give_up
        self.on_lost: Callable[[int, str], object] = lambda index, reason: None
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._membership = Membership(lost_after_s)
        self._recoverable = False  # True: the coordinator replaces lost servers
        self._give_up_reason = ""
        self._restoring: dict[int, str] = {}  # replaced servers that lack their shards -> reason of their loss

    def register(self, index: int, server_id: str, address: str) -> None:
        with self._changed:
            self._membership.register(index, server_id, address, time.monotonic())
            self._changed.notify_all()
        log.info("server %d listens at %s", index, address, extra={"server": index})

    def heartbeat(self, index: int, server_id: str, mutations: int) -> None:
        with self._lock:
            self._membership.heartbeat(index, server_id, time.monotonic(), mutations)

    def mark_alive(self, index: int) -> None:
        """Record that a server has answered."""
        with self._lock:
            member = self._membership.members[index]
            if not member.ended:
                self._membership.heartbeat(index, member.server_id, time.monotonic(), member.mutations)

    def mark_ended(self, index: int, reason: str) -> None:
        with self._changed:
            member = self._membership.members.get(index)
            if member is not None and not member.ended:
                self.on_lost(index, reason)
            self._membership.mark_ended(index, reason)
            self._changed.notify_all()

    def record_activity(self) -> None:
        """Record that this process runs; see ``Membership.record_activity``."""
        with self._lock:
            self._membership.record_activity(time.monotonic())

    def find_silent(self) -> list[tuple[int, str, str]]:
        """Return (index, server id, address) of silent servers; ask them before ``declare_lost`` is called."""
        with self._lock:
            members = self._membership.members
            silent = self._membership.find_silent(time.monotonic())
            return [(index, members[index].server_id, members[index].address) for index in silent]

    def declare_lost(self) -> None:
        with self._changed:
            for index in self._membership.declare_lost(time.monotonic()):
                reason = self._membership.members[index].lost_reason or ""
                log.warning("server %d is lost: %s", index, reason, extra={"server": index})
                self.on_lost(index, reason)
                self._changed.notify_all()

    def wait_registered(self, indices: Collection[int], timeout_s: float) -> list[int]:
        """Wait until servers have registered; return the indices of servers that have not registered in time."""

        def missing() -> list[int]:
            members = self._membership.members
            return [index for index in indices if index not in members or members[index].ended]

        with self._changed:
            self._changed.wait_for(lambda: not missing(), timeout_s)
            return missing()

    def members(self) -> list[tuple[str, str]]:
        """Return (server id, address) of each server, in order of index."""
        with self._lock:
            return [(member.server_id, member.address) for _, member in sorted(self._membership.members.items())]

    def present(self) -> dict[str, str]:
        """Return the address of each server that is not lost, by server id."""
        with self._lock:
            members = self._membership.members.values()
            return {member.server_id: member.address for member in members if member.lost_reason is None}

    def health(self) -> list[ServerHealth]:
        """Return the health of each server, in order of index."""
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
        """Return the address of each server, in order of index."""
        return [address for _, address in self.members()]

    def expect_recovery(self) -> None:
        """Record that lost servers can be recovered from now on."""
        self._recoverable = True

    def give_up(self, reason: str) -> None:
        """Record that the lost servers cannot be recovered."""
        with self._lock:
            self._recoverable, self._give_up_reason = False, reason
        self._on_give_up(reason)

    def supersede(self, reason: str) -> None:
        """Record that another coordinator has taken over the servers: this one has lost all of them."""
        with self._lock:
            self._recoverable, self._give_up_reason = False, ""
            for index in self._membership.members:
                self._membership.mark_ended(index, reason)

    def check_all_present(self) -> None:
        """Raise if a server is lost: RecoveringError if it can be recovered, else LostError."""
        with self._lock:
            if lost := self._membership.lost_by_address() or self._restoring:
                reasons = "; ".join(lost.values())
                raise RecoveringError(reasons) if self._recoverable else LostError(reasons)

    def lost_reasons(
        self, owners: Collection[int], addresses: Collection[str]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return (reasons of losses, reasons of replacements) of a matrix's servers; one of the two is empty.

        ``owners``: indices of the servers with shards of the matrix; ``addresses``: the servers of its route.
        """
        with self._lock:
            lost = self._membership.lost_by_address()
            reasons = [lost[address] for address in addresses if address in lost]
            reasons += [reason for index, reason in self._restoring.items() if index in owners]
            if self._recoverable:
                return (), tuple(reasons)
            prefix = f"{self._give_up_reason}: " if self._give_up_reason else ""
            return tuple(prefix + reason for reason in reasons), ()

    def lost(self, replaces: bool) -> list[int]:
        """Return the indices of lost servers; without ``replaces``, only of servers whose processes have ended."""
        with self._lock:
            members = self._membership.members.items()
            return [index for index, member in members if member.lost_reason is not None and (replaces or member.ended)]

    def fence(self, indices: Collection[int]) -> Outage:
        """Ignore later signs of life of lost servers; return a description of the loss."""
        with self._lock:
            now_s = time.monotonic()
            members = self._membership.members
            outage = Outage(
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
            return outage

    def counts(self) -> dict[int, tuple[str, int]]:
        """Return (server id, number of requests that had changed data on the server), by index."""
        with self._lock:
            members = self._membership.members
            return {index: (member.server_id, member.mutations) for index, member in members.items()}

    def mark_restored(self) -> None:
        """Record that all servers have their shards."""
        with self._lock:
            self._restoring.clear()

    @contextmanager
    def explain_lost_servers(self) -> Iterator[None]:
        """Replace an UnavailableError of the with-block by the reason why a server is lost.

        Raises RecoveringError or LostError if a server is lost, or is declared lost within ``DECISION_TIMEOUT_S``.
        """
        try:
            yield
        except UnavailableError as error:
            with self._changed:
                lost = self._changed.wait_for(self._membership.lost_by_address, DECISION_TIMEOUT_S)
            if not lost:
                raise
            reasons = "; ".join(lost.values())
            raise (RecoveringError(reasons) if self._recoverable else LostError(reasons)) from error
