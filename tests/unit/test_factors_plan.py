"""What each clock of a factorization is for, and what follows from the workers' reports."""

from __future__ import annotations

import math

import pytest

from ps2.algorithms.factors.following import ASKS, HELD_LOSS, HELD_WEIGHT, LOSS, WEIGHT
from ps2.algorithms.factors.plan import HALVED, LAST, RESTART, START, Kind, Lengths, Place, Plan
from ps2.algorithms.factors.progress import Progress, Stopping
from ps2.errors import UsageError

LENGTHS = Lengths(turns=2, iterations=5, save_interval=2, evaluates=False)


def places(plan, first, count):
    return [(place.kind.name[0], place.iteration) for place in map(plan.place, range(first, first + count))]


def told(progress, clocks, report, asks=()):
    """What a driver tells in some clocks, by clock."""
    found = {clock: progress.hear(clock, {ASKS: int(clock in asks), **report(clock)}) for clock in clocks}
    return {clock: message for clock, message in found.items() if message}


def test_plan_when_nothing_fails_then_saves_come_at_intervals():
    expected = [("B", 0), ("T", 1), ("T", 1), ("T", 2), ("T", 2), ("C", 2), ("T", 3), ("T", 3), ("T", 4), ("T", 4)]
    expected += [("C", 4), ("T", 5), ("T", 5), ("C", 5), ("I", 5), ("I", 5)]
    assert places(Plan(LENGTHS), START, len(expected)) == expected


def test_plan_when_it_evaluates_then_each_iteration_closes():
    plan = Plan(Lengths(2, 2, 0, evaluates=True))
    assert places(plan, START, 8) == [*[("B", 0), ("T", 1), ("T", 1), ("C", 1), ("T", 2), ("T", 2), ("C", 2), ("I", 2)]]
    assert not plan.saves(1)
    assert plan.saves(2)


def test_plan_when_restarted_then_goes_on_from_saved_iteration():
    plan = Plan(LENGTHS)
    plan.read({RESTART: [START + 8, 2]})
    assert places(plan, START + 6, 8) == [
        *[("T", 3), ("T", 3), ("B", 2), ("T", 3), ("T", 3), ("T", 4), ("T", 4), ("C", 4)]
    ]


def test_plan_when_last_iteration_is_told_then_it_is_saved():
    plan = Plan(LENGTHS)
    plan.read({LAST: 3})
    assert places(plan, START + 6, 4) == [("T", 3), ("T", 3), ("C", 3), ("I", 3)]


@pytest.mark.parametrize("interval", [0, 1, 2, 3, 7])
def test_generations_when_saves_follow_then_they_alternate(interval):
    lengths = Lengths(2, 6, interval, False)
    plan = Plan(lengths)
    saved = [0, *(iteration for iteration in range(1, 7) if plan.saves(iteration))]
    generations = [plan.generation(iteration) for iteration in saved]
    assert generations == [at % 2 for at in range(len(saved))]


def test_plan_when_iteration_is_one_turn_then_is_refused():
    with pytest.raises(UsageError, match="2 at least, got 1"):
        Lengths(1, 5, 2, False)


def test_progress_when_worker_asks_then_all_restart_from_save():
    progress = Progress(LENGTHS, Stopping())
    # Clock 8 is in iteration 3: the save after iteration 2 is complete.
    messages = told(progress, range(START, START + 9), lambda clock: {LOSS: 4.0, WEIGHT: 1.0}, asks={START + 6})
    assert messages == {START + 6: {RESTART: [START + 8, 2]}}
    assert len(progress.results) == progress.saved == 2
    assert progress.plan.place(START + 8) == Place(Kind.BEGIN, 2)
    told(progress, range(START + 9, START + 17), lambda clock: {LOSS: 4.0, WEIGHT: 1.0})
    assert progress.is_over
    assert [result.objective for result in progress.results] == [2.0] * 5


