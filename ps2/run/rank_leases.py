"""Leases: at most one attempt of a worker holds its rank. Not thread-safe: the run's lock guards them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

Wake = Callable[[], None]


@dataclass(eq=False)
class RankLease:
    """The lease of a rank for one attempt of a worker on one connection.

    Attributes:
        number: the number of the connection; a later connection has a larger number.
        wake: a function that tells the server to resume this attempt's coroutine.
        revoked: True if the connection has ended, or the same attempt has opened another connection.
        leaving: True if the attempt has sent its result or its error.
    """

    rank: int
    attempt: int
    number: int
    wake: Wake = field(repr=False)
    revoked: bool = False
    leaving: bool = False


class RankLeases:
    """The leases of a run. While an attempt holds a rank, other attempts wait for the rank."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._numbers = itertools.count(1)
        self._by_rank: dict[int, RankLease] = {}
        self.waiting: list[RankLease] = []

    def new(self, rank: int, attempt: int, wake: Wake) -> RankLease:
        """Return the lease of an attempt that has connected, which ``grant`` has to grant."""
        return RankLease(rank, attempt, next(self._numbers), wake)

    def is_free(self, lease: RankLease) -> bool:
        """Return whether the lease can be granted: the rank is free, or its attempt holds it on an older connection."""
        current = self._by_rank.get(lease.rank)
        return current is None or (current.attempt == lease.attempt and current.number < lease.number)

    def grant(self, lease: RankLease) -> None:
        self._by_rank[lease.rank] = lease

    def revoke(self, lease: RankLease) -> bool:
        """End a lease; return whether it held the rank."""
        lease.revoked = True
        lease.wake()
        if self._by_rank.get(lease.rank) is not lease:
            return False
        del self._by_rank[lease.rank]
        for waiting in self.waiting:
            waiting.wake()
        return True

    def holder(self, rank: int) -> RankLease | None:
        return self._by_rank.get(rank)

    @property
    def count(self) -> int:
        """The number of attempts that hold a rank or wait for one."""
        return len(self._by_rank) + len(self.waiting)

    def absent(self) -> list[int]:
        """Return the ranks that no attempt holds."""
        return [rank for rank in range(self._workers) if rank not in self._by_rank]

    def wake(self, rank: int) -> None:
        if rank in self._by_rank:
            self._by_rank[rank].wake()

    def wake_all(self) -> None:
        for lease in [*self._by_rank.values(), *self.waiting]:
            lease.wake()
