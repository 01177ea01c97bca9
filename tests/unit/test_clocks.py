"""Clocks against a plain model of the workers, in random orders of events; and each rule by itself."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2.errors import ProtocolError, WorkerError
from ps2.run.clocks import NO_LIMIT, Clocks, Cut

LAST = 6  # every worker finishes so many clocks


@dataclass
class Modelled:
    """A worker as it sees itself.

    Attributes:
        clock: that it is in, or waits before.
        late: clocks whose updates are still under way.
    """

    clock: int = 0
    waits: bool = False
    returned: bool = False
    dead: bool = False
    late: int = 0


class World:
    """Workers that move at random, and the clocks that hold them back; checks the guarantees after each move."""

    def __init__(self, data, workers, staleness, calls):
        self.data, self.staleness, self.calls = data, staleness, calls
        self.clocks = Clocks(workers, staleness, calls=calls)
        self.workers = [Modelled() for _ in range(workers)]
        self.straggler = data.draw(st.integers(0, workers - 1))
        self.called = 0
        self.cut = Cut((0,) * workers, 0)
        for rank in range(workers):
            self.arrive(rank)

    def applied(self, rank):
        worker = self.workers[rank]
        return max(0, worker.clock - worker.late)

    def arrive(self, rank):
        worker = self.workers[rank]
        worker.waits, worker.dead = True, False
        self.let_in(self.clocks.arrive(rank, worker.clock, self.applied(rank)))
        assert self.staleness is not None or not worker.waits, "ASP does not block"

    def let_in(self, releases):
        for release in releases:
            worker = self.workers[release.rank]
            assert worker.waits
            assert release.clock <= release.horizon
            worker.waits, worker.clock = False, release.clock
            if self.staleness is None:
                assert release.horizon == NO_LIMIT
                continue
            for other, its in enumerate(self.workers):
                if not its.returned:
                    assert self.clocks.applied[other] >= release.clock - self.staleness
            if self.calls:
                assert self.called >= release.clock - self.staleness

    def moves(self):
        """What can happen now, by name."""
        result = []
        for rank, worker in enumerate(self.workers):
            if worker.dead:
                result.append(("return from death", rank))
            elif not worker.waits and not worker.returned:
                result.append(("go on", rank))
                # The straggler moves only when nobody else does, more often than not.
                result += [("go on", rank)] * (0 if rank == self.straggler else 8)
                result += [("settle", rank)] * bool(worker.late)
        if self.clocks.due() is not None:
            result.append(("call", self.clocks.due()))
        return result

    def move(self, kind, what):
        if kind == "go on" and self.workers[what].clock == LAST:
            self.workers[what].returned = True
            self.workers[what].late = 0
            self.let_in(self.clocks.leave(what, LAST))
        elif kind == "go on":
            worker = self.workers[what]
            worker.clock += 1
            # What another one needs is never late.
            most = worker.late + 1 if self.staleness is None else min(worker.late + 1, self.staleness)
            worker.late = self.data.draw(st.integers(0, most))
            self.arrive(what)
        elif kind == "return from death":
            self.arrive(what)
        elif kind == "settle":  # some of what is under way has come
            worker = self.workers[what]
            worker.late = self.data.draw(st.integers(0, worker.late - 1))
            self.let_in(self.clocks.progress(what, self.applied(what)))
        else:
            self.called = what + 1
            self.let_in(self.clocks.called_back(what))

    def die(self, rank):
        worker = self.workers[rank]
        if not worker.returned:
            worker.dead, worker.waits, worker.late = True, False, 0
            worker.clock = self.clocks.lose_attempt(rank)

    def checkpoint(self):
        self.cut = Cut(tuple(self.clocks.applied), self.called)

    def roll_back(self):
        """All roll back: who waits is let in, who is in a clock comes when it has finished that, who has left dies."""
        releases = self.clocks.roll_back(self.cut)
        self.called = self.cut.called
        waiting = set(self.clocks.waiting) | {release.rank for release in releases}
        for rank, worker in enumerate(self.workers):
            worker.clock, worker.late = self.cut.applied[rank], 0
            if rank not in waiting:
                worker.dead, worker.waits, worker.returned = True, False, False
        self.let_in(releases)

    def check(self):
        inside = [w.clock for w in self.workers if not (w.waits or w.returned or w.dead)]
        staying = [rank for rank, worker in enumerate(self.workers) if not worker.returned]
        assert self.clocks.unfinished == len(staying)
        assert self.clocks.finished == min(self.clocks.applied)
        assert self.clocks.called <= self.clocks.finished
        if self.staleness is not None and staying:
            assert max(inside, default=0) - min(self.clocks.entered[rank] for rank in staying) <= self.staleness
        assert staying == [] or self.moves(), "somebody can move"


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("staleness", [0, 1, 3, None])
@settings(max_examples=40)
@given(data=st.data())
def test_clocks_when_anything_happens_then_guarantees_hold(staleness, calls, data):
    world = World(data, data.draw(st.integers(1, 4)), staleness, calls)
    mishaps = data.draw(st.lists(st.sampled_from(["die", "checkpoint", "roll back"]), max_size=6))
    while moves := world.moves():
        if mishaps and data.draw(st.booleans()):
            mishap = mishaps.pop()
            if mishap == "die":
                world.die(data.draw(st.integers(0, len(world.workers) - 1)))
            elif mishap == "checkpoint":
                world.checkpoint()
            else:
                world.roll_back()
        else:
            world.move(*data.draw(st.sampled_from(moves)))
        world.check()
    assert world.clocks.returned == list(range(len(world.workers)))
    assert world.clocks.finished == LAST
    assert not calls or world.clocks.called == LAST


def entered(releases):
    return {release.rank: release.clock for release in releases}


def test_bsp_when_the_last_one_arrives_then_all_enter():
    clocks = Clocks(3, 0)
    assert clocks.arrive(0, 1, 1) == []
    assert clocks.arrive(2, 1, 1) == []
    assert entered(clocks.arrive(1, 1, 1)) == {0: 1, 1: 1, 2: 1}


def test_progress_when_late_one_arrives_then_waiters_enter():
    clocks = Clocks(2, 1)
    clocks.arrive(0, 1, 0)
    assert entered(clocks.arrive(1, 1, 1)) == {1: 1}
    assert clocks.arrive(1, 2, 2) == []
    assert clocks.horizon(0) == 3
    assert entered(clocks.progress(0, 1)) == {1: 2}
    assert clocks.progress(0, 1) == clocks.progress(0, 0) == []


def test_progress_when_told_of_current_clock_then_refused():
    clocks = Clocks(2, 1)
    clocks.arrive(0, 1, 1)
    with pytest.raises(ProtocolError, match="rank 0 in clock 1: clock 1 has not ended"):
        clocks.progress(0, 2)


def test_ssp_when_one_is_s_ahead_then_it_waits():
    clocks = Clocks(2, 2)
    assert entered(clocks.arrive(0, 2, 2)) == {0: 2}
    assert clocks.arrive(0, 3, 3) == []
    assert entered(clocks.arrive(1, 1, 1)) == {0: 3, 1: 1}


def test_horizon_when_one_is_slowest_then_is_that_of_others():
    clocks = Clocks(3, 2)
    clocks.arrive(0, 1, 1)
    clocks.arrive(1, 2, 2)
    assert [clocks.horizon(rank) for rank in range(3)] == [2, 2, 3]


def test_horizon_when_call_is_behind_then_is_that_of_call():
    clocks = Clocks(2, 1, calls=True)
    clocks.arrive(0, 1, 1)
    (release,) = clocks.arrive(1, 1, 1)
    assert release.horizon == 1


def test_call_when_all_have_finished_then_holds_workers_s_ahead():
    clocks = Clocks(2, 0, calls=True)
    clocks.arrive(0, 1, 1)
    assert clocks.arrive(1, 1, 1) == []
    assert clocks.due() == 0
    assert entered(clocks.called_back(0)) == {0: 1, 1: 1}
    assert clocks.due() is None


def test_call_in_asp_when_it_is_due_then_holds_back_nobody():
    clocks = Clocks(1, None, calls=True)
    assert entered(clocks.arrive(0, 1, 1)) == {0: 1}
    assert entered(clocks.arrive(0, 2, 2)) == {0: 2}
    assert clocks.due() == 0


def test_arrive_when_updates_are_pending_then_only_applied_count():
    clocks = Clocks(2, 1)
    clocks.arrive(0, 1, 0)
    clocks.arrive(1, 1, 1)
    assert clocks.arrive(1, 2, 2) == []
    assert entered(clocks.arrive(0, 2, 1)) == {0: 2, 1: 2}


def test_arrive_when_own_updates_are_too_late_then_refused():
    with pytest.raises(ProtocolError, match="its updates of clock 0 are not applied"):
        Clocks(2, 1).arrive(0, 2, 0)


def test_arrive_when_later_attempt_skips_finished_then_enters():
    clocks = Clocks(2, 0)
    for clock in (1, 2):
        clocks.arrive(0, clock, clock)
        clocks.arrive(1, clock, clock)
    assert clocks.lose_attempt(0) == 2
    assert entered(clocks.arrive(0, 1, 1)) == {0: 1}
    assert clocks.applied == [2, 2]


def test_arrive_when_said_again_then_is_answered_again():
    clocks = Clocks(1, 0)
    assert clocks.arrive(0, 1, 1) == clocks.arrive(0, 1, 1)


def test_leave_when_others_are_in_earlier_clocks_then_holds_none():
    clocks = Clocks(2, 3)
    clocks.arrive(0, 2, 2)
    assert clocks.leave(0, 2) == []
    assert entered(clocks.arrive(1, 1, 1)) == {1: 1}
    assert entered(clocks.arrive(1, 2, 2)) == {1: 2}


def test_leave_when_others_finished_later_clocks_then_error():
    clocks = Clocks(2, 3)
    clocks.arrive(0, 2, 2)
    with pytest.raises(WorkerError, match="rank 1 returned in clock 0, which rank 0 has finished"):
        clocks.leave(1, 0)


def test_arrive_when_other_returned_in_previous_clock_then_error():
    clocks = Clocks(2, 0)
    clocks.leave(1, 0)
    with pytest.raises(WorkerError, match="rank 1 returned in clock 0"):
        clocks.arrive(0, 1, 1)


def test_leave_in_asp_when_early_then_others_go_on():
    clocks = Clocks(2, None, calls=True)
    clocks.leave(1, 0)
    assert entered(clocks.arrive(0, 5, 5)) == {0: 5}
    assert clocks.due() is None


def test_leave_when_updates_are_pending_then_all_count():
    clocks = Clocks(2, 2)
    clocks.arrive(0, 2, 0)
    clocks.arrive(1, 2, 2)
    clocks.leave(0, 2)
    assert clocks.applied == [2, 2]


def test_arrive_when_the_rank_has_returned_then_is_refused():
    clocks = Clocks(2, 0)
    clocks.leave(0, 0)
    with pytest.raises(ProtocolError, match="the worker has returned"):
        clocks.arrive(0, 0, 0)


def test_roll_back_when_some_returned_then_expected_again():
    clocks = Clocks(2, 0)
    clocks.leave(0, 0)
    clocks.leave(1, 0)
    clocks.roll_back(Cut((0, 0), 0))
    assert clocks.unfinished == 2


def test_roll_back_when_one_waits_then_enters_cut_clock():
    clocks = Clocks(2, 0)
    clocks.arrive(0, 1, 1)
    assert entered(clocks.roll_back(Cut((0, 0), 0))) == {0: 0}
