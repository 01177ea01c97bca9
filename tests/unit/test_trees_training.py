"""Training of boosted trees: the same trees wherever rows and bins lie; no histogram leaves a server."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.trees import program
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.predict import Predictor
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.program import train
from ps2.algorithms.trees.tree_matrices import MAX_INITIAL_HISTOGRAMS
from ps2.coordinator.in_process import InProcessServers
from tests import plans
from tests.boosting import BY_LEAF, MEDIAN, PROBLEM, RECIPE, SHORT, SOFTMAX, digest, facts_of, table
from tests.in_process import ArrayTable, training_context

SIGNS = (1, -1, *(0,) * (PROBLEM.dim - 2))
# What is grown, and how: problem, recipe, whether rows are sparse, and weighted.
KINDS = {
    "level": (PROBLEM, RECIPE, False, False),
    "level, of sparse rows with weights": (PROBLEM, RECIPE, True, True),
    "leaf": (PROBLEM, BY_LEAF, False, True),
    "softmax": (SOFTMAX, SHORT, False, False),
    "absolute, weighted": (MEDIAN, SHORT, True, True),
    "squared, monotone, rows counted": (
        TreeProblem(Objective("squared"), PROBLEM.dim, (0.3,), "missing", PROBLEM.categories),
        plans.changed(RECIPE, monotoneConstraints=SIGNS, minInstancesPerNode=7, regAlpha=0.1),
        True,
        False,
    ),
    "leaf, of sparse rows, features drawn": (
        PROBLEM,
        plans.changed(BY_LEAF, node_features=6, subsamplingRate=1.0),
        True,
        False,
    ),
    "softmax, rows by gradient": (
        SOFTMAX,
        plans.changed(SHORT, maxIter=4, subsamplingRate=1.0, dataSampleStrategy="goss"),
        True,
        True,
    ),
    "level, features of trees": (PROBLEM, plans.changed(RECIPE, tree_features=16), False, False),
    "leaf, of sparse rows, features of trees, levels and nodes": (
        PROBLEM,
        plans.changed(BY_LEAF, tree_features=20, level_features=12, node_features=6),
        True,
        True,
    ),
}


def rows_of(x, y, workers, sparse=False, columns=None, **others):
    return ArrayTable.of(sp.csr_array(x) if sparse else x, y, workers, columns, **others)


def trained(ps, workers=2, sparse=False, recipe=RECIPE, problem=PROBLEM):
    x, y = table()
    y = y + (x[:, 4] > 0) if problem.classes == 3 else y
    return train(ps, rows_of(x, y, workers, sparse), problem, recipe, facts_of(y))


@pytest.fixture(scope="module")
def ps():
    with training_context() as ps:
        yield ps


@pytest.mark.parametrize("kind", ["level", "softmax", "absolute, weighted", "leaf"])
def test_training_when_rows_and_bins_move_then_bit_identical(kind):
    problem, recipe, *_ = KINDS[kind]
    digests = set()
    for servers, workers, sparse in ((1, 1, False), (2, 1, True), (2, 2, False), (3, 1, False), (3, 2, True)):
        with training_context(servers) as ps:
            before = [taken for _, taken in ps.memory()]
            created = trained(ps, workers, sparse, recipe, problem)
            assert [taken for _, taken in ps.memory()] == before
            digests.add(digest(created.model))
    assert len(digests) == 1
    assert [len(tree) > 1 for tree in created.model.trees] == [True] * problem.objective.width * recipe.settings.maxIter


def test_leaves_when_grown_by_leaf_then_are_many_and_deep(ps):
    trees = trained(ps, recipe=BY_LEAF).model.trees
    assert len(trees) == RECIPE.settings.maxIter
    assert all(MAX_INITIAL_HISTOGRAMS < len(tree.leaves) <= BY_LEAF.settings.maxLeaves for tree in trees)
    assert max(tree.depth for tree in trees) > 6


def test_training_when_done_then_margins_separate_classes(ps):
    created, (x, y) = trained(ps), table()
    margins = Predictor(created.model).margins(x)[:, 0]
    assert ((margins > 0) == y).mean() > 0.8
    assert created.history.objective[-1] == pytest.approx(np.mean(np.logaddexp(0, np.where(y, -margins, margins))))
    assert all(tree.count[0] == tree.count[tree.feature < 0].sum() < len(y) for tree in created.model.trees)


@pytest.mark.parametrize("kind", KINDS)
def test_local_when_trees_have_grown_then_those_of_servers(ps, kind):
    problem, recipe, sparse, weighted = KINDS[kind]
    x, y = table()
    y = y + (x[:, 4] > 0) if problem.classes == 3 else y
    weights = np.random.default_rng(1).integers(0, 4, len(y)) / 4 if weighted else np.ones(len(y))
    held = np.arange(len(y)) % 5 == 0
    mine, columns = weights[~held], ColumnNames(validation="held", weight="w" if weighted else None)
    facts = replace(facts_of(y[~held]), weight=mine.sum(), weight_squared=(mine**2).sum())
    local, on_servers = (
        train(
            ps,
            rows_of(x, y, workers, sparse, columns, held=held, w=weights),
            problem,
            plans.changed(recipe, validationIndicatorCol="held", validationTol=0.0, via=via),
            facts,
        )
        for via, workers in (("local", 1), ("servers", 2))
    )
    assert digest(local.model) == digest(on_servers.model)
    assert np.allclose(local.history.objective, on_servers.history.objective, rtol=1e-12)
    assert np.allclose(local.history.validation, on_servers.history.validation, rtol=1e-12)


def test_training_when_rare_features_are_dropped_then_same_trees(ps, monkeypatch):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 40)).astype(np.float32)
    x[rng.random(x.shape) < np.linspace(0.6, 0.99, 40)] = 0
    y = (x[:, :6].sum(axis=1) > 0).astype(float)
    problem = TreeProblem(Objective("logistic"), 40, (0.0,))
    recipe = plans.boosting(maxIter=2, maxDepth=4, minChildWeight=8.0)
    rows = rows_of(x, y, 2, sparse=True)
    created = train(ps, rows, problem, recipe, facts_of(y))
    rare = (x != 0).sum(axis=0) < program.min_rows_to_split(problem, recipe, None)
    assert 0 < rare.sum() < 20
    monkeypatch.setattr(program, "min_rows_to_split", lambda *_: 0)
    assert digest(train(ps, rows, problem, recipe, facts_of(y)).model) == digest(created.model)
    assert len(created.model.trees[0]) > 5


def test_training_when_many_features_then_histograms_stay_put(ps, monkeypatch):
    rng = np.random.default_rng(0)
    features, bins = 2000, 32
    x = rng.normal(size=(100, features)).astype(np.float32)
    y = (x[:, 7] + x[:, 11] > 0).astype(float)
    exchange, replies, after = InProcessServers.exchange, [0], []

    def counting(network, requests):
        outcomes = exchange(network, requests)
        results = [result for mine in outcomes.values() for reply in mine for result in reply.results]
        replies[0] += sum(array.nbytes for result in results for array in result.arrays)
        return outcomes

    monkeypatch.setattr(InProcessServers, "exchange", counting)
    problem = TreeProblem(Objective("logistic"), features, (0.0,))
    recipe = plans.boosting(maxIter=4, maxDepth=4, maxBins=bins)
    train(ps, rows_of(x, y, 2), problem, recipe, facts_of(y), lambda report: after.append(replies[0]))
    histogram = features * bins * 2 * 4
    assert len(after) == 4
    assert (np.diff(after) > 0).all()
    assert (np.diff(after) < histogram / 2).all()
