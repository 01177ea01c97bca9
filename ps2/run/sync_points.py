"""Points at which all workers synchronise: barriers (``worker.barrier``) and broadcasts (``worker.once``).

Pure: each event returns the ranks that it releases. Passed barriers and published values are kept while a later attempt
of a worker can reach the same point again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from ps2.errors import WorkerError

# A point's phase (2 t before clock t, 2 t + 1 in it), and its number in the phase; see Barrier in run.proto.
Point = tuple[int, int]


@dataclass
class _Barrier:
    """A point that workers pass together. ``waiting`` are the ranks that have arrived and wait."""

    waiting: set[int] = field(default_factory=set)
    passed: bool = False
    call: ClassVar = "barrier"


@dataclass
class _Broadcast:
    """A value that one worker, the ``maker``, computes for all. If its attempt ends, its next attempt computes it."""

    waiting: set[int] = field(default_factory=set)
    maker: int | None = None
    value: bytes | None = None
    call: ClassVar = "once"


K = TypeVar("K", _Barrier, _Broadcast)


class SyncPoints:
    """All points of a run that a worker can still reach."""

    def __init__(self, workers: int, first: int = 0) -> None:
        self._workers = workers
        self._first_clock = first  # points inside earlier clocks have been dropped
        self._phases: dict[int, dict[int, _Barrier | _Broadcast]] = {}
        self.open_barriers: set[Point] = set()  # the barriers that some workers have reached, but not all
        self._point_by_rank: dict[int, Point] = {}  # the point at which a rank waits

    def __len__(self) -> int:
        return sum(map(len, self._phases.values()))

    def arrive(self, rank: int, point: Point) -> set[int]:
        """Record that a worker has reached a barrier; return the ranks that may continue. The event may repeat."""
        barrier = self._point(point, _Barrier, rank)
        if barrier.passed:
            return {rank}
        self._wait(rank, point, barrier)
        self.open_barriers.add(point)
        if len(barrier.waiting) < self._workers:
            return set()
        barrier.passed = True
        self.open_barriers.discard(point)
        return self._release(barrier)

    def request(self, rank: int, point: Point) -> bool:
        """Record that a worker needs the value of a point; return False if it must wait for another worker's value.

        The first worker that asks computes the value.
        """
        broadcast = self._point(point, _Broadcast, rank)
        if broadcast.maker is None:
            broadcast.maker = rank
        if broadcast.value is not None or broadcast.maker == rank:
            return True
        self._wait(rank, point, broadcast)
        return False

    def publish(self, point: Point, value: bytes) -> set[int]:
        """Record a computed value, unless the point has a value; return the ranks that waited for it."""
        broadcast = self._point(point, _Broadcast)
        if broadcast.value is None:
            broadcast.value = value
        return self._release(broadcast)

    def value(self, point: Point) -> bytes | None:
        """Return the value of a point; None: no worker has computed it yet."""
        phase, number = point
        sync = self._phases.get(phase, {}).get(number)
        return sync.value if isinstance(sync, _Broadcast) else None

    def lose_attempt(self, rank: int) -> None:
        """Record that a worker's attempt has ended: the rank no longer waits at a point."""
        point = self._point_by_rank.pop(rank, None)
        if point is not None:
            phase, number = point
            waiting = self._phases[phase][number].waiting
            waiting.discard(rank)
            if not waiting:
                self.open_barriers.discard(point)

    def forget(self, clock: int) -> None:
        """Drop the points inside all clocks below ``clock``: no attempt reaches them again."""
        for past_clock in range(self._first_clock, clock):
            self._phases.pop(2 * past_clock + 1, None)
        self._first_clock = max(self._first_clock, clock)

    def roll_back(self, lowest: int, highest: int) -> set[int]:
        """Roll back to a cut whose workers were in clocks ``lowest`` to ``highest``; return all ranks that waited.

        Points that the workers in the highest clock had passed are kept: other workers still reach them.
        """
        self._phases = {phase: points for phase, points in self._phases.items() if phase <= 2 * highest}
        self._first_clock = min(self._first_clock, lowest)
        waiting_ranks = set(self._point_by_rank)
        for points in self._phases.values():
            for point in points.values():
                point.waiting.clear()
        self.open_barriers.clear()
        self._point_by_rank.clear()
        return waiting_ranks

    def _point(self, point: Point, kind: type[K], rank: int | None = None) -> K:
        phase, number = point
        sync = self._phases.setdefault(phase, {}).setdefault(number, kind())
        if not isinstance(sync, kind):
            raise WorkerError(
                f"rank {rank} calls worker.{kind.call}() {describe_point(point)}, another rank worker.{sync.call}(): "
                "all workers must make these calls in the same order"
            )
        return sync

    def _wait(self, rank: int, point: Point, sync: _Barrier | _Broadcast) -> None:
        sync.waiting.add(rank)
        self._point_by_rank[rank] = point

    def _release(self, sync: _Barrier | _Broadcast) -> set[int]:
        waiting_ranks, sync.waiting = sync.waiting, set()
        for rank in waiting_ranks:
            self._point_by_rank.pop(rank, None)
        return waiting_ranks


def describe_point(point: Point) -> str:
    """Return a point's clock for messages: "in clock 3", "before clock 3"."""
    phase, _ = point
    return f"in clock {phase // 2}" if phase % 2 else f"before clock {phase // 2}"
