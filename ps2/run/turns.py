"""Model rotation in a worker: the turns that ``worker.rotate`` yields."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from ps2.errors import UsageError
from ps2.run.prefetch import Prefetch
from ps2.run.rotation import IDLE, RotationSchedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")

Fetch = Callable[[int], "Prefetch | Sequence[Prefetch]"]
At = Callable[[int], "tuple[int, int] | None"]

# The end of rotations with ``at``, which end with the run: a clock that no run reaches.
ENDLESS = 1 << 40


class Rotating(Protocol):
    """The attributes of a worker that a rotation uses."""

    @property
    def rank(self) -> int: ...
    @property
    def clock(self) -> int: ...
    @property
    def timeLeft(self) -> float: ...


class Turn:
    """A clock in which no other worker has this worker's block. ``worker.rotate`` yields it.

    Attributes:
        block: the number of the block; -1: ``at`` returned None for the clock.
        rotation: the number of the rotation, from 0.
        number: the number of the turn in its rotation, from 0. Idle turns, which are not yielded, count.
        isLast: True if this worker has no further turn in the rotation.
        begin: the index of the turn's first item of work, at which this worker's last turn on the block stopped.
        left: the fraction of the items that were not done, as ``parts`` or ``done`` counted them.
        workS: the seconds from the beginning of the turn, or from the return of ``pull``, to the end of the last item.
    """

    def __init__(self, worker: Rotating, scheduled: _ScheduledTurn, stops: dict[int, int], fetched: Any) -> None:
        """Not for users."""
        self.block = scheduled.block
        self.rotation = scheduled.rotation
        self.number = scheduled.number
        self.isLast = scheduled.is_last
        self.begin = stops.get(scheduled.block, 0)
        self.left = self.workS = 0.0
        self._began_s = time.monotonic()
        self._worker = worker
        self._stops = stops
        self._fetched = fetched

    def __repr__(self) -> str:
        return f"Turn(block={self.block}, rotation={self.rotation}, number={self.number})"

    def pull(self) -> Any:
        """Return the block's values, which ``fetch`` has requested: an array, or a tuple of arrays.

        Raises:
            UsageError: ``rotate`` was called without ``fetch``.
            PS2Error: any error of ``DCV.pull``.
        """
        if self._fetched is None:
            raise UsageError("turn.pull: expected worker.rotate(..., fetch=...), which requests the values of a block")
        is_single = isinstance(self._fetched, Prefetch)
        values = self._fetched.result() if is_single else tuple(read.result() for read in self._fetched)
        self._began_s = time.monotonic()
        return values

    @property
    def timeLeft(self) -> float:
        """The seconds left of the turn's budget; infinite without a budget."""
        return self._worker.timeLeft

    def expired(self) -> bool:
        """Return whether the turn's budget is spent."""
        return self.timeLeft <= 0

    def parts(self, items: Sequence[T]) -> Iterator[T]:
        """Yield items of this worker's work on the block until the budget is spent.

        All workers wait for a turn that ends late. So no item begins if the rest of the budget is shorter than half of
        this turn's mean time for an item. The first item is the one at which the worker's last turn on the block
        stopped. At least one item is yielded, and each at most once. The next rotation begins with the remaining items;
        the timeline records their fraction.

        Args:
            items: the items, the same in every rotation, such as batches of this worker's tokens of the block's words.
        """
        for count in range(1, len(items) + 1):
            item = items[(self.begin + count - 1) % len(items)]
            self.done(count, len(items))
            yield item
            self.workS = time.monotonic() - self._began_s
            if self.expired() or self.timeLeft < 0.5 * self.workS / count:
                return

    def done(self, count: int, of: int) -> None:
        """Record how much of the work on the block was done, for a caller that does not loop over ``parts``.

        Args:
            count: the number of finished items, counted cyclically from ``begin``. The next turn on the block begins
                after them.
            of: the number of all items, the same in every rotation.
        """
        if not 0 <= count <= of:
            raise UsageError(f"turn.done: expected a count from 0 to {of}, got {count!r}")
        self._stops[self.block] = (self.begin + count) % of if of else 0
        self.left = 1.0 - count / of if of else 0.0
        self.workS = time.monotonic() - self._began_s


