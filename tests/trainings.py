"""One small training of each family and solver, and what must be equal after whatever failed meanwhile.

A family or a solver that is not in ``TRAININGS`` fails a test (``tests/spark/test_every_training.py``).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import boosting
import embedding_training
import factors_training
import numpy as np
import topics_training
from descents import positive
from faults.while_training import TASK_FAILURES, Death, DyingProgram, dying_workers
from training import Rows, change_plan, make, plan_of

from ps2.algorithms import DeepFM, FMRegressor, OnlineLogisticRegression, TwoTower
from ps2.algorithms.clusters import program as clusters
from ps2.algorithms.clusters.plan import KMeansPlan
from ps2.algorithms.clusters.settings import KMeansSettings
from ps2.algorithms.dictionary import program as dictionary
from ps2.algorithms.dictionary.plan import DictionaryPlan
from ps2.algorithms.dictionary.settings import DictionarySettings
from ps2.algorithms.factors import estimator as factors
from ps2.algorithms.factors.dealing import Assignment, deal_ratings
from ps2.algorithms.factors.ratings import survey_ratings
from ps2.algorithms.linear import trainer as linear
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.linear.settings import PathSettings
from ps2.algorithms.metric import program as metric
from ps2.algorithms.metric.plan import MetricPlan
from ps2.algorithms.metric.settings import MetricSettings
from ps2.algorithms.online import program as online
from ps2.algorithms.online.program import OnlineProgram
from ps2.algorithms.topics import sampling as topics
from ps2.algorithms.topics.online import OnlineProgram as OnlineTopics
from ps2.algorithms.topics.plan import OnlinePlan
from ps2.algorithms.topics.settings import LDASettings
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.observing import observe_fits
from ps2.algorithms.training.record import StepReport
from ps2.algorithms.training.table import Table
from ps2.algorithms.trees import program as trees
from ps2.algorithms.trees.custom_functions import RowFunction
from ps2.algorithms.trees.forests import program as forests
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.tree_matrices import HistogramMatrices
from tests import plans

SEED = 3


@dataclass(frozen=True)
class Call:
    """How a training is called.

    Attributes:
        name: the name under which another driver resumes it; "": it cannot.
        seed: of all draws.
        more: steps beyond the usual number.
        on_step: called in the driver after each step.
    """

    name: str = ""
    seed: int = SEED
    more: int = 0
    on_step: Callable[[StepReport], object] = lambda report: None


@dataclass(frozen=True)
class Result:
    """What a training has made.

    Attributes:
        numbers: arrays and digests by name.
        objective: of each step; a training that another driver has begun may know its own steps only.
    """

    numbers: Mapping[str, Any]
    objective: Sequence[float]


def assert_equal(result: Result, expected: Result, rtol: float) -> None:
    """Compare all numbers, and the objectives of the last steps."""
    assert result.numbers.keys() == expected.numbers.keys()
    for name, value in expected.numbers.items():
        if rtol:
            np.testing.assert_allclose(result.numbers[name], value, rtol=rtol, atol=rtol, err_msg=name)
        else:
            np.testing.assert_array_equal(result.numbers[name], value, err_msg=name)
    assert result.objective
    # The workers' losses may be added up in another order.
    last = expected.objective[-len(result.objective) :]
    np.testing.assert_allclose(result.objective, last, rtol=max(rtol, 1e-12), equal_nan=True)


@dataclass(frozen=True)
class Training:
    """A small training.

    Attributes:
        rows: makes the rows, from a SparkSession.
        fit: trains in a context on the rows.
        rtol: relative tolerance of the result after a failure; 0: it is the same to the bit.
        rtol_elsewhere: that of a result on another number of servers.
        check: compares a result with the one of an undisturbed training.
        resumable: whether another driver can resume it from a checkpoint.
        extendable: whether that driver may let it take more steps.
        knows_settings: whether another driver with other settings is refused.
        spared: clocks, and checkpoints, between two in which a server dies when servers die often.
        batches: number of batches of rows that a task learns from, of a training that has no clocks.
        dying: kills workers: see ``faults.while_training.dying_workers``.
    """

    rows: Callable[[Any], Any]
    fit: Callable[[Any, Any, Call], Result]
    rtol: float = 0.0
    rtol_elsewhere: float = 0.0
    check: Callable[[Result, Result, float], None] = assert_equal
    resumable: bool = True
    extendable: bool = True
    knows_settings: bool = True
    spared: int = 0
    batches: int = 0
    dying: Callable[[Sequence[int], int, str], AbstractContextManager[list[Death]]] = dying_workers

    def on(self, ps: Any, spark: Any) -> Callable[..., Result]:
        """Make the rows; return what trains on them in a context. Its arguments are fields of ``Call``."""
        rows = self.rows(spark)
        return lambda **call: self.fit(ps, rows, Call(**call))


def features(x: Any, **columns: Any) -> Callable[[Any], Table]:
    """Return what makes a table of two workers; ``columns`` are numbers beside the features."""

    def rows(spark: Any) -> Table:
        pairs = zip(x.tolist(), *(column.tolist() for column in columns.values()), strict=True)
        schema = ", ".join(["features array<double>", *(f"{name} double" for name in columns)])
        frame = spark.createDataFrame(list(pairs), schema).repartition(2).cache()
        names = ColumnNames(label="label" if "label" in columns else None, weight="w" if "w" in columns else None)
        return Table(frame, names, 2)

    return rows


# -- clusters, dictionaries, metrics -----------------------------------------------------------------------------------


def points() -> Callable[[Any], Table]:
    rng = np.random.default_rng(0)
    return features(rng.normal(size=(6, 4))[rng.integers(6, size=300)] + rng.normal(size=(300, 4)), w=rng.random(300))


def find_clusters(ps: Any, table: Table, call: Call) -> Result:
    settings = KMeansSettings(k=6, maxIter=5 + call.more, tol=0.0, seed=call.seed)
    plan = KMeansPlan(settings=settings, name=call.name, dim=4, clusters=6)
    fitted = clusters.train(ps, table, plan, call.on_step)
    return Result({"centres": fitted.centres, "sizes": fitted.sizes}, fitted.history.objective)


def sums_of_parts() -> Callable[[Any], Table]:
    rng = np.random.default_rng(2)
    return features(rng.random((60, 30)) * (rng.random((60, 30)) < 0.3))


def learn_dictionary(ps: Any, table: Table, call: Call) -> Result:
    settings = DictionarySettings(k=8, regParam=0.1, maxIter=6 + call.more, tol=0.0, seed=call.seed)
    fitted = dictionary.train(ps, table, DictionaryPlan(settings=settings, name=call.name, dim=30), call.on_step)
    return Result({"dictionary": fitted.model.dictionary}, fitted.history.objective)


def labelled() -> Callable[[Any], Table]:
    x = np.random.default_rng(2).normal(size=(60, 6))
    return features(x, label=np.arange(60) % 2.0)


def learn_metric(ps: Any, table: Table, call: Call) -> Result:
    settings = MetricSettings(rank=2, pairsPerRow=2, maxIter=6 + call.more, miniBatchFraction=0.5, seed=call.seed)
    plan = MetricPlan(settings=settings, name=call.name, dim=6, classes=2)
    trained = metric.MetricProgram.train(ps, table, plan, call.on_step)
    return Result({"components": trained.model.components}, trained.history.objective)


# -- linear models -----------------------------------------------------------------------------------------------------

LINEAR = {
    "l-bfgs": plan_of(maxIter=8, tol=0.0, miniBatchFraction=0.5),
    "normal": plan_of("normal"),
    "minibatch": plan_of("minibatch", optimizer="ftrl", lazy=True, maxIter=8, stepSize=0.5, miniBatchFraction=0.5),
    "ma-sgd": plan_of("ma-sgd", maxIter=6, stepSize=1.0, localBatchSize=8),
    "ftsgd": plan_of("ftsgd", maxIter=8, stepSize=12.0, localSteps=4),
    "sap": plan_of("sap", tol=1e-9, path=PathSettings(lambdaPath=[9.0, 3.0, 1.0]), set_size=2),
}


def linear_rows() -> Rows:
    return replace(make(cuts=(20,)), c=np.ones(60))


def fit_linear(ps: Any, frame: Any, call: Call, solver: str) -> Result:
    loss = "squared" if solver == "normal" else "logistic"
    problem = Problem(loss, 5, l1=0.01 if solver == "sap" else 0.0, l2=0.001)
    plan = LINEAR[solver]
    plan = change_plan(plan, maxIter=plan.settings.maxIter + call.more, seed=call.seed, name=call.name)
    table, facts = Table(frame, ColumnNames(), 2), linear_rows().facts(None if loss == "squared" else 2)
    model = linear.train(ps, table, problem, plan, facts, call.on_step)
    weight = model.weight.pull()
    model.weight.free()
    return Result({"weight": weight, "biases": model.biases}, model.history.objective)


@contextmanager
def observing(on_step: Callable[[StepReport], object]) -> Iterator[None]:
    """Have a function called after each step of an estimator's fit."""

    class Watch:
        step = staticmethod(on_step)

        def ended(self, model: Any) -> None:
            """Nothing is to be done."""

    observe_fits(lambda estimator: Watch())
    try:
        yield
    finally:
        observe_fits(None)


