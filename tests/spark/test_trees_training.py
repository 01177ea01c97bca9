"""Training of boosted trees: the same trees wherever rows and bins lie; no histogram leaves a server."""

from __future__ import annotations

import numpy as np
import pytest
from boosting import BY_LEAF, MEDIAN, RECIPE, SHORT, SOFTMAX, dealt, digest, facts_of, table, trained

from ps2.algorithms.trees import trainer
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.problem import BoostingOptions, TreeProblem
from ps2.algorithms.trees.trainer import train
from ps2.algorithms.trees.tree_matrices import FIRST_ROWS


@pytest.fixture(scope="module")
def seen():
    """What tests of this module have trained on the same rows: the first of each kind."""
    return {}


@pytest.fixture
def made(ps, spark, seen):
    """A training on the table."""
    if "level" not in seen:
        seen["level"] = trained(ps, spark)
    return seen["level"]


# Of each number of servers: workers, and whether rows are laid out as sparse ones.
EACH = [(1, [(1, False), (2, True)]), (2, [(1, True), (2, False)]), (3, [(1, False), (2, True)])]


@pytest.mark.parametrize(("ps", "each"), EACH, indirect=["ps"], ids=["1", "2", "3"])
def test_training_when_rows_and_bins_move_then_bit_identical(ps, spark, seen, each):
    for workers, sparse in each:
        made = trained(ps, spark, workers, sparse)
        assert digest(made.forest) == digest(seen.setdefault("level", made).forest)
    assert [len(tree) > 5 for tree in made.forest.trees] == [True] * RECIPE.rounds


@pytest.mark.parametrize(("ps", "workers"), [(1, 2), (2, 1)], indirect=["ps"])
def test_losses_when_rows_and_bins_move_then_bit_identical(ps, spark, statuses, seen, workers):
    before = [(len(status.matrices), status.memory_bytes) for status in statuses()]
    for problem in (SOFTMAX, MEDIAN):
        made = trained(ps, spark, workers, recipe=SHORT, problem=problem)
        loss, width = problem.objective.loss, problem.objective.width
        assert digest(made.forest) == digest(seen.setdefault(loss, made).forest)
        assert [len(tree) > 1 for tree in made.forest.trees] == [True] * width * SHORT.rounds
        assert [(len(status.matrices), status.memory_bytes) for status in statuses()] == before


@pytest.mark.parametrize(("ps", "workers", "sparse"), [(1, 1, False), (3, 2, True)], indirect=["ps"])
def test_training_when_by_leaf_and_rows_move_then_bit_identical(ps, spark, seen, workers, sparse):
    made = trained(ps, spark, workers, sparse, recipe=BY_LEAF)
    assert digest(made.forest) == digest(seen.setdefault("leaf", made).forest)
    assert [FIRST_ROWS < len(tree.leaves) <= BY_LEAF.leaves for tree in made.forest.trees] == [True] * RECIPE.rounds
    assert max(tree.depth for tree in made.forest.trees) > 6


def test_training_when_done_then_margins_separate_classes(made):
    x, y = table()
    margins = Predictor(made.forest).margins(x)[:, 0]
    assert ((margins > 0) == y).mean() > 0.8
    assert made.history.objective[-1] == pytest.approx(np.mean(np.logaddexp(0, np.where(y, -margins, margins))))
    assert all(tree.count[0] == tree.count[tree.feature < 0].sum() < len(y) for tree in made.forest.trees)


def test_training_when_rare_features_are_dropped_then_same_trees(ps, spark, monkeypatch):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 40)).astype(np.float32)
    x[rng.random(x.shape) < np.linspace(0.6, 0.99, 40)] = 0
    y = (x[:, :6].sum(axis=1) > 0).astype(float)
    problem, recipe = (
        TreeProblem(Objective("logistic"), 40, (0.0,)),
        BoostingOptions(rounds=2, depth=4, min_child_weight=8.0),
    )
    rows = dealt(spark, x, y, 2, sparse=True)
    made = train(ps, rows, problem, recipe, facts_of(y))
    rare = (x != 0).sum(axis=0) < trainer.least_rows(problem, recipe, None)
    assert 0 < rare.sum() < 20
    monkeypatch.setattr(trainer, "least_rows", lambda *_: 0)
    assert digest(train(ps, rows, problem, recipe, facts_of(y)).forest) == digest(made.forest)
    assert len(made.forest.trees[0]) > 5


def test_training_when_many_features_then_histograms_stay_put(ps, spark, statuses):
    rng = np.random.default_rng(0)
    features, bins = 2000, 32
    x = rng.normal(size=(100, features)).astype(np.float32)
    y = (x[:, 7] + x[:, 11] > 0).astype(float)
    after = []

    def note(report):
        after.append(sum(status.bytes_out for status in statuses()))

    problem, recipe = (
        TreeProblem(Objective("logistic"), features, (0.0,)),
        BoostingOptions(rounds=4, depth=4, bins=bins),
    )
    train(ps, dealt(spark, x, y, 2), problem, recipe, facts_of(y), note)
    histogram = features * bins * 2 * 4
    assert (np.diff(after) < histogram / 2).all()
