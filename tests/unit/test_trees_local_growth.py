"""The driver and the only worker of a training in one process: what is repeated, dropped and gone on with."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
import pytest
import scipy.sparse as sp
from boosting import facts_of

from ps2.algorithms.frame.program import ProgramDriver, WorkerLoop
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Record
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.algorithms.trees import local_worker
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.program import LocalBoostingProgram, TreeRun, boosting_settings
from ps2.algorithms.trees.tree import Tree
from ps2.data.rows import LocalRows
from ps2.protocol.plain_data import decode
from ps2.run.message import STOP
from tests import plans

PROBLEM = TreeProblem(Objective("softmax", 3), 4, (0.0, 0.1, -0.1))
OPTIONS = plans.boosting(
    maxIter=5, maxDepth=3, maxBins=20, stepSize=0.4, validationIndicatorCol="held", validationTol=0.0, via="local"
)
DART = plans.changed(OPTIONS, boostingType="dart", dropRate=0.5, skipDrop=0.0, earlyStoppingRounds=5)
KINDS = {"gbdt": OPTIONS, "dart": DART}
FACTS = facts_of(np.zeros(300))


def reading():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 4))
    y = (x[:, 0] + rng.normal(size=400) > 0).astype(float) + (x[:, 1] > 0.5)
    rows = LocalRows(np.arange(4), sp.csr_array(x), y)
    return Reading(rows.chosen(np.arange(300)), rows.chosen(np.arange(300, 400)), 4, np.zeros(0))


class Names(CheckpointNames):
    """Nothing lies on servers."""

    def vector(self, make, repair=None):
        return None


@dataclass
class OneProcess:
    """A run with its messages; its worker's attempts end after so many clocks."""

    driver: ProgramDriver
    loop: WorkerLoop
    clock: int = FIRST_CLOCK
    told: list = field(default_factory=list)
    ends_after: int = 1000
    epoch = 0

    def clocks(self, n):
        for _ in range(self.ends_after):
            if self.driver.is_over:
                return
            yield self.clock
            message = self.driver.on_clock(self.clock - FIRST_CLOCK, [self._report])
            self.clock += 1
            if message is not STOP:
                self.told = [*self.told, decode(message.encoded)]

    @property
    def message(self):
        return self.told[-1]

    @property
    def messages(self):
        begin, self._read = self._read, len(self.told)
        return self.told[begin:]

    def report(self, value, merge):
        assert merge == "concat"
        self._report = value

    def attempt(self):
        self._report, self._read = {}, 0
        self.told = self.told or [decode(self.driver.message().encoded)]
        self.loop(self, reading())


def run_of(options=OPTIONS, names=None, on_step=lambda step: None, **fields):
    names = names or Names()
    settings = boosting_settings(PROBLEM, options, FACTS.rows, None)
    program = LocalBoostingProgram(TreeRun(PROBLEM, options, FACTS.rows, None, settings, Record(on_step), names))
    driver = ProgramDriver(program, names)
    driver.start()
    return OneProcess(driver, program.loop(), max(names.finished_clocks, FIRST_CLOCK), **fields)


def bits(run):
    trees = run.driver.result().model.trees
    return [getattr(tree, field.name).tobytes() for tree in trees for field in fields(Tree)]


def history(run):
    return run.driver.result().history


@pytest.fixture
def by_round(monkeypatch):
    """One round a clock."""
    monkeypatch.setattr(local_worker, "CLOCK_TIME_S", 0.0)


@pytest.fixture(scope="module", params=KINDS)
def options(request):
    return KINDS[request.param]


@pytest.fixture(scope="module")
def whole(options):
    """A training whose trees all grow in one clock."""
    run = run_of(options)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(local_worker, "CLOCK_TIME_S", 1000.0)
        run.attempt()
    return run


def test_local_when_trees_take_one_clock_then_tells_all_rounds(whole):
    assert whole.driver.is_over
    assert whole.clock == FIRST_CLOCK + 1
    assert len(history(whole).metrics["leaves"]) == 5
    assert len(history(whole).objective) == 6
    assert len(history(whole).validation) == 5


@pytest.mark.usefixtures("by_round")
def test_local_when_worker_begins_again_then_same_trees(whole, options):
    run = run_of(options, ends_after=2)
    for _ in range(4):
        run.attempt()
    assert bits(run) == bits(whole)
    assert history(run).validation == history(whole).validation


@pytest.mark.usefixtures("by_round")
def test_local_when_fleet_rolls_back_then_same_trees(whole, options):
    run = run_of(options, ends_after=4)
    run.attempt()
    run.clock, run.told, run.ends_after = FIRST_CLOCK + 1, run.told[:2], 1000
    run.attempt()
    assert bits(run) == bits(whole)
    assert history(run).objective == history(whole).objective


@pytest.mark.usefixtures("by_round")
def test_local_when_driver_is_lost_then_next_one_goes_on(whole, options):
    names, reported = Names("trees"), []
    for rounds, clocks in ((2, 1000), (5, 2), (5, 1000)):
        run = run_of(plans.changed(options, maxIter=rounds), names, told=reported, ends_after=clocks)
        run.attempt()
        reported = run.told
        names = Names("trees", lambda name: None, (run.clock, run.clock), reported)
    assert bits(run) == bits(whole)
    assert history(run).validation == history(whole).validation
    assert history(run).steps == 5


def test_local_when_callback_ends_it_then_drops_later_trees():
    options = plans.changed(OPTIONS, validationIndicatorCol=None)
    whole, ended = run_of(options), run_of(options, on_step=lambda step: step.number == 2)
    for run in (whole, ended):
        run.attempt()
    assert bits(ended) == bits(whole)[: len(bits(ended))]
    assert len(ended.driver.result().model.trees) == 6