def fit_machine(ps: Any, frame: Any, call: Call) -> Result:
    machine = FMRegressor(factorSize=3, maxIter=8, solver="gd", stepSize=0.2, regParam=0.001, numWorkers=2)
    with observing(call.on_step):
        model = machine.setSeed(call.seed).fit(frame)
    numbers = {"intercept": model.intercept, "linear": model.linear.toArray(), "factors": model.factors.toArray()}
    return Result(numbers, model.summary.objectiveHistory)


# -- factors -----------------------------------------------------------------------------------------------------------

# An iteration of "sgd" has four turns, and a worker that is lost goes back to the last saved vectors.
CCD: dict[str, Any] = {"solver": "ccd", "rank": 6, "stepSize": None}
FACTORS = {
    "sgd": plans.changed(factors_training.PLAN, checkpointInterval=1),
    "ccd": plans.changed(factors_training.PLAN, **CCD, biases=True),
    "ccd, implicit": plans.changed(factors_training.PLAN, **CCD, implicitPrefs=True),
}
HELD = replace(factors_training.COLUMNS, validation="held")


def ratings(spark: Any) -> Any:
    return factors_training.frame_of(spark, positive(factors_training.ratings()), HELD)


def factorize(ps: Any, frame: Any, call: Call, solver: str) -> Result:
    plan = FACTORS[solver]
    plan = plans.changed(plan, maxIter=plan.settings.maxIter + call.more, seed=call.seed, name=call.name)
    survey = survey_ratings(frame, HELD, plan.settings)
    deal = Assignment.from_counts(survey.user_counts, survey.item_counts, 2, 1, 4 * (plan.settings.rank + 4))
    fitted = factors.train(ps, deal_ratings(frame, survey, deal, plan), survey, plan, None, call.on_step)
    return Result({"users": fitted.user_factors, "items": fitted.item_factors}, fitted.history.objective)