def test_progress_when_save_is_partial_then_earlier_one_counts():
    progress = Progress(LENGTHS, Stopping())
    closing = START + 10
    messages = told(progress, range(START, closing + 1), lambda clock: {}, asks={closing})
    assert messages == {closing: {RESTART: [closing + 2, 2]}}


def test_progress_when_worker_asks_twice_then_restarts_once():
    progress = Progress(LENGTHS, Stopping())
    messages = told(progress, range(START, START + 6), lambda clock: {}, asks={START + 2, START + 3})
    assert messages == {START + 2: {RESTART: [START + 4, 0]}}


@pytest.mark.parametrize(("tolerance", "end"), [(0.0, 6), (0.2, 5)])
def test_progress_when_validation_is_stuck_then_next_is_last(tolerance, end):
    progress = Progress(Lengths(2, 20, 0, True), Stopping(tolerance, patience=2))
    errors = [3.0, 2.0, 1.9, 1.95, 1.96, 1.97, 1.98]

    def report(clock):
        iteration = progress.plan.place(clock).iteration
        return {HELD_LOSS: errors[iteration - 1] ** 2, HELD_WEIGHT: 1.0} if iteration <= len(errors) else {}

    (message,) = told(progress, range(START, START + 3 * end + 1), report).values()
    assert message == {LAST: end}
    assert progress.stopped_early
    assert progress.is_over


def test_progress_when_diverged_then_begins_anew_halved():
    progress = Progress(LENGTHS, Stopping(), most=10.0)
    rmse = {1: 2.0, 2: 11.0}

    def report(clock):
        return {LOSS: rmse.get(progress.plan.place(clock).iteration, 1.0) ** 2, WEIGHT: 1.0}

    messages = told(progress, range(START, START + 6), report)
    assert messages == {START + 5: {RESTART: [START + 7, 0], HALVED: 1}}
    assert (progress.plan.halvings, progress.saved, progress.results) == (1, 0, [])
    assert places(progress.plan, START + 7, 3) == [("B", 0), ("T", 1), ("T", 1)]


def test_progress_when_half_step_diverges_too_then_fails():
    progress = Progress(Lengths(2, 1, 0, False), Stopping())
    told(progress, range(START, START + 60), lambda clock: {LOSS: math.nan, WEIGHT: 1.0})
    assert progress.halvings == 10
    assert "iteration 1: the RMSE is nan: the training has diverged" in progress.failure


def test_plan_when_best_is_kept_then_no_save_overwrites_it():
    progress = Progress(Lengths(2, 7, 0, True, keeps_best=True), Stopping(patience=3))
    errors, held = [3.0, 1.0, 2.0, 0.5, 0.7, 0.8, 0.9], {}
    for clock in range(START, START + 1 + 3 * 7):
        place = progress.plan.place(clock)
        if place.kind is Kind.CLOSE:
            held[progress.plan.generation(place.iteration)] = place.iteration
            assert progress.best is None or progress.best in held.values()
            assert place.iteration == 1 or place.iteration - 1 in held.values()
        error = errors[place.iteration - 1] if place.kind is Kind.CLOSE else 0.0
        progress.hear(clock, {HELD_LOSS: error**2, HELD_WEIGHT: float(error > 0)})
    assert progress.best == held[progress.plan.generation(4)] == 4


@pytest.mark.parametrize(("iterations", "is_over"), [(5, True), (7, False), (4, True)])
def test_progress_when_next_driver_wants_more_then_goes_on(iterations, is_over):
    progress = Progress(LENGTHS, Stopping())
    told(progress, range(START, START + 14), lambda clock: {LOSS: 4.0, WEIGHT: 1.0})
    assert progress.is_over
    progress.go_on_to(iterations)
    assert progress.is_over == is_over
    message = progress.hear(START + 14, {ASKS: 1.0})
    if is_over:
        assert message == {}
        return
    assert message == {RESTART: [START + 16, 5], LAST: iterations}
    told(progress, range(START + 15, START + 16 + 7), lambda clock: {LOSS: 4.0, WEIGHT: 1.0})
    assert progress.is_over
    assert len(progress.results) == progress.saved == iterations