@dataclass(frozen=True)
class _ScheduledTurn:
    """A turn of this worker in the schedule. ``block`` is IDLE if the worker has no block in it."""

    rotation: int
    number: int
    block: int
    is_last: bool


NO_TURN = _ScheduledTurn(-1, 0, IDLE, False)


class Rotations:
    """The rotations of one call of ``worker.rotate``."""

    def __init__(
        self,
        worker: Rotating,
        schedule: RotationSchedule,
        seed: int,
        rotations: int,
        fetch: Fetch | None,
        at: At | None = None,
    ) -> None:
        self._worker = worker
        self._at = at
        self._schedule = schedule
        self._seed = seed
        self._rotations = rotations
        self._fetch = fetch
        self._begin = worker.clock
        self._stops: dict[int, int] = {}  # block -> the item at which this worker's last turn on it stopped
        # The next clock, the block of its turn, and the reads of the block that ``fetch`` has started.
        self._ahead: tuple[int, int, Any] = (-1, IDLE, None)
        self._rotation = -1
        self._blocks: NDArray[np.int64] = np.empty(0, np.int64)  # the rotation's blocks, by turn
        self._last = -1  # the rotation's last turn that has a block

    @property
    def clocks(self) -> int:
        """The first clock after the rotations."""
        if self._at is not None:
            return ENDLESS
        return self._begin + self._rotations * self._schedule.turns

    def turn(self, clock: int) -> Turn | None:
        """Return the turn of the entered clock, if any; request the block of the next turn."""
        scheduled = self._scheduled(clock)
        *prefetched, fetched = self._ahead
        if prefetched != [clock, scheduled.block]:  # the first turn, or after a rollback or a change of ``at``
            fetched = self._request(scheduled.block)
        if clock + 1 < self.clocks:
            next_block = self._scheduled(clock + 1).block
            self._ahead = clock + 1, next_block, self._request(next_block)
        if scheduled.block == IDLE and self._at is None:
            return None
        return Turn(self._worker, scheduled, self._stops, fetched)

    def _scheduled(self, clock: int) -> _ScheduledTurn:
        position = divmod(clock - self._begin, self._schedule.turns) if self._at is None else self._at(clock)
        if position is None:
            return NO_TURN
        rotation, number = position
        if rotation != self._rotation:
            self._rotation = rotation
            self._blocks = self._schedule.worker_blocks(self._seed, rotation, self._worker.rank)
            self._last = int(np.flatnonzero(self._blocks != IDLE)[-1])
        return _ScheduledTurn(rotation, number, int(self._blocks[number]), number == self._last)

    def _request(self, block: int) -> Any:
        """Start the reads of a block; return what ``fetch`` returned, or None."""
        if self._fetch is None or block == IDLE:
            return None
        fetched = self._fetch(block)
        reads = fetched if isinstance(fetched, Sequence) else (fetched,)
        if not reads or not all(isinstance(read, Prefetch) for read in reads):
            raise UsageError(
                f"rotate: fetch({block}): expected one or several results of worker.prefetch, got {fetched!r}"
            )
        return fetched


def check_staleness(staleness: int | None, slices: int) -> None:
    """Raise UsageError if a worker could read a block before its last owner's changes are applied."""
    if staleness is None or staleness >= slices:
        limit = slices - 1
        raise UsageError(
            f"rotate: slices={slices}: expected a run with a staleness of at most {limit}, got staleness={staleness}: "
            "a worker could read a block before the changes of its last owner are applied; "
            f"ps.run(..., staleness={limit})"
        )
