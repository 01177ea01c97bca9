"""Decides which servers are alive, from their signs of life and the time. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.errors import NotFoundError


@dataclass
class Member:
    """One server of the fleet.

    Attributes:
        address: ``host:port``.
        server_id: id of the process; another process at the same index has another id.
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
        """Record a sign of life. A server that was declared lost because of its silence is alive again.

        Raises:
            NotFoundError: the process is not a member.
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
            m.address: f"server {i} ({m.address}): {m.lost_reason}"
            for i, m in self.members.items()
            if m.lost_reason is not None
        }

    def _silent_for(self, silence_s: float, now_s: float) -> list[int]:
        return [i for i, m in self.members.items() if m.lost_reason is None and now_s - m.last_sign_s > silence_s]
