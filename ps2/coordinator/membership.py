"""Which servers are alive: a pure function of their signs of life and of time."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.errors import NotFoundError


@dataclass
class Member:
    """One server of the fleet.

    Attributes:
        address: ``host:port``.
        server_id: of the process; another process at the same index has another id.
        heard_s: time of its last sign of life, plus the time that the caller itself stood still since.
        gone: why the server is lost; None while it is alive.
        ended: its process has ended, or is being replaced: signs of life no longer count.
        mutations: requests that had changed data there, as of its last sign of life.
    """

    address: str
    server_id: str
    heard_s: float
    gone: str | None = None
    ended: bool = False
    mutations: int = 0


class Membership:
    """Members by index. The caller gives all times, in seconds of one clock.

    A server's silence counts only while the caller itself runs. The caller shows that by calling ``here`` all the time.
    A long gap without ``here`` and without signs of life means that the caller stood still. However long such a gap is,
    it counts as a quarter of ``lost_after_s``, and silent servers must be asked again after it.
    """

    def __init__(self, lost_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self.members: dict[int, Member] = {}
        self._here_s: float | None = None  # when the caller last ran
        self._asked: set[int] = set()  # servers that were asked since the last gap

    def register(self, index: int, server_id: str, address: str, now_s: float) -> None:
        """Add a server, in place of any earlier one at this index."""
        self.here(now_s)
        self.members[index] = Member(address, server_id, now_s)

    def heartbeat(self, index: int, server_id: str, now_s: float, mutations: int = 0) -> None:
        """Note a sign of life. A server that was declared lost for its silence is back.

        Raises:
            NotFoundError: the process is not a member.
        """
        self.here(now_s)
        member = self.members.get(index)
        if member is None or member.server_id != server_id or member.ended:
            raise NotFoundError(f"process {server_id} is not server {index} of this fleet")
        member.heard_s = now_s
        member.mutations = mutations
        member.gone = None

    def ended(self, index: int, reason: str) -> None:
        """Note that a server's process has ended."""
        member = self.members.get(index)
        if member is not None and not member.ended:
            member.ended = True
            member.gone = reason

    def fence(self, index: int) -> Member:
        """Ignore signs of life of a lost server from now on, as it is being replaced; return its record."""
        self.members[index].ended = True
        return self.members[index]

    def lost_indices(self) -> list[int]:
        """Return which servers are lost."""
        return [index for index, member in self.members.items() if member.gone is not None]

    def here(self, now_s: float) -> None:
        """Note that the caller runs. A gap since the last call does not count as silence of servers."""
        gap_s = now_s - self._here_s if self._here_s is not None else 0.0
        excess_s = gap_s - self._lost_after_s / 4
        if excess_s > 0:
            for member in self.members.values():
                member.heard_s += excess_s
            # Their answers may still wait to be read.
            self._asked.clear()
        self._here_s = now_s

    def silent(self, now_s: float) -> list[int]:
        """Return servers that were silent for half of ``lost_after_s``: the caller asks them before ``tick``."""
        self.here(now_s)
        self._asked = set(self._silent_for(self._lost_after_s / 2, now_s))
        return sorted(self._asked)

    def tick(self, now_s: float) -> list[int]:
        """Declare servers lost that were asked and stayed silent for too long; return them."""
        self.here(now_s)
        silent = [index for index in self._silent_for(self._lost_after_s, now_s) if index in self._asked]
        for index in silent:
            self.members[index].gone = f"no sign of life for {now_s - self.members[index].heard_s:.0f} s"
        return silent

    def lost(self) -> dict[str, str]:
        """Return the reason by the address of each lost server."""
        return {m.address: f"server {i} ({m.address}): {m.gone}" for i, m in self.members.items() if m.gone is not None}

    def _silent_for(self, silence_s: float, now_s: float) -> list[int]:
        return [i for i, m in self.members.items() if m.gone is None and now_s - m.heard_s > silence_s]
