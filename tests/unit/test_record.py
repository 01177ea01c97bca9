"""What is kept of a training as it goes on, and rolls back."""

from __future__ import annotations

import math

import pytest

from ps2.algorithms.training.record import Record


def step(record, loss=1.5):
    record.add(3, 100)
    record.add_step(loss)


@pytest.fixture
def reports():
    return []


@pytest.fixture
def record(reports):
    record = Record(reports.append)
    record.start_timer()
    return record


def test_step_when_it_ends_then_is_told_with_all_sums_so_far(record, reports):
    step(record)
    step(record, 0.5)
    assert [(r.number, r.objective, r.rows, r.bytes) for r in reports] == [(1, 1.5, 3, 100), (2, 0.5, 6, 200)]
    assert 0 <= reports[0].seconds <= reports[1].seconds


def test_history_when_training_is_over_then_has_all_of_it(record):
    record.objective.append(2.0)
    record.add(3, 100)
    record.add_step(1.0)
    history = record.history()
    assert (history.objective, history.steps, len(history.seconds)) == ([2.0, 1.0], 1, 1)
    assert (history.rows, history.bytes, history.reason) == (3, 100, "all steps were taken")


def test_objective_when_a_step_had_no_row_then_the_one_before(record, reports):
    for value in (math.nan, math.nan, 4.0, math.nan, 3.0, math.nan):
        record.add_objective(value)
    assert record.history().objective == [4.0, 4.0, 4.0, 4.0, 3.0, 3.0]
    assert [report.objective for report in reports][1:] == [4.0, 4.0, 3.0, 3.0]


def test_objective_when_no_step_had_a_row_then_is_not_known(record):
    record.add_objective(math.nan)
    record.add_objective(math.nan)
    assert all(map(math.isnan, record.history().objective))


def test_record_when_the_fleet_rolls_back_then_drops_later_steps(record):
    record.objective.append(3.0)
    for clock in range(5):
        record.enter(clock)
        record.validation.append(float(clock))
        step(record, float(clock))
    record.reason = "over"
    record.enter(2)
    assert record.reason == ""
    assert (record.objective, record.validation, record.rows, record.bytes) == ([3.0, 0.0, 1.0], [0.0, 1.0], 6, 200)
    assert len(record.seconds) == 2
    step(record)
    record.enter(3)
    assert record.history().steps == 3


def test_record_when_the_fleet_rolls_back_to_start_then_is_empty(record):
    for clock in range(3):
        record.enter(clock)
        step(record)
    record.enter(0)
    assert (record.objective, record.seconds, record.rows) == ([], [], 0)


def test_record_when_back_before_first_objective_then_drops_it(record):
    """The objective before the first step comes without a step."""
    record.enter(0)
    record.objective.append(3.0)
    record.enter(1)
    step(record)
    record.enter(0)
    assert (record.objective, record.seconds) == ([], [])


def test_step_when_an_earlier_driver_took_it_then_only_counts(record, reports):
    record.add_earlier_step(0.5, 100.0)
    record.add_step(0.25)
    assert ([report.number for report in reports], reports[0].seconds > 100) == ([2], True)
    assert (record.history().objective, record.history().seconds[0]) == ([0.5, 0.25], 100.0)
