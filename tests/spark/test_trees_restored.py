"""A driver is killed while trees grow: another one goes on from the checkpoint, to the same trees."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from boosting import digest
from faults import trees_killed_app
from faults.trees_killed_app import NAMED, grow

from ps2 import PS2Context
from ps2.errors import ConfigError, NotFoundError

PROGRAM = Path(trees_killed_app.__file__)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, run_program):
    """Checkpoints of a driver that was killed in the middle of the second tree."""
    folder = tmp_path_factory.mktemp("checkpoints")
    done = run_program(sys.executable, PROGRAM, folder)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return str(folder)


@pytest.fixture
def ps(spark, folder):
    """A context that goes on from there, with other servers."""
    with PS2Context.getOrCreate(spark, servers=3, restore=folder) as context:
        yield context


@pytest.fixture(scope="module")
def expected(spark):
    """What comes of a training that nothing happens to."""
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        return grow(ps, spark, replace(NAMED, name=""))


def test_trees_when_the_driver_was_killed_then_another_one_comes_to_the_same_model_and_history(ps, spark, expected):
    reports = []
    made = grow(ps, spark, workers=1, on_step=reports.append)
    assert digest(made.forest) == digest(expected.forest)
    assert made.history.objective == pytest.approx(expected.history.objective, rel=1e-12)
    assert made.history.validation == pytest.approx(expected.history.validation, rel=1e-12)
    assert (made.history.steps, made.history.reason) == (expected.history.steps, expected.history.reason)
    assert [report.number for report in reports] == list(range(2, expected.history.steps + 1))


def test_trees_when_fewer_rounds_are_wanted_than_there_are_then_those_are_the_model(ps, spark, expected):
    made = grow(ps, spark, replace(NAMED, rounds=1))
    assert (len(made.forest.trees), made.history.steps) == (1, 1)
    assert digest(made.forest) == digest(replace(expected.forest, trees=expected.forest.trees[:1]))


def test_trees_when_more_rounds_are_wanted_than_there_are_then_they_are_those_of_one_training(
    tmp_path, spark, expected
):
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=str(tmp_path), checkpointEverySteps=1) as ps:
        assert len(grow(ps, spark, replace(NAMED, rounds=2)).forest.trees) == 2
    with PS2Context.getOrCreate(spark, servers=1, restore=str(tmp_path)) as ps:
        made = grow(ps, spark)
    assert digest(made.forest) == digest(expected.forest)
    assert made.history.objective == pytest.approx(expected.history.objective, rel=1e-12)
    assert made.history.steps == expected.history.steps


def test_trees_when_the_checkpoint_is_of_another_training_then_that_is_an_error(ps, spark):
    with pytest.raises(
        ConfigError, match="'trees' in the checkpoint is another one: depth was 4, and is 3; seed was 0, a"
    ):
        grow(ps, spark, replace(NAMED, depth=3, seed=5))
    with pytest.raises(NotFoundError, match="the checkpoint holds no training 'others'"):
        grow(ps, spark, replace(NAMED, name="others"))
