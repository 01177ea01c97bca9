"""A worker's half of model rotation: the turns that ``worker.rotate`` yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ps2.errors import UsageError
from ps2.run.prefetch import Prefetch
from ps2.run.rotation import IDLE, Ring

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ps2.run.worker import Worker

T = TypeVar("T")

Fetch = Callable[[int], "Prefetch | Sequence[Prefetch]"]


class Turn:
    """One block, and the time in which this worker alone has it. Yielded by ``worker.rotate``.

    Attributes:
        block: its number.
        rotation: from 0.
        number: of the turn in its rotation, from 0; idle turns, which are not yielded, count.
        isLast: this worker has no other turn in the rotation.
        begin: with which of its pieces of work on the block to begin: where this worker's last turn on it stopped.
        left: the share of these pieces that was not done, as far as ``parts`` or ``done`` knows.
    """

    def __init__(self, worker: Worker, place: _Place, stops: dict[int, int], fetched: Any) -> None:
        """Not for users."""
        self.block = place.block
        self.rotation = place.rotation
        self.number = place.number
        self.isLast = place.is_last
        self.begin = stops.get(place.block, 0)
        self.left = 0.0
        self._worker = worker
        self._stops = stops
        self._fetched = fetched

    def __repr__(self) -> str:
        return f"Turn(block={self.block}, rotation={self.rotation}, number={self.number})"

    def pull(self) -> Any:
        """Return what the block holds: what ``fetch`` has asked for, one array or a tuple of them.

        Raises:
            UsageError: ``rotate`` was not given ``fetch``.
            PS2Error: what ``pull`` raises.
        """
        if self._fetched is None:
            raise UsageError("turn.pull: worker.rotate was given no fetch=, which says what a block holds")
        if isinstance(self._fetched, Prefetch):
            return self._fetched.result()
        return tuple(part.result() for part in self._fetched)

    @property
    def timeLeft(self) -> float:
        """Seconds left of the turn's budget, 0 when it is spent; infinite without one."""
        return self._worker.timeLeft

    def expired(self) -> bool:
        """Tell whether the turn's budget is spent."""
        return self.timeLeft <= 0

    def parts(self, items: Sequence[T]) -> Iterator[T]:
        """Yield pieces of this worker's work on the block, from where its last turn on it stopped, until time is up.

        At least one, and each once at most. What is left comes first in the next rotation; the timeline has its share.

        Args:
            items: the same in every rotation, such as batches of the tokens that this worker has of the block's words.
        """
        for count in range(1, len(items) + 1):
            item = items[(self.begin + count - 1) % len(items)]
            self.done(count, len(items))
            yield item
            if self.expired():
                return

    def done(self, count: int, of: int) -> None:
        """Note how much of this worker's work on the block was done; for who does not loop over ``parts``.

        Args:
            count: pieces of work, those from ``begin`` on, round.
            of: how many there are: the same in every rotation. The next turn on the block begins at the piece after.
        """
        if not 0 <= count <= of:
            raise UsageError(f"turn.done: expected a count from 0 to {of}, got {count!r}")
        self._stops[self.block] = (self.begin + count) % of if of else 0
        self.left = 1.0 - count / of if of else 0.0


@dataclass(frozen=True)
class _Place:
    """A turn, as the schedule has it.

    Attributes:
        block: IDLE if there is none.
    """

    rotation: int
    number: int
    block: int
    is_last: bool


class Rotations:
    """Some rotations of one worker, from a clock on."""

    def __init__(self, worker: Worker, ring: Ring, seed: int, rotations: int, fetch: Fetch | None) -> None:
        self._worker = worker
        self._ring = ring
        self._seed = seed
        self._rotations = rotations
        self._fetch = fetch
        self._begin = worker.clock
        self._stops: dict[int, int] = {}  # by block: where this worker's last turn on it stopped
        self._ahead: tuple[int, Any] = (-1, None)  # clock, and what was asked for then
        self._rotation = -1
        self._blocks: NDArray[np.int64] = np.empty(0, np.int64)  # of that rotation, by turn
        self._last = -1  # the last turn that has a block

    @property
    def clocks(self) -> int:
        """The clock that they end before."""
        return self._begin + self._rotations * self._ring.turns

    def turn(self, clock: int) -> Turn | None:
        """Return the turn of a clock that was entered, if it has one; ask for what the next one needs."""
        place = self._place(clock)
        asked, fetched = self._ahead
        if asked != clock:  # the first turn, or the fleet has gone back
            fetched = self._ask(place.block)
        if clock + 1 < self.clocks:
            self._ahead = clock + 1, self._ask(self._place(clock + 1).block)
        return None if place.block == IDLE else Turn(self._worker, place, self._stops, fetched)

    def _place(self, clock: int) -> _Place:
        rotation, number = divmod(clock - self._begin, self._ring.turns)
        if rotation != self._rotation:
            self._rotation = rotation
            self._blocks = self._ring.turns_of(self._seed, rotation, self._worker.rank)
            self._last = int(np.flatnonzero(self._blocks != IDLE)[-1])
        return _Place(rotation, number, int(self._blocks[number]), number == self._last)

    def _ask(self, block: int) -> Any:
        if self._fetch is None or block == IDLE:
            return None
        fetched = self._fetch(block)
        parts = fetched if isinstance(fetched, Sequence) else (fetched,)
        if not parts or not all(isinstance(part, Prefetch) for part in parts):
            raise UsageError(
                f"rotate: fetch({block}): expected what worker.prefetch returns, or several, got {fetched!r}"
            )
        return fetched


def check_staleness(staleness: int | None, slices: int) -> None:
    """Raise UsageError if a worker might read a block before all that its last owner wrote is applied."""
    if staleness is None or staleness >= slices:
        most = slices - 1
        raise UsageError(
            f"rotate: slices={slices}: expected a run with a staleness of at most {most}, got staleness={staleness}: a "
            f"block would go to its next owner before its last one's changes are applied; ps.run(..., staleness={most})"
        )