# -- topics ------------------------------------------------------------------------------------------------------------

LONG = plans.changed(topics_training.PLAN, maxIter=8, checkpointInterval=1)
SAMPLED = {
    "ssp": LONG,
    "average": plans.changed(LONG, sync="average"),
    "rotation": plans.changed(LONG, sync="rotation"),
    "local": replace(LONG, is_local=True, threads=2),
}
ONLINE_SETTINGS = LDASettings(
    optimizer="online",
    k=topics_training.TOPICS,
    maxIter=6,
    docConcentration=[0.1],
    topicConcentration=0.05,
    optimizeDocConcentration=True,
    sync="gradient",
    learningOffset=2.0,
    subsamplingRate=0.5,
)
GRADIENT = OnlinePlan(settings=ONLINE_SETTINGS, vocabulary=topics_training.WORDS)
ONLINE = {"gradient": GRADIENT, "average": plans.changed(GRADIENT, sync="average", localBatches=3)}


def documents(spark: Any, workers: int = 2) -> Table:
    return topics_training.dealt(spark, topics_training.documents(), workers)


def sample_topics(ps: Any, table: Table, call: Call, kind: str) -> Result:
    """Return counts of words, and those that follow from the topics that the workers saved last."""
    plan = replace(SAMPLED[kind], tokens=int(topics_training.documents().sum()), workers=table.workers)
    plan = plans.changed(plan, maxIter=plan.settings.maxIter + call.more, seed=call.seed, name=call.name)
    if kind == "local":  # another machine may have other cores
        plan = replace(plan, threads=plan.threads + call.more)
    saved: list[Any] = []

    def result(program: Any, returned: Any, original: Any = topics.SamplingProgram.result) -> Any:
        saved.append(topics_training.saved_counts(program._shared, plan, table.workers))
        return original(program, returned)

    with mock.patch.object(topics.SamplingProgram, "result", result):
        actual = topics.SamplingProgram.train(ps, table, plan, call.on_step)
    return Result({"counts": actual.model.counts, "saved": saved[-1]}, actual.history.objective)


