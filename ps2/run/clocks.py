"""Clocks of the workers of one run: who may begin which clock (BSP, SSP and ASP). Pure: events in, releases out.

The guarantees (stale synchronous parallel; Xing et al., "Strategies and Principles of Distributed Machine Learning on
Big Data", section 3.2), with staleness s, among workers that have not returned:

* nobody is more than s clocks ahead of anybody;
* who enters clock t finds the updates of all clocks up to t - s - 1 applied, and what ``onClock`` did for them done;
* s = 0 is BSP; without s (None, ASP) nobody ever waits.

An event costs a few steps; all that wait are looked at only when the lowest clock moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ps2.errors import ProtocolError, WorkerError
from ps2.rpc.run_control import Report
from ps2.run.journal import Journal

# What ASP allows.
NO_LIMIT = 2**62


@dataclass(frozen=True)
class Release:
    """A worker that waited may enter a clock.

    Attributes:
        horizon: the highest clock that the others let it enter, as far as is known now.
    """

    rank: int
    clock: int
    horizon: int


@dataclass(frozen=True)
class Cut:
    """Where a run stood at one moment; ``applied`` and ``called`` are those of ``Clocks``.

    Attributes:
        journal: what ``onClock`` had returned.
        reports: of the clocks that ``onClock`` had not been called for: by clock, then by rank.
    """

    applied: tuple[int, ...]
    called: int
    journal: Journal = field(default_factory=Journal)
    reports: Mapping[int, Mapping[int, Sequence[Report]]] = field(default_factory=dict)


class Clocks:
    """Each worker stands in a clock, or waits before one.

    Attributes:
        entered: the clock that each rank is, or was last, in.
        furthest: the highest clock that a worker has entered.
        applied: of each rank, the updates of the clocks below are on the servers.
        called: for the clocks below, the call has returned.
        bound: nobody waits before a clock up to this one.
    """

    def __init__(self, workers: int, staleness: int | None, first: int = 0, calls: bool = False) -> None:
        """Args:
        staleness: None for ASP.
        first: the clock that everybody begins with.
        calls: whether something is called after each clock that all have finished.
        """
        self._staleness = staleness
        self._calls = calls
        self.waiting: dict[int, int] = {}  # rank -> the clock that it waits before
        self._reset(Cut((first,) * workers, first))

    def _reset(self, cut: Cut) -> None:
        self.called = cut.called
        self.entered = list(cut.applied)
        self.furthest = max(cut.applied) - 1
        self.applied = list(cut.applied)
        self._done: set[int] = set()
        self._all = _Tally(cut.applied)
        self._staying = _Tally(cut.applied)
        self._furthest = max(cut.applied)
        self._left_first = NO_LIMIT  # the lowest clock that one returned in
        self.bound = self._bound()

    @property
    def finished(self) -> int:
        """All workers, those that have returned too, have finished the clocks below."""
        return self._all.lowest

    @property
    def unfinished(self) -> int:
        """How many workers have not returned."""
        return len(self.applied) - len(self._done)

    @property
    def done(self) -> list[int]:
        """The ranks that have returned."""
        return sorted(self._done)

    def is_done(self, rank: int) -> bool:
        return rank in self._done

    def arrive(self, rank: int, clock: int, applied: int) -> list[Release]:
        """A worker wants to enter a clock; it may say so again.

        Args:
            applied: its updates of all clocks below are on the servers. A later attempt passes by clocks that an
                earlier one has finished, so this may be less than is known.

        Raises:
            ProtocolError: its own updates are further behind than s.
            WorkerError: another one has returned before, so that the last clock lacks its part.
        """
        if rank in self._done:
            raise ProtocolError(f"rank {rank} before clock {clock}: it has returned")
        applied = max(applied, self.applied[rank])
        if applied > max(clock, self.applied[rank]):
            raise ProtocolError(f"rank {rank} before clock {clock}: its updates of clock {clock} cannot be applied yet")
        if self._staleness is not None and applied < clock - self._staleness:
            raise ProtocolError(f"rank {rank} before clock {clock}: its updates of clock {applied} are not applied")
        self._move(rank, applied)
        self.waiting[rank] = clock
        self._check_nobody_left_early()
        return self._release(rank)

    def progress(self, rank: int, applied: int) -> list[Release]:
        """A worker that is in a clock tells what is on the servers by now; it may say so again, and late.

        Raises:
            ProtocolError: that clock's own updates cannot be there yet.
        """
        if rank in self._done or applied <= self.applied[rank]:
            return []
        if applied > self.entered[rank]:
            raise ProtocolError(f"rank {rank} in clock {self.entered[rank]}: clock {applied - 1} has not ended")
        self._move(rank, applied)
        return self._release()

    def leave(self, rank: int, clock: int) -> list[Release]:
        """A worker has returned, and holds up nobody any more; it may say so again.

        Args:
            clock: that it was in, or before, last: its updates of the clocks below are on the servers.

        Raises:
            WorkerError: others are further than it ever came.
        """
        if rank in self._done:
            return []
        self._move(rank, max(clock, self.applied[rank]))
        self._done.add(rank)
        self._staying.remove(self.applied[rank])
        self._left_first = min(self._left_first, self.applied[rank])
        self.waiting.pop(rank, None)
        self._check_nobody_left_early()
        return self._release()

    def gone(self, rank: int) -> int:
        """A worker's attempt has ended without a result; return the clock that the next one begins with."""
        self.waiting.pop(rank, None)
        self.entered[rank] = self.applied[rank]
        return self.applied[rank]

    def due(self) -> int | None:
        """Return the clock that the next call is for; None if all that are due have returned."""
        return self.called if self._calls and self.called < self.finished else None

    def needed(self, clock: int) -> int:
        """Return the clock below which all must be finished, and called for, before a clock may be entered."""
        return clock - (self._staleness or 0)

    def called_back(self, clock: int) -> list[Release]:
        """The call for a clock has returned."""
        self.called = max(self.called, clock + 1)
        return self._release()

    def roll_back(self, cut: Cut) -> list[Release]:
        """The fleet went back to a moment: all, those that have returned too, begin there again.

        Who waits goes on at once, or as soon as the others let it, with the clock of the cut.
        """
        self._reset(cut)
        self.bound = -1
        self.waiting = {rank: cut.applied[rank] for rank in self.waiting}
        return self._release()

    def horizon(self, rank: int) -> int:
        """Return the highest clock that the others, and the call, let a worker enter now."""
        return self._bound(self._staying.lowest_without(self.applied[rank]))

    def _bound(self, lowest: int | None = None) -> int:
        """Return the highest clock that may be entered when those that stay have finished the clocks below a lowest."""
        if self._staleness is None:
            return NO_LIMIT
        lowest = self._staying.lowest if lowest is None else lowest
        return min((min(lowest, self.called) if self._calls else lowest) + self._staleness, NO_LIMIT)

    def _move(self, rank: int, applied: int) -> None:
        before, self.applied[rank] = self.applied[rank], applied
        if applied != before:
            self._all.move(before, applied)
            self._staying.move(before, applied)
            self._furthest = max(self._furthest, applied)

    def _release(self, arrived: int | None = None) -> list[Release]:
        bound = self._bound()
        # As long as the bound has not moved, nobody else is concerned.
        concerned = self.waiting if bound != self.bound else () if arrived is None else (arrived,)
        self.bound = bound
        releases = []
        for rank in sorted(rank for rank in concerned if self.waiting[rank] <= bound):
            clock = self.waiting.pop(rank)
            self.entered[rank] = max(clock, self.applied[rank])
            self.furthest = max(self.furthest, self.entered[rank])
            releases.append(Release(rank, clock, self.horizon(rank)))
        return releases

    def _check_nobody_left_early(self) -> None:
        if self._staleness is None or self._left_first >= self._furthest:
            return
        rank = next(rank for rank in self.done if self.applied[rank] == self._left_first)
        raise WorkerError(
            f"rank {rank} returned in clock {self._left_first}, and rank {self.applied.index(self._furthest)} has "
            "finished it: that clock lacks a part. Give all workers the same number of clocks; to end early, let all "
            "end in the same one (worker.once decides for all), or run with staleness=None"
        )


class _Tally:
    """How many stand at each number, and the lowest of them (NO_LIMIT if there are none)."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._counts: dict[int, int] = dict(Counter(numbers))
        self.lowest = min(self._counts, default=NO_LIMIT)

    def move(self, old: int, new: int) -> None:
        self._counts[new] = self._counts.get(new, 0) + 1
        self.lowest = min(self.lowest, new)
        self.remove(old)

    def remove(self, number: int) -> None:
        self._counts[number] -= 1
        if not self._counts[number]:
            del self._counts[number]
            if number == self.lowest:
                self.lowest = min(self._counts, default=NO_LIMIT)

    def lowest_without(self, number: int) -> int:
        """Return the lowest without one of those that stand at a number."""
        if number != self.lowest or self._counts[number] > 1:
            return self.lowest
        return min((other for other in self._counts if other != number), default=NO_LIMIT)
