"""The clocks of a run's workers: which worker may enter which clock (BSP, SSP, ASP). Pure.

The guarantees (stale synchronous parallel; Xing et al., "Strategies and Principles of Distributed Machine Learning on
Big Data", section 3.2), with staleness s, among workers that have not returned:

* no worker is more than s clocks ahead of another;
* when a worker enters clock t, the updates of all clocks up to t - s - 1 are applied, and ``onClock`` has returned for
  these clocks;
* s = 0 is BSP; without s (None, ASP) no worker ever waits.

Each method that records an event returns the workers that it releases. It takes constant time, unless the lowest clock
changes: then all waiting workers are checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ps2.errors import ProtocolError, PS2Error, RecoveryError, RolledBack, WorkerError
from ps2.protocol.journal_file import PendingReports
from ps2.rpc.run_control import Report
from ps2.run.journal import Journal

# The highest clock that a worker may enter under ASP.
NO_LIMIT = 2**62


@dataclass(frozen=True)
class Release:
    """A waiting worker may enter ``clock``; ``horizon`` is the highest clock that other workers let it enter now."""

    rank: int
    clock: int
    horizon: int


@dataclass(frozen=True)
class Cut:
    """The state of a run when a checkpoint is made; see ``Clocks`` for ``applied`` and ``called``.

    Attributes:
        journal: the messages that ``onClock`` had returned.
        reports: the reports of clocks for which ``onClock`` had not been called, by clock and then by rank.
    """

    applied: tuple[int, ...]
    called: int
    journal: Journal = field(default_factory=Journal)
    reports: Mapping[int, Mapping[int, Sequence[Report]]] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """The clock from which another driver resumes: all workers have finished all lower clocks."""
        return min(self.applied)

    def saved(self) -> bytes:
        """Return the messages and the reports of clocks below ``first``, encoded for a checkpoint."""
        if self.called >= self.first:
            return self.journal.to_bytes()
        reports = [
            (rank, report.clock, report.merge, report.value)
            for clock, by_rank in sorted(self.reports.items())
            for rank, reports_of_rank in sorted(by_rank.items())
            for report in reports_of_rank
            if clock < self.first
        ]
        pending = PendingReports(self.called, self.first, tuple(reports))
        return replace(self.journal, pending=pending).to_bytes()


class Clocks:
    """The clocks of all workers. Each worker is in a clock, or waits before its next clock.

    Attributes:
        entered: the current or last clock of each rank.
        furthest: the highest clock that any worker has entered.
        applied: for each rank, the first clock whose updates are not all on the servers.
        called: the first clock for which ``onClock`` has not returned.
        bound: the highest clock that any worker may enter now.
    """

    def __init__(self, workers: int, staleness: int | None, first: int = 0, calls: bool = False) -> None:
        """``calls``: True if ``onClock`` is called after each clock that all workers have finished."""
        self.staleness = staleness
        self._calls = calls
        self.waiting: dict[int, int] = {}  # rank -> the clock that it waits before
        self._reset(Cut((first,) * workers, first))

    def call_from(self, called: int) -> None:
        """Begin calls of ``onClock`` with clock ``called``, because an earlier driver made no later calls.

        Called before any event.
        """
        self._reset(Cut(tuple(self.applied), called))

    def _reset(self, cut: Cut) -> None:
        self.called = cut.called
        self.entered = list(cut.applied)
        self.furthest = max(cut.applied) - 1
        self.applied = list(cut.applied)
        self._returned: set[int] = set()
        self._all_clocks = _Tally(cut.applied)
        self._running_clocks = _Tally(cut.applied)
        self._max_applied = max(cut.applied)
        self._first_return = NO_LIMIT  # the lowest clock in which a worker has returned
        self.bound = self._bound()

    @property
    def finished(self) -> int:
        """The first clock that not all workers have finished, including workers that have returned."""
        return self._all_clocks.lowest

    @property
    def unfinished(self) -> int:
        return len(self.applied) - len(self._returned)

    @property
    def returned(self) -> list[int]:
        return sorted(self._returned)

    def has_returned(self, rank: int) -> bool:
        return rank in self._returned

    def arrive(self, rank: int, clock: int, applied: int) -> list[Release]:
        """Let a worker wait to enter a clock. The event may repeat.

        ``applied`` is the worker's first clock with updates that are not on the servers. It can be lower than in an
        earlier attempt, because a new attempt repeats clocks.
        """
        if rank in self._returned:
            raise ProtocolError(f"rank {rank} before clock {clock}: the worker has returned")
        applied = max(applied, self.applied[rank])
        if applied > max(clock, self.applied[rank]):
            raise ProtocolError(f"rank {rank} before clock {clock}: its updates of clock {clock} cannot be applied yet")
        if self.staleness is not None and applied < clock - self.staleness:
            raise ProtocolError(f"rank {rank} before clock {clock}: its updates of clock {applied} are not applied")
        self._move(rank, applied)
        self.waiting[rank] = clock
        self._check_no_early_return()
        return self._release(rank)

    def progress(self, rank: int, applied: int) -> list[Release]:
        """Record that a worker's updates of clocks below ``applied`` are on the servers. May repeat, or arrive late."""
        if rank in self._returned or applied <= self.applied[rank]:
            return []
        if applied > self.entered[rank]:
            raise ProtocolError(f"rank {rank} in clock {self.entered[rank]}: clock {applied - 1} has not ended")
        self._move(rank, applied)
        return self._release()

    def leave(self, rank: int, clock: int) -> list[Release]:
        """Record that a worker has returned: other workers no longer wait for it. The event may repeat.

        ``clock`` is the worker's current clock; its updates of lower clocks are on the servers.
        """
        if rank in self._returned:
            return []
        self._move(rank, max(clock, self.applied[rank]))
        self._returned.add(rank)
        self._running_clocks.remove(self.applied[rank])
        self._first_return = min(self._first_return, self.applied[rank])
        self.waiting.pop(rank, None)
        self._check_no_early_return()
        return self._release()

    def lose_attempt(self, rank: int) -> int:
        """Record that an attempt has ended without a result; return the first clock of the next attempt."""
        self.waiting.pop(rank, None)
        self.entered[rank] = self.applied[rank]
        return self.applied[rank]

    def due(self) -> int | None:
        """Return the clock for which ``onClock`` must be called; None if no call is due."""
        return self.called if self._calls and self.called < self.finished else None

    def needed(self, clock: int) -> int:
        """Return the first clock that need not be finished, with its call of ``onClock``, before ``clock`` begins."""
        return clock - (self.staleness or 0)

    def called_back(self, clock: int) -> list[Release]:
        """Record that ``onClock`` has returned for a clock."""
        self.called = max(self.called, clock + 1)
        return self._release()

    def roll_back(self, cut: Cut) -> list[Release]:
        """Roll back to a cut: all workers, including those that have returned, resume from ``cut.applied``."""
        self._reset(cut)
        self.bound = -1
        self.waiting = {rank: cut.applied[rank] for rank in self.waiting}
        return self._release()

    def horizon(self, rank: int) -> int:
        """Return the highest clock that the other workers and ``onClock`` let a worker enter now."""
        return self._bound(self._running_clocks.lowest_without(self.applied[rank]))

    def _bound(self, lowest: int | None = None) -> int:
        """Return the highest clock that may be entered if the slowest worker is in ``lowest`` (None: its clock now)."""
        if self.staleness is None:
            return NO_LIMIT
        lowest = self._running_clocks.lowest if lowest is None else lowest
        return min((min(lowest, self.called) if self._calls else lowest) + self.staleness, NO_LIMIT)

    def _move(self, rank: int, applied: int) -> None:
        previous, self.applied[rank] = self.applied[rank], applied
        if applied != previous:
            self._all_clocks.move(previous, applied)
            self._running_clocks.move(previous, applied)
            self._max_applied = max(self._max_applied, applied)

    def _release(self, arrived: int | None = None) -> list[Release]:
        bound = self._bound()
        # If the bound has not changed, only the worker that has just arrived can be released.
        candidates = self.waiting if bound != self.bound else () if arrived is None else (arrived,)
        self.bound = bound
        releases = []
        for rank in sorted(rank for rank in candidates if self.waiting[rank] <= bound):
            clock = self.waiting.pop(rank)
            self.entered[rank] = max(clock, self.applied[rank])
            self.furthest = max(self.furthest, self.entered[rank])
            releases.append(Release(rank, clock, self.horizon(rank)))
        return releases

    def _check_no_early_return(self) -> None:
        if self.staleness is None or self._first_return >= self._max_applied:
            return
        rank = next(rank for rank in self.returned if self.applied[rank] == self._first_return)
        raise WorkerError(
            f"rank {rank} returned in clock {self._first_return}, which rank {self.applied.index(self._max_applied)} "
            "has finished: the updates of that clock are incomplete. Give all workers the same number of clocks; to "
            "end early, let all end in the same clock (worker.once decides for all), or run with staleness=None"
        )


