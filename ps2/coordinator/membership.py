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
        heard_s: when it last gave a sign of life.
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
    """Members by index. Times are the caller's, in seconds of one clock."""

    def __init__(self, lost_after_s: float) -> None:
        self._lost_after_s = lost_after_s
        self.members: dict[int, Member] = {}

    def register(self, index: int, server_id: str, address: str, now_s: float) -> None:
        """Take a server in, in place of the one that was at this index."""
        self.members[index] = Member(address, server_id, now_s)

    def heartbeat(self, index: int, server_id: str, now_s: float, mutations: int = 0) -> None:
        """Note a sign of life; one that was silent for too long is back.

        Raises:
            NotFoundError: that process is not, or no longer, a member.
        """
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

    def tick(self, now_s: float) -> list[int]:
        """Declare servers lost that were silent for too long; return which."""
        silent = [
            index
            for index, member in self.members.items()
            if member.gone is None and now_s - member.heard_s > self._lost_after_s
        ]
        for index in silent:
            self.members[index].gone = f"no sign of life for {now_s - self.members[index].heard_s:.0f} s"
        return silent

    def lost(self) -> dict[str, str]:
        """Return the reason by the address of each lost server."""
        return {m.address: f"server {i} ({m.address}): {m.gone}" for i, m in self.members.items() if m.gone is not None}
