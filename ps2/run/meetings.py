"""Points in the workers' program where they meet: barriers, and what one does for all. Pure: events in, ranks out.

Barriers that were passed and values that were made stay known as long as a later attempt may come by once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ps2.errors import WorkerError

# Phase (2 t before clock t, 2 t + 1 in it) and number in it; see Barrier in run.proto.
Point = tuple[int, int]


@dataclass
class _Meeting:
    """What happens at one point.

    Attributes:
        kind: what the first one that came called.
        here: who waits at the barrier, or for the value.
        maker: who makes the value; if its attempt ends, its next one does.
    """

    kind: str = ""
    here: set[int] = field(default_factory=set)
    passed: bool = False
    maker: int | None = None
    value: bytes | None = None


class Meetings:
    """All points of a run that somebody may come by."""

    def __init__(self, workers: int, first: int = 0) -> None:
        """``first``: the clock that the run begins with."""
        self._workers = workers
        self._forgotten = first
        self._phases: dict[int, dict[int, _Meeting]] = {}
        self._open: set[Point] = set()  # barriers that somebody waits at
        self._waits_at: dict[int, Point] = {}

    def __len__(self) -> int:
        """How many points are known."""
        return sum(len(meetings) for meetings in self._phases.values())

    @property
    def open_barriers(self) -> set[Point]:
        """Barriers that some have come to, and others not yet."""
        return self._open

    def come(self, rank: int, point: Point) -> set[int]:
        """A worker has come to a barrier, or says so again; return who may go on now: all, it alone, or nobody.

        Raises:
            WorkerError: another one calls ``once`` there.
        """
        meeting = self._meet(rank, point, "barrier")
        if meeting.passed:
            return {rank}
        self._wait(rank, point)
        self._open.add(point)
        if len(meeting.here) < self._workers:
            return set()
        meeting.passed = True
        self._open.discard(point)
        return self._let_go(meeting)

    def ask(self, rank: int, point: Point) -> bool:
        """A worker wants the value of a point; return whether it need not wait: it is known, or for this rank to make.

        The first one that asks makes it.

        Raises:
            WorkerError: another one is at a barrier there.
        """
        meeting = self._meet(rank, point, "once")
        if meeting.maker is None:
            meeting.maker = rank
        if meeting.value is not None or meeting.maker == rank:
            return True
        self._wait(rank, point)
        return False

    def made(self, point: Point, value: bytes) -> set[int]:
        """A value has been made; the first one counts. Return who waited for it."""
        meeting = self._at(point)
        if meeting.value is None:
            meeting.value = value
        return self._let_go(meeting)

    def value(self, point: Point) -> bytes | None:
        return self._at(point).value

    def gone(self, rank: int) -> None:
        """A worker's attempt has ended: it waits nowhere."""
        point = self._waits_at.pop(rank, None)
        if point is not None:
            here = self._at(point).here
            here.discard(rank)
            if not here:
                self._open.discard(point)

    def forget(self, clock: int) -> None:
        """Forget the points within the clocks below: nobody comes by again."""
        for below in range(self._forgotten, clock):
            self._phases.pop(2 * below + 1, None)
        self._forgotten = max(self._forgotten, clock)

    def roll_back(self, lowest: int, highest: int) -> set[int]:
        """The fleet went back to a moment at which workers stood between these clocks; return who waited anywhere.

        What those that stood highest have passed stays known: the others come by again, they do not.
        """
        self._phases = {phase: meetings for phase, meetings in self._phases.items() if phase <= 2 * highest}
        self._forgotten = min(self._forgotten, lowest)
        waited = set(self._waits_at)
        for meeting in self._all():
            meeting.here.clear()
        self._open.clear()
        self._waits_at.clear()
        return waited

    def _meet(self, rank: int, point: Point, kind: str) -> _Meeting:
        meeting = self._at(point)
        if meeting.kind not in ("", kind):
            raise WorkerError(
                f"rank {rank} calls worker.{kind}() {where(point)} where another one calls worker.{meeting.kind}(): "
                "all workers must make these calls in the same order"
            )
        meeting.kind = kind
        return meeting

    def _at(self, point: Point) -> _Meeting:
        phase, number = point
        return self._phases.setdefault(phase, {}).setdefault(number, _Meeting())

    def _all(self) -> Iterator[_Meeting]:
        for meetings in self._phases.values():
            yield from meetings.values()

    def _wait(self, rank: int, point: Point) -> None:
        self._at(point).here.add(rank)
        self._waits_at[rank] = point

    def _let_go(self, meeting: _Meeting) -> set[int]:
        here, meeting.here = meeting.here, set()
        for rank in here:
            self._waits_at.pop(rank, None)
        return here


def where(point: Point) -> str:
    phase, _ = point
    return f"in clock {phase // 2}" if phase % 2 else f"before clock {phase // 2}"