class _Tally:
    """The number of workers at each clock; ``lowest`` is the lowest clock, or NO_LIMIT if there are no workers."""

    def __init__(self, clocks: Iterable[int]) -> None:
        self._counts: dict[int, int] = dict(Counter(clocks))
        self.lowest = min(self._counts, default=NO_LIMIT)

    def move(self, old: int, new: int) -> None:
        self._counts[new] = self._counts.get(new, 0) + 1
        self.lowest = min(self.lowest, new)
        self.remove(old)

    def remove(self, clock: int) -> None:
        self._counts[clock] -= 1
        if not self._counts[clock]:
            del self._counts[clock]
            if clock == self.lowest:
                self.lowest = min(self._counts, default=NO_LIMIT)

    def lowest_without(self, clock: int) -> int:
        """Return the lowest clock of all workers except a worker at ``clock``."""
        if clock != self.lowest or self._counts[clock] > 1:
            return self.lowest
        return min((other for other in self._counts if other != clock), default=NO_LIMIT)


# The maximum number of stored cuts. The fleet rolls back to one of the newest.
MAX_CUTS = 100
# The maximum number of rollbacks to one checkpoint: a run that never reaches the next checkpoint makes no progress.
MAX_ROLLBACKS = 100


class CutLog:
    """The newest cuts, by the path of their checkpoint. Not thread-safe: the run's lock guards it."""

    def __init__(self) -> None:
        self._cuts: dict[str, Cut] = {}
        self._rollbacks: Counter[str] = Counter()

    def __contains__(self, checkpoint: str) -> bool:
        return checkpoint in self._cuts

    def add(self, checkpoint: str, cut: Cut) -> None:
        self._cuts[checkpoint] = cut
        if len(self._cuts) > MAX_CUTS:
            del self._cuts[next(iter(self._cuts))]

    def roll_back(self, checkpoint: str) -> Cut | PS2Error:
        """Return the cut of the checkpoint to which the fleet has rolled back, or the error that ends the run."""
        cut = self._cuts.get(checkpoint)
        if cut is None:
            return RolledBack(f"the fleet rolled back to a checkpoint from before this run: {checkpoint}")
        self._rollbacks[checkpoint] += 1
        if self._rollbacks[checkpoint] > MAX_ROLLBACKS:
            return RecoveryError(
                f"run: servers were lost again and again: the fleet rolled back {self._rollbacks[checkpoint]} times to "
                f"checkpoint {checkpoint} (clock {min(cut.applied)}), and the run never reached the next checkpoint; "
                f"a run resumes from one checkpoint at most {MAX_ROLLBACKS} times"
            )
        return cut
