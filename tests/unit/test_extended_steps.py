"""Trainings that another driver extends, after a last clock in which workers only looked at the model.

The test's process takes the place of a checkpoint: it keeps the vectors, the clocks and the messages.
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from factors_training import PLAN, changed, fitted
from training import change_plan, plan_of

from ps2.algorithms.factors.shared_factors import CcdVectors, SharedFactors
from ps2.algorithms.frame import program
from ps2.algorithms.frame.journal import Journal
from ps2.algorithms.frame.settings import with_values
from ps2.algorithms.linear import trainer as linear
from ps2.algorithms.linear.parameters import Space
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.linear.preparation import FIRST_SOLVER_CLOCK
from ps2.algorithms.metric import program as metric
from ps2.algorithms.metric.plan import MetricPlan
from ps2.algorithms.metric.program import FIRST_STEP
from ps2.algorithms.metric.settings import MetricSettings
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Facts
from ps2.errors import ConfigError
from ps2.protocol.plain_data import decode
from ps2.run.message import Message
from tests.in_process import ArrayTable, training_context

RNG = np.random.default_rng(3)
X = RNG.normal(size=(30, 4))
Y = (X[:, 0] + 0.5 * X[:, 1] > 0).astype(float)
TABLE = ArrayTable.of(X, Y, workers=2, columns=ColumnNames())
FACTS = Facts(30, 30.0, 30.0, (30 - Y.sum(), Y.sum()), Y.mean(), Y.std(ddof=1))
METRIC = MetricSettings(rank=2, pairsPerRow=40, miniBatchFraction=0.5, optimizer="sgd", stepSize=0.1)
BATCHES = plan_of("minibatch", optimizer="adam", stepSize=0.1, name="mine")


def train_metric(ps, steps):
    plan = MetricPlan(settings=with_values(METRIC, maxIter=steps), name="mine", dim=4, classes=2)
    return metric.MetricProgram.train(ps, TABLE, plan).model.components


def train_batches(ps, steps, **options):
    model = linear.train(
        ps, TABLE, Problem("logistic", 4, standardize=False), change_plan(BATCHES, maxIter=steps, **options), FACTS
    )
    return np.append(model.weight.pull(), model.biases)


def train_factors(solver):
    def train(ps, steps):
        plan = changed(PLAN, maxIter=steps, solver=solver, stepSize=0.1 if solver == "sgd" else None)
        model = fitted(replace(plan, name="mine"), ps=ps)
        assert model.history.steps == steps
        return np.concatenate([model.user_factors, model.item_factors])

    return train


TRAIN = {
    "sgd": (train_factors("sgd"), 0),
    "ccd": (train_factors("ccd"), 0),
    "metric": (train_metric, FIRST_STEP),
    "minibatch": (train_batches, FIRST_SOLVER_CLOCK),
    "lazy": (lambda ps, steps: train_batches(ps, steps, optimizer="ftrl", lazy=True), FIRST_SOLVER_CLOCK),
}


class DriverLost(Exception):
    """Before the last clock was called."""


class Saved:
    """What a checkpoint keeps of trainings on a context."""

    def __init__(self, ps, is_called):
        self._ps, self._is_called, self._run = ps, is_called, ps.run
        self._vectors, self._begun, self._called, self._reports = {}, 0, 0, []
        self._messages = []

    @property
    def clocks(self):
        """How many clocks were called."""
        return self._called

    def names(self, prefix, ps):
        saved = self

        class Names(CheckpointNames):
            def vector(self, make, repair=None):
                def keeping(name):
                    saved._vectors[name] = created = make(name)
                    return created

                return super().vector(keeping, repair)

        find = self._vectors.__getitem__ if self._begun else None
        return Names(prefix, find, (self._begun, self._called), self._messages)

    def run(self, *given, onClock, firstClock=0, **options):
        """Run workers as the context does; note the clocks, and lose the driver if the last one is not to be called."""

        def called(clock, reports):
            self._begun, self._reports = clock + 1, reports
            if clock + 1 == self.last and not self._is_called:
                raise DriverLost
            answer = onClock(clock, reports)
            self._called = clock + 1
            if isinstance(answer, Message):
                self._messages.append(decode(answer.encoded))
            return answer

        if self._called < self._begun:
            called(self._called, self._reports)
        self._ps.messages = self._messages
        return self._run(*given, onClock=called, firstClock=firstClock, **options)

    def train(self, name, steps, last, **changed):
        """Let a driver train; ``last``: the number of its clocks."""
        self.last = last
        with (
            mock.patch.object(CheckpointNames, "of", self.names),
            mock.patch.object(self._ps, "run", self.run),
            mock.patch.object(metric.MetricProgram, "free"),
            mock.patch.object(program, "training_host"),
            mock.patch.object(Space, "free"),
            mock.patch.object(SharedFactors, "free"),
            mock.patch.object(CcdVectors, "free"),
        ):
            return TRAIN[name][0](self._ps, steps, **changed)


@pytest.mark.parametrize("name", TRAIN)
def test_steps_when_extended_after_the_last_clock_then_all(name):
    train, before = TRAIN[name]
    with training_context() as ps, mock.patch.object(CheckpointNames, "of", return_value=CheckpointNames()):
        expected = train(ps, 7)
    with training_context() as ps:
        saved = Saved(ps, is_called=True)
        saved.train(name, 3, before + 4)
        saved.train(name, 5, before + 7)
        result = saved.train(name, 7, before + 10)
    np.testing.assert_allclose(result, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"optimizer": "momentum"}, "optimizer was 'adam', and is 'momentum'"),
        ({"validationIndicatorCol": "held"}, "validate was False, and is True"),
    ],
)
def test_training_when_settings_changed_vectors_then_refused(changed, message):
    """They would be taken for others: squares of gradients for velocities."""
    with training_context() as ps:
        saved = Saved(ps, is_called=True)
        saved.train("minibatch", 3, FIRST_SOLVER_CLOCK + 4)
        with pytest.raises(ConfigError, match=f"the training 'mine' in the checkpoint is another one: {message}"):
            saved.train("minibatch", 5, FIRST_SOLVER_CLOCK + 7, **changed)


def test_journal_when_no_clock_was_called_then_it_begins():
    """Workers had finished the first one."""
    names = CheckpointNames("mine", lambda name: None, (1, 0))
    assert Journal.of(names, {"rank": 2}, 1).entry("mine", {"rank": 2}, 1)["training"] == "mine"


@pytest.mark.parametrize("name", TRAIN)
@pytest.mark.parametrize("uncalled", [0, 1])
def test_steps_when_extended_before_the_last_call_then_all(name, uncalled):
    """``uncalled``: clocks before the last one, after which the driver is lost."""
    train, _ = TRAIN[name]
    with training_context() as ps, mock.patch.object(CheckpointNames, "of", return_value=CheckpointNames()):
        expected = train(ps, 7)
    with training_context() as ps:
        saved = Saved(ps, is_called=True)
        saved.train(name, 3, 0)
    with training_context() as ps:
        lost = Saved(ps, is_called=False)
        with pytest.raises(DriverLost):
            lost.train(name, 3, saved.clocks - uncalled)
        result = lost.train(name, 7, 0)
    np.testing.assert_allclose(result, expected, rtol=1e-12)
