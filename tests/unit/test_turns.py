"""Turns of a worker that rotates alone; coordinator and fleet are in this process."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from ps2 import DCV
from ps2.errors import UnavailableError, UsageError
from ps2.run.rotation import schedule
from tests.fakes import FleetInProcess, installed, session_over

BLOCKS = 4


@pytest.fixture
def session():
    with installed(session_over(FleetInProcess())) as session:
        yield session
        session.dispatch.flush()


@pytest.fixture
def vector(session):
    return DCV.dense(BLOCKS, dtype="int64")


@pytest.fixture
def clock_s(monkeypatch):
    """The time, which moves only when a test says so."""
    now_s = [0.0]
    for module in ("clock_loop", "turns"):
        monkeypatch.setattr(f"ps2.run.{module}.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    return now_s


def order(rotations, slices=2):
    return np.concatenate([schedule(0, rotation, 1, BLOCKS, slices)[:, 0] for rotation in range(rotations)]).tolist()


@pytest.mark.parametrize(("staleness", "slices"), [(0, 1), (0, 2), (1, 2), (2, 4)])
def test_rotate_when_alone_then_follows_schedule(start_worker, vector, staleness, slices):
    worker, _ = start_worker(staleness)
    result = []
    for turn in worker.rotate(BLOCKS, 3, slices, fetch=lambda block: worker.prefetch(vector, [block])):
        assert turn.pull().tolist() == [turn.rotation]
        vector.add([1], [turn.block], wait=False)
        result.append(turn.block)
    assert result == order(3, slices)


def test_turn_when_several_reads_were_requested_then_pulls_all(start_worker, vector):
    worker, _ = start_worker(1)
    fetch = lambda block: (worker.prefetch(vector, [block]), worker.prefetch(vector))  # noqa: E731
    for turn in worker.rotate(BLOCKS, fetch=fetch):
        one, all_ = turn.pull()
        assert (one.shape, all_.shape) == ((1,), (BLOCKS,))


def test_turns_when_counted_then_last_of_rotation_is_marked(start_worker):
    worker, _ = start_worker(1)
    turns = [(turn.rotation, turn.number, turn.isLast) for turn in worker.rotate(BLOCKS - 1, 2)]
    last = [turn for turn in turns if turn[2]]
    assert [rotation for rotation, _, _ in last] == [0, 1]
    assert all(turn == max(other for other in turns if other[0] == turn[0]) for turn in last)


def test_rotate_when_loop_was_left_then_next_begins_at_turn_0(start_worker, vector):
    worker, _ = start_worker(1)
    for turn in worker.rotate(BLOCKS, 2):
        vector.add([1], [turn.block], wait=False)
        if worker.clock == 3:
            break
    result = [turn.block for turn in worker.rotate(BLOCKS)]
    assert result == order(1)
    assert (worker.clock, vector.pull().tolist()) == (3 + BLOCKS, [1] * BLOCKS)


def test_attempt_when_earlier_died_in_turn_then_resumes_there(start_worker, vector):
    run, result = None, []
    for attempt in range(2):
        worker, control = start_worker(1, run)
        run = control.run
        for turn in worker.rotate(BLOCKS, 2):
            vector.add([1], [turn.block])
            result.append((worker.clock, turn.block))
            if attempt == 0 and worker.clock == 5:
                break
        worker.end()
        control.die()
    assert result[:6] == list(enumerate(order(2)))[:6]
    assert result[6:] in (list(enumerate(order(2)))[4:], list(enumerate(order(2)))[5:])
    assert vector.pull().tolist() == [2] * BLOCKS


def test_rotate_when_fleet_rolls_back_then_turns_match_clocks(start_worker, vector):
    worker, control = start_worker(1)
    result, back = [], []
    for turn in worker.rotate(BLOCKS, 2, fetch=lambda block: worker.prefetch(vector, [block])):
        result.append((worker.clock, turn.block))
        turn.pull()
        if worker.clock == 2 and not back:
            control.run.add_cut("checkpoint", control.run.cut())
        if worker.clock == 4 and not back:
            back.append(control.run.applied()[0])
            control.run.roll_back(1, "checkpoint")
    clocks = [clock for clock, _ in result]
    assert clocks[:5] == [0, 1, 2, 3, 4]
    assert clocks[5:] in ([*range(1, 8)], [*range(2, 8)])
    assert all(block == order(2)[clock] for clock, block in result)


# -- time control ------------------------------------------------------------------------------------------------------


def test_parts_when_time_is_up_then_rest_is_first_next_rotation(start_worker, clock_s):
    worker, control = start_worker(1)
    finished = []
    for turn in worker.rotate(BLOCKS, 3, budgetS=1.0):
        for part in turn.parts("abcde"):
            clock_s[0] += 0.6
            finished += [part] * (turn.block == 0)
        assert turn.expired()
    assert finished == ["a", "b", "c", "d", "e", "a"]
    assert [times.left for times in control.times[1:]] == [0.6] * 12
    assert [times.block for times in control.times[1:]] == order(3)


@pytest.mark.parametrize(("piece_s", "count"), [(0.3, 3), (0.65, 2), (0.7, 1), (5.0, 1)])
def test_parts_when_budget_ends_then_nearest_piece_is_last(start_worker, clock_s, piece_s, count):
    worker, _ = start_worker(1)
    for turn in worker.rotate(BLOCKS, 1, budgetS=1.0):
        finished = 0
        for _ in turn.parts("abcde"):
            clock_s[0] += piece_s
            finished += 1
        assert finished == count


def test_parts_when_budget_is_auto_then_run_decides(start_worker, clock_s):
    """The first turn tells how long a block takes; then another worker is four times as fast."""
    worker, control = start_worker(1)
    lefts, budgets = [], []
    for turn in worker.rotate(BLOCKS, 2, budgetS="auto"):
        budgets.append(turn.timeLeft)
        for _ in turn.parts("abcd"):
            clock_s[0] += 1.0
        lefts.append(turn.left)
        if len(lefts) == 4:
            control.run._run.turn_budget = SimpleNamespace(seconds=1.0, add=lambda *_: None)
    assert budgets[:5] == [math.inf, *[pytest.approx(4.0, rel=1e-2)] * 3, 1.0]
    assert lefts == [0.0] * 4 + [0.75] * 4
    assert [times.work for times in control.times[1:]] == [4.0] * 4 + [1.0] * 4


def test_parts_when_there_is_no_budget_then_each_comes_once(start_worker):
    worker, control = start_worker(1)
    for turn in worker.rotate(BLOCKS, 2):
        assert list(turn.parts([1, 2, 3])) == [1, 2, 3]
        assert list(turn.parts([])) == []
    assert not any(times.left for times in control.times)


def test_rotate_when_caller_schedules_then_its_turns_come(start_worker, vector):
    worker, _ = start_worker(1)
    positions = [None, (0, 0), (0, 1), None, (2, 3), (0, 1)]
    asked, result = [], []

    def at(clock):
        asked.append((worker.clock, clock))
        return positions[clock]

    for turn in worker.rotate(BLOCKS, at=at, fetch=lambda block: worker.prefetch(vector, [block])):
        result.append((turn.rotation, turn.number, turn.block))
        if turn.block >= 0:
            assert turn.pull().tolist() == [0]
        if len(result) == 5:
            break
    blocks = [schedule(0, rotation, 1, BLOCKS)[:, 0] for rotation in range(3)]
    assert result == [*[(-1, 0, -1), (0, 0, blocks[0][0]), (0, 1, blocks[0][1]), (-1, 0, -1), (2, 3, blocks[2][3])]]
    assert asked == [(clock, asks) for clock in range(5) for asks in (clock, clock + 1)]


def test_done_when_kernel_ends_early_then_next_turn_starts_after(start_worker):
    worker, _ = start_worker(1)
    begins = []
    for turn in worker.rotate(BLOCKS, 3):
        begins += [turn.begin] * (turn.block == 2)
        turn.done(7, 10)
    assert begins == [0, 7, 4]


@pytest.mark.parametrize("count", [-1, 11])
def test_done_when_it_is_more_than_there_is_then_it_is_refused(start_worker, count):
    worker, _ = start_worker(1)
    with pytest.raises(UsageError, match="expected a count from 0 to 10"):
        next(iter(worker.rotate(BLOCKS))).done(count, 10)


# -- what goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("staleness", "arguments", "message"),
    [
        (None, {}, "slices=2: expected a run with a staleness of at most 1, got staleness=None"),
        (2, {}, "slices=2: expected a run with a staleness of at most 1, got staleness=2"),
        (1, {"slices": 1}, "slices=1: expected a run with a staleness of at most 0, got staleness=1"),
        (1, {"rotations": -1}, "rotations: expected a number that is not negative, got -1"),
        (1, {"rotations": 1.5}, "rotations: expected a number"),
        (1, {"blocks": 1}, "at least one for each of 2 slices, got 1"),
        (1, {"at": 3}, "rotate: at: expected a function of a clock, got 3"),
        (1, {"budgetS": 0}, "rotate: budgetS: expected a positive number"),
        (1, {"budgetS": "some"}, "rotate: budgetS: expected a positive number of seconds, 'auto', got 'some'"),
        (1, {"fetch": 3}, "fetch: expected a function"),
    ],
)
def test_rotate_when_arguments_are_invalid_then_is_refused(start_worker, staleness, arguments, message):
    worker, _ = start_worker(staleness)
    with pytest.raises(UsageError, match=message):
        worker.rotate(**{"blocks": BLOCKS, **arguments})


@pytest.mark.parametrize("fetched", [None, (), [3], "block"])
def test_rotate_when_fetch_returns_no_reads_then_it_is_refused(start_worker, fetched):
    worker, _ = start_worker(1)
    with pytest.raises(UsageError, match=r"fetch\(\d\): expected one or several results of worker.prefetch"):
        next(iter(worker.rotate(BLOCKS, fetch=lambda block: fetched)))


def test_pull_when_nothing_was_asked_for_then_it_is_refused(start_worker):
    worker, _ = start_worker(1)
    with pytest.raises(UsageError, match=r"expected worker.rotate.*fetch="):
        next(iter(worker.rotate(BLOCKS))).pull()


def test_rotate_when_inside_clock_loop_then_is_refused(start_worker):
    worker, _ = start_worker(1)
    for _ in worker.clocks(1):
        turns = worker.rotate(BLOCKS)
        with pytest.raises(UsageError, match="do not nest"):
            next(turns)


def test_rotate_when_coordinator_is_silent_then_turns_continue(start_worker, vector, monkeypatch):
    worker, control = start_worker(1)

    def fail(*_):
        raise UnavailableError("refused")

    monkeypatch.setattr(control, "poll_progress", fail)
    for turn in worker.rotate(BLOCKS, 2, fetch=lambda block: worker.prefetch(vector, [block])):
        assert turn.pull().tolist() == [turn.rotation]
        vector.add([1], [turn.block], wait=False)


def test_threads_when_the_rotations_are_over_then_they_are_gone(start_worker, vector):
    worker, _ = start_worker(1)
    with worker._loop.prefetching():
        for _ in worker.rotate(BLOCKS, 2, fetch=lambda block: worker.prefetch(vector, [block])):
            pass
    assert not [thread.name for thread in threading.enumerate() if thread.name in ("ps2-progress", "ps2-prefetch")]
