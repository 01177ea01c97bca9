"""Which attempt of a worker holds which rank. Not thread-safe: the run's lock guards it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

Wake = Callable[[], None]


@dataclass(eq=False)
class RankLease:
    """One attempt of one worker, on one connection.

    Attributes:
        number: the number of the connection; a later connection has a larger number.
        wake: a function that tells the server to resume this attempt's coroutine.
        revoked: True if the connection has ended, or the same attempt has come back on another one.
    """

    rank: int
    attempt: int
    number: int
    wake: Wake = field(repr=False)
    revoked: bool = False
    leaving: bool = False


class RankLeases:
    """The leases of a run: at most one attempt holds a rank, others wait for it."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._numbers = itertools.count(1)
        self._held: dict[int, RankLease] = {}
        self.waiting: list[RankLease] = []

    def new(self, rank: int, attempt: int, wake: Wake) -> RankLease:
        """Return a lease for an attempt that has connected. It waits until ``grant`` or ``revoke``."""
        return RankLease(rank, attempt, next(self._numbers), wake)

    def is_free(self, lease: RankLease) -> bool:
        """Return whether the lease can be granted: the rank is free, or its attempt holds it on an older connection."""
        held = self._held.get(lease.rank)
        return held is None or (held.attempt == lease.attempt and held.number < lease.number)

    def grant(self, lease: RankLease) -> None:
        self._held[lease.rank] = lease

    def revoke(self, lease: RankLease) -> bool:
        """End a lease; return whether it held the rank."""
        lease.revoked = True
        lease.wake()
        if self._held.get(lease.rank) is not lease:
            return False
        del self._held[lease.rank]
        for waiting in self.waiting:
            waiting.wake()
        return True

    def holder(self, rank: int) -> RankLease | None:
        return self._held.get(rank)

    @property
    def count(self) -> int:
        """Number of attempts that hold a rank or wait for one."""
        return len(self._held) + len(self.waiting)

    def absent(self) -> list[int]:
        """Return the ranks that no attempt holds."""
        return [rank for rank in range(self._workers) if rank not in self._held]

    def wake(self, rank: int) -> None:
        if rank in self._held:
            self._held[rank].wake()

    def wake_all(self) -> None:
        for lease in [*self._held.values(), *self.waiting]:
            lease.wake()
