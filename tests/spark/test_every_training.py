"""Every training x everything that fails: the result is that of an undisturbed training.

By default each training meets one failure, and each failure meets many trainings: those of a diagonal of the matrix.
``make chaos`` runs the whole matrix.
"""

from __future__ import annotations

import itertools
import pkgutil
from typing import get_args

import embedding_training
import pytest
import trainings
from faults import while_training
from faults.while_training import FAILURES
from pyspark import cloudpickle
from trainings import TRAININGS

from ps2 import algorithms
from ps2.algorithms.embeddings.settings import Strategy
from ps2.algorithms.factors.estimator import SOLVERS as FACTOR_SOLVERS
from ps2.algorithms.linear.trainer import SOLVERS as LINEAR_SOLVERS
from ps2.algorithms.topics.settings import OnlineSyncName, SyncName

# A checkpoint that is under way as a server dies fails.
pytestmark = pytest.mark.filterwarnings("ignore::ps2.errors.CheckpointWarning")

# What all families share.
FRAME = {"estimators", "frame", "text", "training"}
# Failures that no cell has by default: workers or servers die in each clock.
LONG = {"workers die often", "servers die often"}


def cells():
    """Return all cells of the matrix; those off the diagonal take long."""
    created, usual = [], [failure for failure in FAILURES if failure not in LONG]
    for row, (name, training) in enumerate(sorted(TRAININGS.items())):
        left = set(FAILURES) - ({"servers die often"} if training.batches else set())
        left -= set() if training.resumable else {"driver is lost"}
        chosen = next(usual[at % len(usual)] for at in itertools.count(row) if usual[at % len(usual)] in left)
        for failure in filter(left.__contains__, FAILURES):
            marks = () if failure == chosen else pytest.mark.nightly
            created.append(pytest.param(name, failure, id=f"{name}, {failure.replace(' ', '-')}", marks=marks))
    return created


@pytest.fixture(scope="module", autouse=True)
def helpers_by_value():
    """Tasks cannot import them: they are pickled with their code."""
    modules = (embedding_training, trainings, while_training)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.usefixtures("no_fleet")
@pytest.mark.parametrize(("name", "failure"), cells())
def test_training_when_something_fails_then_result_is_same(spark, tmp_path, name, failure):
    FAILURES[failure](TRAININGS[name], spark, tmp_path)


def test_registry_when_families_are_listed_then_has_them_all():
    families = {module.name for module in pkgutil.iter_modules(algorithms.__path__) if module.ispkg} - FRAME
    assert {name.partition("/")[0] for name in TRAININGS} == families


def test_registry_when_solvers_are_listed_then_has_them_all():
    solvers = {
        "embeddings": set(get_args(Strategy)) - {"auto"},
        "factors": FACTOR_SOLVERS,
        "linear": LINEAR_SOLVERS,
        "topics": [*get_args(SyncName), *(f"online, {sync}" for sync in get_args(OnlineSyncName))],
    }
    assert {f"{family}/{solver}" for family, names in solvers.items() for solver in names} <= set(TRAININGS)