def assert_tokens_counted(result: Result, expected: Result, rtol: float) -> None:
    """Topics depend on which worker was faster: each token counts for the topic that its worker saved."""
    np.testing.assert_array_equal(result.numbers["counts"], result.numbers["saved"])
    words = topics_training.documents().sum(axis=0)
    np.testing.assert_array_equal(result.numbers["counts"].sum(axis=1), words)
    assert len(result.objective) == len(expected.objective)
    # That of an iteration whose counts were rebuilt is not known.
    assert np.nanmin(result.objective[1:]) < expected.objective[0]


def infer_topics(ps: Any, table: Table, call: Call, sync: str) -> Result:
    plan = ONLINE[sync]
    plan = plans.changed(plan, maxIter=plan.settings.maxIter + call.more, seed=call.seed, name=call.name)
    fitted = OnlineTopics.train(ps, table, plan, call.on_step)
    return Result({"counts": fitted.model.counts, "alpha": fitted.model.alpha}, fitted.history.objective)


# -- trees -------------------------------------------------------------------------------------------------------------


def misses_count_thrice(margins: Any, labels: Any, weights: Any) -> Any:
    """An objective: the logistic loss, in which rows of class 1 count three times."""
    p = 1 / (1 + np.exp(-margins))
    weights = np.where(labels > 0, 3.0, 1.0) * weights
    return (p - labels) * weights, p * (1 - p) * weights


CUSTOM = replace(
    boosting.PROBLEM, objective=Objective("logistic", function=RowFunction("objective", misses_count_thrice))
)
TREES = {
    "level": (boosting.RECIPE, boosting.PROBLEM, False),
    "leaf, sparse": (boosting.BY_LEAF, boosting.PROBLEM, True),
    "softmax": (boosting.SHORT, boosting.SOFTMAX, False),
    "absolute": (boosting.SHORT, boosting.MEDIAN, False),
    "custom": (boosting.SHORT, CUSTOM, False),
    "dart": (boosting.DART, boosting.PROBLEM, True),
}
FOREST = plans.forest("gini", classes=2, rows=300, numTrees=3, maxDepth=6, maxBins=16, node_features=6)


def tree_labels(classes: int) -> Any:
    x, y = boosting.table()
    return y + (x[:, 4] > 0) if classes == 3 else y


def tree_rows(spark: Any, classes: int = 1, sparse: bool = False) -> Table:
    return boosting.dealt(spark, boosting.table()[0], tree_labels(classes), 2, sparse)


