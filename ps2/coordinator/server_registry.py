"""The servers of the fleet, and which of them are lost, as ``Membership`` (pure) decides."""

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
        last_sign_s: time of the last sign of life, plus the time for which the caller itself has stood still since.
        lost_reason: the reason why the server is lost; None while it is alive.
        ended: True if the process has ended or is being replaced, so that its signs of life no longer count.
        mutations: number of requests that had changed data there at the last sign of life.
    """

    address: str
    server_id: str
    last_sign_s: float
    lost_reason: str | None = None
    ended: bool = False
    mutations: int = 0


class Membership:
    """Members by index. The caller gives all times, in seconds of one clock.

    A server's silence counts only while the caller itself runs, which frequent calls of ``caller_runs`` show. A gap
    between calls that is longer than a quarter of ``lost_after_s`` means that the caller stood still. The gap counts as
    that quarter, and silent servers must be asked again after it.
    """

    def __init__(self, lost_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self.members: dict[int, Member] = {}
        self._last_ran_s: float | None = None  # when the caller last ran
        self._queried: set[int] = set()  # servers that were asked since the last gap

    def register(self, index: int, server_id: str, address: str, now_s: float) -> None:
        """Add a server, in place of any earlier one at this index."""
        self.caller_runs(now_s)
        self.members[index] = Member(address, server_id, now_s)

    def heartbeat(self, index: int, server_id: str, now_s: float, mutations: int = 0) -> None:
        """Record a sign of life; raise NotFoundError if the process is not a member.

        A server that was declared lost because of its silence is alive again.
        """
        self.caller_runs(now_s)
        member = self.members.get(index)
        if member is None or member.server_id != server_id or member.ended:
            raise NotFoundError(f"process {server_id} is not server {index} of this fleet")
        member.last_sign_s = now_s
        member.mutations = mutations
        member.lost_reason = None

    def ended(self, index: int, reason: str) -> None:
        """Record that a server's process has ended."""
        member = self.members.get(index)
        if member is not None and not member.ended:
            member.ended = True
            member.lost_reason = reason

    def fence(self, index: int) -> Member:
        """Ignore later signs of life of a lost server, which is being replaced; return its record."""
        self.members[index].ended = True
        return self.members[index]

    def caller_runs(self, now_s: float) -> None:
        """Record that the caller runs. A long gap since the last call does not count as the servers' silence."""
        gap_s = now_s - self._last_ran_s if self._last_ran_s is not None else 0.0
        excess_s = gap_s - self._lost_after_s / 4
        if excess_s > 0:
            for member in self.members.values():
                member.last_sign_s += excess_s
            # The servers' answers may still be unread.
            self._queried.clear()
        self._last_ran_s = now_s

    def silent(self, now_s: float) -> list[int]:
        """Return the servers that were silent for half of ``lost_after_s``. The caller asks them before ``tick``."""
        self.caller_runs(now_s)
        self._queried = set(self._silent_for(self._lost_after_s / 2, now_s))
        return sorted(self._queried)

    def tick(self, now_s: float) -> list[int]:
        """Declare the servers lost that were asked but stayed silent for ``lost_after_s``; return them."""
        self.caller_runs(now_s)
        silent = [index for index in self._silent_for(self._lost_after_s, now_s) if index in self._queried]
        for index in silent:
            self.members[index].lost_reason = f"no sign of life for {now_s - self.members[index].last_sign_s:.0f} s"
        return silent

    def lost(self) -> dict[str, str]:
        """Return why each lost server is lost, by address."""
        return {
            member.address: f"server {index} ({member.address}): {member.lost_reason}"
            for index, member in self.members.items()
            if member.lost_reason is not None
        }

    def _silent_for(self, silence_s: float, now_s: float) -> list[int]:
        return [i for i, m in self.members.items() if m.lost_reason is None and now_s - m.last_sign_s > silence_s]


log = logging.getLogger(__name__)

# Wait for the decision whether an unreachable server is lost. The supervisor checks the processes more often.
VERDICT_TIMEOUT_S = 1.0


class ServerRegistry:
    """The servers, by index. Thread-safe. Its lock is taken after the master's, and no server is asked under it."""

    def __init__(self, lost_after_s: float, on_give_up: Callable[[str], None] = lambda why: None) -> None:
        """Begin without servers. ``on_give_up`` is called with the reason when lost servers are lost for good.

        The attribute ``on_lost`` is called with index and reason of each lost server.
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
        """Record that this process runs; see ``Membership.caller_runs``."""
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

    def check_all_present(self) -> None:
        """Raise if a server is lost: RecoveringError if it can be recovered, else LostError."""
        with self._lock:
            if lost := self._membership.lost() or self._restoring:
                reasons = "; ".join(lost.values())
                raise RecoveringError(reasons) if self._recoverable else LostError(reasons)

    def lost_reasons(
        self, owners: Collection[int], addresses: Collection[str]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return why servers of a matrix are lost for good, and why servers of its route are being replaced."""
        with self._lock:
            lost = self._membership.lost()
            reasons = [lost[address] for address in addresses if address in lost]
            reasons += [reason for index, reason in self._restoring.items() if index in owners]
            if self._recoverable:
                return (), tuple(reasons)
            prefix = f"{self._give_up_reason}: " if self._give_up_reason else ""
            return tuple(prefix + reason for reason in reasons), ()

    def lost(self, replaces: bool) -> list[int]:
        """Return the servers to replace: only the ended ones if the launcher replaces no silent server."""
        with self._lock:
            members = self._membership.members.items()
            return [index for index, m in members if m.lost_reason is not None and (replaces or m.ended)]

    def fence(self, indices: Collection[int]) -> Outage:
        """Ignore later signs of life of lost servers; return the state of the fleet now."""
        with self._lock:
            now_s = time.monotonic()
            members = self._membership.members
            lost = Outage(
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
