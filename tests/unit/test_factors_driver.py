"""Driver and worker of a factorization, with the fleet in this process: restarts, and drivers that go on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from factors_training import COLUMNS, PLAN, chunk_of, ratings, replayed, surveyed

from ps2.algorithms.factors.dealing import Assignment, pack_chunk, partition_keys
from ps2.algorithms.factors.grid import read_grid
from ps2.algorithms.factors.program import UNKNOWN_ROWS, Problem
from ps2.algorithms.factors.sgd_program import SgdProgram
from ps2.algorithms.frame.program import ProgramDriver
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.protocol.plain_data import decode
from ps2.run.message import STOP
from ps2.run.prefetch import Prefetch
from ps2.run.rotation import RotationSchedule
from ps2.run.turns import Rotations
from tests.fakes import FleetInProcess, installed, session_over
from tests.plans import changed

WEIGHTED = replace(COLUMNS, weight="weight", validation="held")


@pytest.fixture(autouse=True)
def session():
    with installed(session_over(FleetInProcess())) as session:
        yield session
        session.dispatch.flush()


class Pulled(Prefetch):
    """A read that is sent when it is asked for."""

    def __init__(self, matrix, columns):
        self._matrix, self._columns = matrix, columns

    def result(self):
        return self._matrix.pull(columns=self._columns)


class OnlyWorker:
    """A run's only worker, and the clocks of its driver.

    Args:
        lost: clocks in which the worker finds that the fleet has rolled back.
        stops: the clock after which the driver is lost.
    """

    rank, workers, goesBack, timeLeft = 0, 1, False, float("inf")

    def __init__(self, driver, first, messages, lost=(), stops=None):
        self.driver, self.clock, self.epoch, self.sent = driver, first, 0, list(messages)
        self._lost, self._stops, self._read, self._reports = lost, stops, 0, []

    def rotate(self, blocks, slices, budgetS, fetch, at):
        turns = Rotations(self, RotationSchedule(1, blocks, slices), PLAN.seed, 1, fetch, at)
        while True:
            if self.clock in self._lost:
                self.epoch, self._read = self.epoch + 1, 0
            yield turns.turn(self.clock)
            reports, self._reports = self._reports, []
            message = self.driver.on_run_clock(self.clock, reports)
            if message is STOP or self.clock == self._stops:
                return
            if message is not None:
                self.sent.append(decode(message.encoded))
            self.clock += 1

    @property
    def messages(self):
        unread, self._read = self.sent[self._read :], len(self.sent)
        return unread

    def report(self, value, merge="sum"):
        self._reports.append(value)

    def prefetch(self, matrix, columns):
        return Pulled(matrix, columns)

    def barrier(self):
        pass


class Training:
    """A training of one worker, driver by driver."""

    def __init__(self, columns=COLUMNS):
        self.columns, self.steps, self._vectors = columns, [], []

    def _find(self, name):
        return self._vectors[int(name.split("/")[1])]

    def run(self, plan, clocks=0, messages=(), **happens):
        survey = surveyed(ratings(), plan, self.columns)
        deal = Assignment.from_counts(survey.user_counts, survey.item_counts, 1, 1, 36)
        names = CheckpointNames(plan.name, self._find if clocks else None, (clocks, clocks), messages)
        next_vector = names.vector

        def keep_vector(make, repair=None):
            self._vectors.append(next_vector(make, repair))
            return self._vectors[-1]

        names.vector = keep_vector
        program = SgdProgram(Problem(survey, deal, plan), names, self.steps.append)
        driver = ProgramDriver(program, names)
        driver.start()
        if driver.is_over:
            return driver.result()
        chunk, keys = chunk_of(ratings().table(self.columns)), partition_keys(1)
        rows = pack_chunk(chunk, survey.users, survey.items, deal, keys, (0, 0))
        scaling = program.scaling
        grid = read_grid([rows], deal.layout, 0, scaling)
        opening = None if clocks else driver.on_run_clock(0, [{UNKNOWN_ROWS: 0}])
        sent = messages if opening is None else [*messages, decode(opening.encoded)]
        self.worker = OnlyWorker(driver, max(clocks, 1), sent, **happens)
        program.loop().train(self.worker, grid)
        return driver.result() if driver.is_over else None


def assert_same(found, plan, columns=COLUMNS):
    users, items, losses = replayed(plan, columns, workers=1)
    np.testing.assert_array_equal(found.user_factors, users[0])
    np.testing.assert_array_equal(found.item_factors, items[0])
    np.testing.assert_allclose(found.history.objective, losses)


@pytest.mark.parametrize("lost", [(), (4,), (7, 8), (12, 21, 30)], ids=str)
@pytest.mark.parametrize("columns", [COLUMNS, WEIGHTED], ids=["plain", "weights, held-out rows"])
def test_vectors_when_fleet_rolls_back_then_match_serial(lost, columns):
    assert_same(Training(columns).run(PLAN, lost=lost), PLAN, columns)


@pytest.mark.parametrize("stops", [1, 2, 5, 9, 14, 15, 16, 17])
@pytest.mark.parametrize("iterations", [6, 9])
@pytest.mark.parametrize("patience", [0, 5])
def test_vectors_when_next_driver_goes_on_then_match_serial(stops, iterations, patience):
    columns = replace(COLUMNS, validation="held") if patience else COLUMNS
    training, named = Training(columns), replace(changed(PLAN, patience=patience), name="factors")
    training.run(named, stops=stops)
    messages = training.worker.sent
    more = changed(named, maxIter=iterations)
    actual = training.run(more, clocks=stops, messages=messages)
    assert actual.history.best is None
    assert_same(actual, more, columns)


@pytest.mark.parametrize("lost", [(), (4, 9)], ids=str)
def test_vectors_when_step_diverges_then_match_serial_halved(lost):
    actual = Training().run(changed(PLAN, stepSize=3.0), lost=lost)
    assert actual.halvings > 0
    assert actual.step_size == 3.0 / 2**actual.halvings
    assert_same(actual, changed(PLAN, stepSize=actual.step_size))


@pytest.mark.parametrize("lost", [(), (7, 30, 31)], ids=str)
def test_vectors_when_validation_is_stuck_then_best_ones(lost):
    columns = replace(COLUMNS, validation="held")
    plan = changed(PLAN, maxIter=200, patience=2, regParam=0.0, rank=12, stepSize=0.3, seed=1)
    history = (actual := Training(columns).run(plan, lost=lost)).history
    assert history.validation[history.best - 1] == min(history.validation)
    assert history.best < history.steps < 200
    users, items, _ = replayed(changed(plan, maxIter=history.best), columns, workers=1)
    np.testing.assert_array_equal(actual.user_factors, users[0])
    np.testing.assert_array_equal(actual.item_factors, items[0])