def grow_trees(ps: Any, table: Table, call: Call, kind: str) -> Result:
    recipe, problem, _ = TREES[kind]
    facts = boosting.facts_of(tree_labels(problem.classes))
    rounds = recipe.settings.maxIter + call.more
    recipe = plans.changed(recipe, maxIter=rounds, seed=call.seed, name=call.name)
    created = trees.train(ps, table, problem, recipe, facts, call.on_step)
    return Result({"trees": boosting.digest(created.model)}, created.history.objective)


def grow_forest(ps: Any, table: Table, call: Call) -> Result:
    """Grow trees, all of which are complete at the end: a step is a search for splits."""
    plan, searches = plans.changed(FOREST, seed=call.seed, name=call.name), itertools.count(1)

    def search(*args: Any, original: Any = HistogramMatrices.best_splits) -> Any:
        call.on_step(StepReport(next(searches), 0.0, 0.0, 0, 0))
        return original(*args)

    with mock.patch.object(HistogramMatrices, "best_splits", search):
        created = forests.grow(ps, table, boosting.PROBLEM, plan, boosting.facts_of(tree_labels(1)))
    shares = {f"shares {number}": share for number, share in enumerate(created.model.shares)}
    return Result({"trees": boosting.digest(created.model.forest), **shares}, created.history.objective)


# -- embeddings --------------------------------------------------------------------------------------------------------


def walks(spark: Any) -> None:
    """Walks are of the helper that trains on them."""


def embed(ps: Any, rows: None, call: Call, kind: str) -> Result:
    recipe, read = embedding_training.RECIPE, embedding_training.read
    if kind == "edges":
        count = embedding_training.COUNT * embedding_training.LENGTH // 2
        recipe, read = recipe | {"architecture": "edges", "total": count}, embedding_training.read_pairs
    else:
        recipe = recipe | {"via": kind}
    plan = embedding_training.make_plan(**recipe | {"seed": call.seed, "name": call.name})
    fitted = embedding_training.trained(ps, plan, on_step=call.on_step, read=read)
    return Result({"margin": embedding_training.margin(fitted)}, fitted.history.objective)


def assert_learned(result: Result, expected: Result, rtol: float) -> None:
    """Vectors depend on which worker was faster: words of one half are near each other."""
    assert min(result.numbers["margin"], expected.numbers["margin"]) > 0.5
    assert len(result.objective) == len(expected.objective)


# -- models of keys ----------------------------------------------------------------------------------------------------


def clicks(spark: Any, rows: int = 400) -> Any:
    rng = np.random.default_rng(0)
    user, ad = rng.integers(0, 40, rows), rng.integers(0, 25, rows)
    label = (rng.random(rows) < 1 / (1 + np.exp(-np.sin(user) - np.cos(ad)))).astype(float)
    pairs = list(zip(user.tolist(), ad.tolist(), label.tolist(), strict=True))
    return spark.createDataFrame(pairs, "user long, ad long, label double").coalesce(1).cache()


def fit_deep(ps: Any, frame: Any, call: Call, estimator: Callable[..., Any]) -> Result:
    """Fit with one worker: of two, the one that is faster pushes its gradients of embeddings first."""
    deep = estimator(categoricalCols=["user", "ad"], factorSize=4, hiddenLayers=[8], batchSize=100)
    deep.setSeed(call.seed).setNumWorkers(1).setMaxIter(3 + call.more)
    with observing(call.on_step):
        model = deep._resumable(call.name).fit(frame)
    layers = {f"layer {number}": layer for number, layer in enumerate(model.fitted.layers.pull())}
    # Of the epoch in which a driver was lost, the next one knows the loss of the rest.
    objective = model.summary.objectiveHistory[-1:]
    model.free()
    return Result(layers, objective)


def assert_learned_once(result: Result, expected: Result, rtol: float) -> None:
    """Compare what was learned. A batch that a worker does again is predicted by what it taught: its loss is lower."""
    assert_equal(replace(result, objective=expected.objective), expected, rtol)
    (loss,), (undisturbed,) = result.objective, expected.objective
    assert 0.9 * undisturbed < loss <= undisturbed * (1 + 1e-12)


