"""Which servers are there: a pure function of what was heard and when."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.errors import NotFoundError


@dataclass
class Member:
    """One server of the fleet.

    Attributes:
        address: ``host:port``.
        server_id: of the process; another one at the same index is another process.
        heard_s: when it last gave a sign of life; later by what the caller stood still since.
        gone: why it is lost; None while it is there.
        ended: its process has ended, or is to be replaced: no sign of life counts any more.
        mutations: requests that had changed something there, as of its last sign of life.
    """

    address: str
    server_id: str
    heard_s: float
    gone: str | None = None
    ended: bool = False
    mutations: int = 0


class Membership:
    """Members by index. Times are the caller's, in seconds of one clock.

    Silence says something of a server only while there is somebody to hear it. The caller shows all the time that it is
    there, by ``here`` at least; where for long neither that nor a sign of life came, it stood still itself. Such a gap
    counts as a quarter of the silence that is too long, however long it was, and after it they have to be asked again.
    """

    def __init__(self, lost_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self.members: dict[int, Member] = {}
        self._here_s: float | None = None  # when the caller was last seen to be there
        self._asked: set[int] = set()  # those that are being asked, since the last gap

    def register(self, index: int, server_id: str, address: str, now_s: float) -> None:
        """Take a server in, in place of the one that was at this index."""
        self.here(now_s)
        self.members[index] = Member(address, server_id, now_s)

    def heartbeat(self, index: int, server_id: str, now_s: float, mutations: int = 0) -> None:
        """Note a sign of life; one that was silent for too long is back.

        Raises:
            NotFoundError: that process is not, or no longer, a member.
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
        """Let no sign of life of a lost server count any more: it is to be replaced. Return what is known of it."""
        self.members[index].ended = True
        return self.members[index]

    def lost_indices(self) -> list[int]:
        """Return which servers are lost."""
        return [index for index, member in self.members.items() if member.gone is not None]

    def here(self, now_s: float) -> None:
        """Note that the caller is there; let no gap in that count as anybody's silence."""
        gap_s = now_s - self._here_s if self._here_s is not None else 0.0
        excess_s = gap_s - self._lost_after_s / 4
        if excess_s > 0:
            for member in self.members.values():
                member.heard_s += excess_s
            # What they have answered may still be waiting to be read.
            self._asked.clear()
        self._here_s = now_s

    def silent(self, now_s: float) -> list[int]:
        """Return who was silent for half as long as is too long: they are to be asked now, before ``tick``."""
        self.here(now_s)
        self._asked = set(self._silent_for(self._lost_after_s / 2, now_s))
        return sorted(self._asked)

    def tick(self, now_s: float) -> list[int]:
        """Declare servers lost that were silent for too long, and have been asked; return which."""
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
