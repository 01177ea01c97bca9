"""Driver and worker of coordinate descent, with the fleet in this process: restarts, and the best iteration."""

from dataclasses import replace

import numpy as np
import pytest
from descents import dealt, replayed_descent
from factors_training import COLUMNS, OPTIONS

from ps2.algorithms.factors.ccd_solver import CcdSolver
from ps2.algorithms.factors.driver import Driver, Problem
from ps2.algorithms.training.checkpoint_names import UNNAMED
from ps2.protocol.plain_data import decode
from ps2.run.message import STOP
from tests.fakes import FleetInProcess, installed, session_over

CCD = replace(OPTIONS, solver="ccd", rank=6)
KINDS = [{"biases": True}, {"implicit": True}]


@pytest.fixture(autouse=True)
def session():
    with installed(session_over(FleetInProcess())) as session:
        yield session
        session.dispatch.flush()


class Read:
    def __init__(self, rows):
        self._rows = rows

    def result(self):
        return self._rows


class OnlyWorker:
    """A run's only worker, and the clocks of its driver.

    Args:
        lost: clocks before which the worker loses what it holds.
    """

    rank, workers = 0, 1

    def __init__(self, driver, lost):
        self._driver, self._lost, self._sent, self._reports, self.epoch = driver, lost, [], [], 0

    def clocks(self, end):
        for clock in range(1, end):
            self.epoch += clock in self._lost
            yield clock
            reports, self._reports = self._reports, []
            said = self._driver.on_clock(clock, reports)
            if said is STOP:
                return
            if said is not None:
                self._sent.append(decode(said.encoded))

    @property
    def messages(self):
        sent, self._sent = self._sent, []
        return sent

    def report(self, value):
        self._reports.append(value)

    def prefetch(self, matrix, columns, ahead):
        return Read(matrix.pull(columns=columns))

    def barrier(self):
        pass


def run(options, columns=COLUMNS, lost=()):
    survey, deal, rows = dealt(options, columns)
    driver = Driver(Problem(survey, deal, options), CcdSolver, UNNAMED, lambda step: None)
    driver.begin()
    worker = OnlyWorker(driver, lost)
    driver.solver.program()(worker, driver.solver.reader()(worker, rows[0]))
    return driver.fitted()


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("lost", [(), (2, 5)], ids=str)
def test_descent_when_worker_restarts_then_matches_serial(kind, lost):
    options = replace(CCD, **kind)
    found = run(options, lost=lost)
    users, items = replayed_descent(options, workers=1)
    np.testing.assert_array_equal(found.user_factors, users)
    np.testing.assert_array_equal(found.item_factors, items)
    assert found.history.steps == options.iterations


def test_descent_when_validation_is_stuck_then_best_vectors():
    options, columns = replace(CCD, iterations=60, patience=2, reg=0.0, rank=12), replace(COLUMNS, validation="held")
    found = run(options, columns)
    best, losses = found.history.best, found.history.validation
    assert best < found.history.steps == len(losses) < 60
    assert losses[best - 1] == min(losses)
    assert f"the vectors are those of iteration {best}" in found.history.reason
    users, items = replayed_descent(replace(options, iterations=best), columns, workers=1)
    np.testing.assert_array_equal(found.user_factors, users)
    np.testing.assert_array_equal(found.item_factors, items)
