"""The driver and the only worker of a training in one process: what is repeated, dropped and gone on with."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Record
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.algorithms.trees import local_worker
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.local_trainer import LocalTreeDriver
from ps2.algorithms.trees.local_worker import LocalTreeProgram
from ps2.algorithms.trees.problem import BoostingOptions, TreeProblem
from ps2.algorithms.trees.tree import Tree
from ps2.data.rows import LocalRows
from ps2.protocol.plain_data import decode

PROBLEM = TreeProblem(Objective("softmax", 3), 4, (0.0, 0.1, -0.1))
OPTIONS = BoostingOptions(rounds=5, depth=3, bins=20, rate=0.4, validate=True, validation_tol=0.0, via="local")


def reading():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 4))
    y = (x[:, 0] + rng.normal(size=400) > 0).astype(float) + (x[:, 1] > 0.5)
    rows = LocalRows(np.arange(4), sp.csr_array(x), y)
    return Reading(rows.chosen(np.arange(300)), rows.chosen(np.arange(300, 400)), 4, np.zeros(0))


@dataclass
class OneProcess:
    """A run with its messages; its worker's attempts end after so many clocks."""

    driver: LocalTreeDriver
    clock: int = FIRST_CLOCK
    messages: list = field(default_factory=list)
    ends_after: int = 1000

    def clocks(self, n):
        for _ in range(self.ends_after):
            if self.clock == n:
                return
            yield self.clock
            message = self.driver.on_clock(self.clock - FIRST_CLOCK, self._said)
            self.messages = [*self.messages, decode(message.encoded)]
            self.clock += 1

    def report(self, said, merge):
        assert merge == "concat"
        self._said = [said]

    def attempt(self):
        self._said = []
        self.driver.program(self, reading())


def driver_of(options=OPTIONS, names=None, on_step=lambda step: None):
    names = names or CheckpointNames()
    program = LocalTreeProgram(PROBLEM, options, 1, None, names.begun)
    driver = LocalTreeDriver(program, Record(on_step), ReplayJournal.of(names, {"of": "trees"}), None)
    driver.go_on_from(names)
    return driver


def bits(driver):
    return [getattr(tree, field.name).tobytes() for tree in driver.boosting.forest().trees for field in fields(Tree)]


@pytest.fixture
def by_round(monkeypatch):
    """One round a clock."""
    monkeypatch.setattr(local_worker, "BUDGET_S", 0.0)


@pytest.fixture(scope="module")
def whole():
    """A training whose trees all grow in one clock."""
    driver = driver_of()
    OneProcess(driver).attempt()
    return driver


def test_local_when_trees_take_one_clock_then_tells_all_rounds(whole):
    assert whole.is_over
    assert len(whole.boosting.trees) == 15
    assert len(whole.boosting.history().objective) == 6
    assert len(whole.boosting.history().validation) == 5


@pytest.mark.usefixtures("by_round")
def test_local_when_worker_begins_again_then_same_trees(whole):
    driver = driver_of()
    run = OneProcess(driver, ends_after=2)
    for _ in range(4):
        run.attempt()
    assert bits(driver) == bits(whole)
    assert driver.boosting.history().validation == whole.boosting.history().validation


@pytest.mark.usefixtures("by_round")
def test_local_when_fleet_rolls_back_then_same_trees(whole):
    driver = driver_of()
    run = OneProcess(driver, ends_after=4)
    run.attempt()
    run.clock, run.messages, run.ends_after = FIRST_CLOCK + 1, run.messages[:1], 1000
    run.attempt()
    assert bits(driver) == bits(whole)
    assert driver.boosting.history().objective == whole.boosting.history().objective


@pytest.mark.usefixtures("by_round")
def test_local_when_driver_is_lost_then_next_one_goes_on(whole):
    names, run = CheckpointNames("trees"), None
    for rounds, clocks in ((2, 1000), (5, 2), (5, 1000)):
        driver = driver_of(replace(OPTIONS, rounds=rounds), names)
        before = run.messages if run else [decode(driver.journal.message(opening=True).encoded)]
        run = OneProcess(driver, max(names.begun, FIRST_CLOCK), before, clocks)
        run.attempt()
        names = CheckpointNames("trees", lambda name: None, (run.clock, run.clock), run.messages)
    assert bits(driver) == bits(whole)
    assert driver.boosting.history().validation == whole.boosting.history().validation
    assert driver.boosting.history().steps == 5


def test_local_when_callback_ends_it_then_drops_later_trees(whole):
    driver = driver_of(on_step=lambda step: step.number == 2)
    OneProcess(driver).attempt()
    assert len(driver.boosting.trees) == 6
    assert [tree.tobytes() for tree in (t.value for t in driver.boosting.trees)] == [
        tree.value.tobytes() for tree in whole.boosting.trees[:6]
    ]