def fit_online(ps: Any, frame: Any, call: Call) -> Result:
    learner = OnlineLogisticRegression(categoricalCols=["user", "ad"], batchSize=50, maxIter=4, numWorkers=1)
    with observing(call.on_step):
        model = learner.fit(frame)
    rows = [row.probability[1] for row in model.transform(frame).select("probability").collect()]
    # A task that is started again predicts rows that its model has learned: the first passes' losses are lower then.
    objective = [model.progress[-1].validation.logLoss]
    model.free()
    return Result({"probabilities": rows}, objective)


@dataclass(frozen=True)
class DyingOnlineProgram(OnlineProgram):
    """Kills its process when it has learned some batches of rows; once after each of them."""

    deaths: tuple[Death, ...] = ()
    folder: str = ""
    learned: list[int] = field(default_factory=list)

    def learn(self, found: Any) -> Any:
        margins = super().learn(found)
        self.learned.append(len(margins))
        DyingProgram.die(Death(0, len(self.learned)), self.deaths, self.folder)
        return margins


@contextmanager
def dying_learners(batches: Sequence[int], workers: int, folder: str) -> Iterator[list[Death]]:
    """Kill the only task of an online model, which has no clocks, after some batches of rows."""
    deaths = [Death(0, batch) for batch in batches[: TASK_FAILURES - 1]]
    program = functools.partial(DyingOnlineProgram, deaths=tuple(deaths), folder=folder)
    with mock.patch.object(online, "OnlineProgram", program):
        yield deaths


# -- the registry ------------------------------------------------------------------------------------------------------

# By family and kind.
TRAININGS = {
    "clusters/k-means": Training(points(), find_clusters),
    **{
        f"deep/{name}": Training(
            clicks, functools.partial(fit_deep, estimator=estimator), check=assert_learned_once, spared=4
        )
        for name, estimator in (
            ("factorization machine", DeepFM),
            ("two towers", functools.partial(TwoTower, userCols=["user"])),
        )
    },
    "dictionary/dictionary": Training(sums_of_parts(), learn_dictionary),
    **{
        f"embeddings/{kind}": Training(
            walks, functools.partial(embed, kind=kind), check=assert_learned, extendable=False
        )
        for kind in ("local", "rows", "servers", "edges")
    },
    **{
        f"factors/{solver}": Training(
            ratings, functools.partial(factorize, solver=solver), spared=11 if solver == "sgd" else 1
        )
        for solver in FACTORS
    },
    "linear/factorization machine": Training(
        lambda spark: linear_rows().frame(spark), fit_machine, resumable=False, spared=3
    ),
    **{
        f"linear/{solver}": Training(
            lambda spark: linear_rows().frame(spark),
            functools.partial(fit_linear, solver=solver),
            rtol=1e-12,
            resumable=solver == "minibatch",
            knows_settings=False,
        )
        for solver in LINEAR
    },
    "metric/metric": Training(labelled(), learn_metric, rtol_elsewhere=1e-7),
    "online/logistic regression": Training(clicks, fit_online, resumable=False, batches=8, dying=dying_learners),
    **{
        f"topics/{kind}": Training(
            functools.partial(documents, workers=1 if kind == "local" else 2),
            functools.partial(sample_topics, kind=kind),
            check=assert_tokens_counted,
            spared=4,
        )
        for kind in SAMPLED
    },
    **{
        f"topics/online, {sync}": Training(documents, functools.partial(infer_topics, sync=sync), rtol=1e-4)
        for sync in ONLINE
    },
    **{
        f"trees/{kind}": Training(
            functools.partial(tree_rows, classes=problem.classes, sparse=sparse),
            functools.partial(grow_trees, kind=kind),
        )
        for kind, (_, problem, sparse) in TREES.items()
    },
    "trees/forests": Training(tree_rows, grow_forest, extendable=False),
}
