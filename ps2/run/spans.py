"""The driver's measurements of a run: the durations of its own work, and the times of workers' joins and returns.

Times are in seconds since the run began, unless they are durations.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ps2.rpc.run_control import ClockTimes, StartTimes
from ps2.run.rank_leases import RankLease

# The maximum number of stored calls. A wait of a worker rarely includes more.
MAX_CALLS = 256

Call = Literal["on_clock", "checkpoint"]


@dataclass
class Preparation:
    """The driver's work between the call of ``ps.run`` and the start of the Spark job, by field of ``ClockTimes``."""

    began_s: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.last_s = self.began_s

    def lap(self, kind: Literal["spark", "coordinator", "checkpoint"]) -> None:
        """Add the time since the last lap to ``seconds[kind]``."""
        lap_began_s, self.last_s = self.last_s, time.monotonic()
        self.seconds[kind] = self.seconds.get(kind, 0.0) + self.last_s - lap_began_s


class _Span(NamedTuple):
    """A call of ``onClock`` or of a checkpoint."""

    call: Call
    began_s: float
    ended_s: float


@dataclass
class Spans:
    """The driver's measurements of one run. The run's lock guards it.

    Attributes:
        before: the durations of the driver's work before it submitted the Spark job, by field of ``ClockTimes``.
        submitted_s: the time at which the driver submitted the job.
        over_s: the time at which all workers were allowed to end; None: workers still run.
        ended_s: the time at which the Spark job ended; None: the job runs.
    """

    before: dict[str, float] = field(default_factory=dict)
    submitted_s: float = 0.0
    over_s: float | None = None
    ended_s: float | None = None

    def __post_init__(self) -> None:
        self._calls: deque[_Span] = deque(maxlen=MAX_CALLS)
        self._attempts: dict[int, int] = {}  # rank -> the attempt that joined last
        self._lost_s: dict[int, float] = {}  # rank -> the time at which its last attempt was lost
        self._returned_s: dict[int, float] = {}  # rank -> the time at which its function returned

    def record_call(self, call: Call, began_s: float, ended_s: float) -> None:
        """Record a call in the driver between two clocks, or after the last clock."""
        self._calls.append(_Span(call, began_s, ended_s))

    def calls_within(self, from_s: float, to_s: float) -> tuple[float, float]:
        """Return the seconds of ``onClock``, and of checkpoints, between two times."""
        totals: dict[Call, float] = {"on_clock": 0.0, "checkpoint": 0.0}
        for call, began_s, ended_s in reversed(self._calls):
            if ended_s <= from_s:
                break
            totals[call] += max(0.0, min(ended_s, to_s) - max(began_s, from_s))
        return totals["on_clock"], totals["checkpoint"]

    def joined(self, lease: RankLease, clock: int, start: StartTimes, now_s: float) -> ClockTimes | None:
        """Return a rank's times before its attempt joined; None if this attempt had joined on another connection.

        The age of the Python process, or of its daemon, counts as imports if the process was started for this run.
        """
        rank = lease.rank
        if self._attempts.get(rank) == lease.attempt:
            return None
        is_first = rank not in self._attempts
        self._attempts[rank] = lease.attempt
        waited_s = max(0.0, now_s - (self.submitted_s if is_first else self._lost_s.get(rank, now_s)))
        connect_s = min(start.connect_s, waited_s)
        imports_s = max(age_s for age_s in (0.0, start.python_s, start.daemon_s) if age_s + connect_s <= waited_s)
        durations = {"imports": imports_s, "connect": connect_s, "spark": waited_s - imports_s - connect_s}
        for name, seconds in (self.before if is_first else {}).items():
            durations[name] = durations.get(name, 0.0) + seconds
        began_s = max(0.0, now_s - sum(durations.values()))
        return _outside(clock, began_s, **durations)

    def record_loss(self, rank: int, now_s: float) -> None:
        self._lost_s[rank] = now_s

    def record_return(self, rank: int, now_s: float) -> None:
        self._returned_s[rank] = now_s

    def roll_back(self) -> None:
        """Record a rollback of the fleet, which drops the workers' results."""
        self._returned_s.clear()
        self.over_s = None

    def times_after_return(self, clocks: Sequence[int], now_s: float) -> list[list[ClockTimes]]:
        """Return the times of each rank from its return to ``now_s``; empty if the run has failed or was stopped."""
        if self.over_s is None or len(self._returned_s) < len(clocks):
            return [[] for _ in clocks]
        last_s = max(self._returned_s.values())
        over_s = max(last_s, self.over_s)
        ended_s = min(now_s, max(over_s, over_s if self.ended_s is None else self.ended_s))
        on_clock, checkpoint = self.calls_within(last_s, over_s)
        coordinator_s = max(0.0, over_s - last_s - on_clock - checkpoint)
        result = []
        for rank, clock in enumerate(clocks):
            returned_s = self._returned_s[rank]
            calls = {"on_clock": on_clock, "checkpoint": checkpoint, "coordinator": coordinator_s}
            waiting = _outside(clock, returned_s, wait=last_s - returned_s, **calls)
            ending = _outside(clock, over_s, spark=ended_s - over_s, coordinator=now_s - ended_s)
            result.append([waiting, ending])
        return result


def _outside(clock: int, began_s: float, wait: float = 0.0, **durations: Any) -> ClockTimes:
    return ClockTimes(clock, began_s, 0.0, 0.0, 0.0, wait, outside=True, **durations)
