"""Every training whose fleet rolls back in its clocks, with the worker's and the driver's programs going on.

The result is that of an undisturbed training; where topics are sampled, every token has been counted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import boosting
import embedding_training
import factors_training
import numpy as np
import pytest
import scipy.sparse as sp
import topics_training
import training
import trainings
from array_fits import fit_arrays, numbers
from descents import positive
from in_process import ArrayTable, TrainingContext, training_context
from test_deep_fits import AD, USER, learn, model_of, rows
from trainings import LINEAR, TRAININGS, Call, Result

from ps2.algorithms import FMRegressor
from ps2.algorithms.deep.settings import ClickSettings, TowerSettings
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.training.faults import ColumnNames

UNLABELLED, WEIGHTED = ColumnNames(label=None), ColumnNames(label=None, weight="w")
RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(6, 4))[RNG.integers(6, size=300)] + RNG.normal(size=(300, 4))
SUMS = RNG.random((60, 30)) * (RNG.random((60, 30)) < 0.3)
PAIRS = RNG.normal(size=(60, 6))
# A training that begins anew the sums of its rows, as this one does of margins, rounds them otherwise.
RTOL = {"linear/sap": 1e-12}


def of_table(name: str, x: Any, columns: ColumnNames, workers: int = 2, **others: Any) -> Result:
    with training_context() as ps:
        return TRAININGS[name].fit(ps, ArrayTable.of(x, None, workers, columns, **others), Call())


def of_documents(name: str) -> Result:
    return of_table(name, topics_training.documents(), UNLABELLED, 1 if name == "topics/local" else 2)


def of_trees(name: str, classes: int = 1, sparse: bool = False) -> Result:
    x, _ = boosting.table()
    return of_table(name, sp.csr_array(x) if sparse else x, ColumnNames(), label=trainings.tree_labels(classes))


def fit_linear(solver: str) -> Result:
    problem = Problem("squared" if solver == "normal" else "logistic", 5, l1=0.01 if solver == "sap" else 0.0, l2=0.001)
    created = training.fit(trainings.linear_rows(), problem, LINEAR[solver], ColumnNames())
    return Result({"weight": created.w, "biases": created.biases}, created.history.objective)


def fit_machine() -> Result:
    few = training.make()
    machine = FMRegressor(factorSize=3, maxIter=8, solver="gd", stepSize=0.2, regParam=0.001, seed=3)
    model = fit_arrays(machine, few.x, label=few.y)
    return Result({"numbers": numbers(model)}, model.summary.objectiveHistory)


def factorize(solver: str) -> Result:
    ratings = positive(factors_training.ratings())
    created = factors_training.fitted(trainings.FACTORS[solver], trainings.HELD, given=ratings)
    return Result({"users": created.user_factors, "items": created.item_factors}, created.history.objective)


def embed(kind: str) -> Result:
    recipe, read = embedding_training.RECIPE, embedding_training.read
    if kind == "edges":
        total = embedding_training.COUNT * embedding_training.LENGTH // 2
        recipe, read = recipe | {"architecture": "edges", "total": total}, embedding_training.read_pairs
    else:
        recipe = recipe | {"via": kind}
    created = embedding_training.fitted(embedding_training.make_plan(**recipe), read=read)
    return Result({"vectors": created.vectors}, created.history.objective)


def fit_deep(kind: str) -> Result:
    with training_context() as ps:
        optimizer = "ftrl+adagrad" if kind == "deepfm" else "adagrad"
        model = model_of(USER, AD, kind=kind, optimizer=optimizer)
        settings = TowerSettings if kind == "two-tower" else ClickSettings
        history = learn(ps, model, rows(), cls=settings, maxIter=3)
        return Result({f"layer {at}": layer for at, layer in enumerate(model.layers.pull())}, history.objective)


FITS: dict[str, Callable[[], Result]] = {
    "clusters/k-means": lambda: of_table("clusters/k-means", POINTS, WEIGHTED, w=np.arange(300.0) % 7),
    "dictionary/dictionary": lambda: of_table("dictionary/dictionary", SUMS, UNLABELLED),
    "metric/metric": lambda: of_table("metric/metric", PAIRS, ColumnNames(), label=np.arange(60) // 2 % 2.0),
    **{f"linear/{solver}": functools.partial(fit_linear, solver) for solver in LINEAR},
    "linear/factorization machine": fit_machine,
    **{f"factors/{solver}": functools.partial(factorize, solver) for solver in trainings.FACTORS},
    **{name: functools.partial(of_documents, name) for name in TRAININGS if name.startswith("topics/")},
    **{
        f"trees/{kind}": functools.partial(of_trees, f"trees/{kind}", problem.classes, sparse)
        for kind, (_, problem, sparse) in trainings.TREES.items()
    },
    "trees/forests": functools.partial(of_trees, "trees/forests"),
    **{f"embeddings/{kind}": functools.partial(embed, kind) for kind in ("local", "rows", "servers", "edges")},
    "deep/factorization machine": functools.partial(fit_deep, "deepfm"),
    "deep/two towers": functools.partial(fit_deep, "two-tower"),
}


@functools.cache
def undisturbed(name: str) -> Result:
    return FITS[name]()


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("name", FITS)
def test_training_when_fleet_rolls_back_then_is_the_same(monkeypatch, name, seed):
    expected = undisturbed(name)
    monkeypatch.setattr(TrainingContext, "rollback_seed", seed)
    result = FITS[name]()
    if TRAININGS[name].check is trainings.assert_tokens_counted:
        np.testing.assert_array_equal(result.numbers["counts"].sum(axis=1), topics_training.documents().sum(axis=0))
        assert len(result.objective) == len(expected.objective)
    else:
        trainings.assert_equal(result, expected, RTOL.get(name, 0.0))


def test_fits_when_trainings_have_clocks_then_are_of_all():
    assert set(FITS) == {name for name, one in TRAININGS.items() if not one.batches}
