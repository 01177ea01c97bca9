"""Boosting in one Spark job: the worker gets to know the training by its first task."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from ps2.algorithms.training.faults import ColumnNames, Form
from ps2.algorithms.training.reading import read
from ps2.algorithms.training.table import Facts
from ps2.algorithms.trees import local_worker
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.local_worker import GrowRounds
from ps2.algorithms.trees.one_job import BeginRounds, SurveyedTreeWorker, changed, changes
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem, TreeTraining, with_table_facts
from ps2.algorithms.trees.settings import BoostingSettings
from ps2.protocol.plain_data import decode, encode

ROWS = 60
SETTINGS = BoostingSettings(maxIter=4, maxDepth=3, minInfoGain=0.01, interactionConstraints=[[0, 1], [2]], seed=-3)
KNOWN = TreeTraining(BoostingPlan(settings=SETTINGS), TreeProblem(Objective("logistic"), 0, ()))


@pytest.fixture
def training():
    """The training after the survey, of rows with weights."""
    facts = Facts(ROWS, 120.0, 300.0, (), 0.5, 1.0, (-3.0, 3.0))
    problem = TreeProblem(Objective("squared", hessian=0.5), 3, (0.25,), reach=(-1.0, 2.0))
    plan = with_table_facts(KNOWN.plan.with_settings(stepSize=0.3), problem, facts, is_weighted=True)
    return TreeTraining(plan, problem)


@pytest.fixture
def begin(training):
    """The first task, as a worker receives it."""
    return BeginRounds(0, [], None, decode(encode("training", changes(KNOWN, training))))


@pytest.fixture
def worker():
    """A function that returns a new worker with the same rows."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(ROWS, 3))
    features = pa.FixedSizeListArray.from_arrays(x.reshape(-1), 3).cast(pa.list_(pa.float64()))
    rows = {"features": features, "label": x[:, 0] - x[:, 1] ** 2, "w": rng.integers(1, 4, ROWS).astype(float)}
    reading = read([pa.RecordBatch.from_pydict(rows)], ColumnNames(weight="w"), Form(3, missing=True))
    return lambda: SurveyedTreeWorker(KNOWN, True, (reading, None))


def do(worker, task):
    """Do a task in a clock of one round; return its round."""
    reports = []
    with mock.patch.object(local_worker, "CLOCK_TIME_S", 0.0):
        worker(SimpleNamespace(report=lambda report, merge: reports.append(report)), task)
    ((reply,),) = [report["rounds"] for report in reports]
    return reply


def test_changes_when_decoded_then_training_is_the_same(training):
    plan, problem = changed(KNOWN, decode(encode("training", changes(KNOWN, training))))
    assert (plan.plain(), problem) == (training.plan.plain(), training.problem)


def test_worker_when_restarted_then_grows_the_same_trees(worker, begin):
    first, restarted = worker(), worker()
    reply = do(first, begin)
    task = GrowRounds(0, reply["trees"], reply["scales"])
    expected = do(first, task)
    restarted.catch_up(None, [begin])
    restarted.catch_up(None, [task])
    assert encode("trees", do(restarted, task)["trees"]) == encode("trees", expected["trees"])
