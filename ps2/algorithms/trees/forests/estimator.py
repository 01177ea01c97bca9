"""The public estimators of random forests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.ml.classification import ProbabilisticClassifier
from pyspark.ml.regression import Regressor

from ps2.algorithms.frame.estimator import Job
from ps2.algorithms.frame.frames import warn_of_wide_integers
from ps2.algorithms.frame.placement import Work
from ps2.algorithms.frame.tables import Survey, column, names_of
from ps2.algorithms.training.faults import ColumnNames, Form, error_of
from ps2.algorithms.training.only_worker import OnStep
from ps2.algorithms.training.reading import read
from ps2.algorithms.training.record import Trained, TrainingHistory
from ps2.algorithms.training.table import Table
from ps2.algorithms.trees.estimator import TreesEstimator, class_objective
from ps2.algorithms.trees.forests.forest_kernels import count_draws, grow_forest_tree
from ps2.algorithms.trees.forests.plan import ForestPlan, node_features_of
from ps2.algorithms.trees.forests.program import grow
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.label_statistics import label_sums
from ps2.algorithms.trees.models import RandomForestClassificationModel, RandomForestRegressionModel
from ps2.algorithms.trees.ops import MAX_CHANNELS
from ps2.algorithms.trees.problem import (
    BoostingPlan,
    TreeProblem,
    TreeTraining,
    check_categories,
    without_last_digits,
    work_of,
)
from ps2.algorithms.trees.rows import row_ids, with_all_columns
from ps2.algorithms.trees.settings import (
    BoostingSettings,
    ForestSettings,
    RandomForestClassifierSettings,
    RandomForestRegressorSettings,
)
from ps2.array_types import Float64s
from ps2.coordinator.context import PS2Context
from ps2.data.rows import LocalRows
from ps2.errors import ConfigError, InputError, LimitError
from ps2.ops.guards import readable
from ps2.run.spark.backend_lookup import backend_of, in_one_wave, with_python

log = logging.getLogger(__name__)

# Seconds that servers need for a node, in addition to the time for its bins (decision 62).
NODE_S = 0.3e-3
# The maximum number of classes: each has a channel in a bin, and one channel may count draws.
MAX_CLASSES = MAX_CHANNELS - 2


class ForestEstimator(ForestSettings, TreesEstimator):
    """Base class of the estimators of random forests."""

    _SLOW_KERNEL = grow_forest_tree, "ps2.algorithms.trees.warm:warm_whole_forest_trees"

    def _check(self) -> None:
        super()._check()
        if self.getOobScore() and not self.getBootstrap() and self.getSubsamplingRate() == 1:
            raise ConfigError(
                "oobScore: expected trees that leave rows out, got bootstrap=False and subsamplingRate=1.0"
            )

    def _plan(self) -> ForestSettings:
        return self._values(ForestSettings)

    def _resolve(self, plan: ForestSettings, survey: Survey) -> TreeTraining:
        objective, facts = self._objective(survey), survey.facts
        classes = objective.classes or 0
        if classes > MAX_CLASSES:
            raise LimitError(
                f"column {self.getLabelCol()!r}: expected at most {MAX_CLASSES:,} classes, got {classes:,}"
            )
        problem = self._problem(survey, objective)
        check_categories(problem.categories)
        resolved = ForestPlan(
            settings=plan,
            name=self._name,
            impurity=self.getOrDefault("impurity"),
            classes=classes,
            rows=facts.rows,
            is_weighted=self._columns().weight is not None,
            node_features=node_features_of(plan, survey.dim, classes),
            min_node_weight=without_last_digits(plan.minWeightFractionPerNode * facts.weight * (1 - 1e-6)),
        )
        return TreeTraining(resolved, problem)

    def _work(self, training: TreeTraining, survey: Survey) -> Work:
        """Estimate the work as that of boosted trees of the same number, depth and bins."""
        settings = training.plan.settings
        boosted = BoostingPlan(settings=BoostingSettings(maxDepth=settings.maxDepth, maxBins=settings.maxBins))
        return work_of(survey, boosted, settings.numTrees, NODE_S)

    def _with_rows(self, job: Job) -> TreeTraining:
        plan, problem = job.plan
        warn_of_wide_integers(job.table.frame, job.survey.features)
        # In regression, sums are of labels minus their mean, so that gains lose no digits.
        base = 0.0 if plan.classes else label_sums(job.table, of_classes=False).mean
        return TreeTraining(replace(plan, via=job.placement.via), replace(problem, base=(base,)))

    def _steps(self, training: TreeTraining) -> int:
        return int(training.plan.settings.numTrees)

    def _train(self, ps: PS2Context, job: Job, on_step: OnStep) -> Trained[RandomForest]:
        plan, problem = job.plan
        return grow(ps, job.table, problem, plan, job.survey.facts, on_step)

    def _trained_model(self, trained: Trained[RandomForest], job: Job) -> Any:
        check_empty_trees(trained.model, job.plan.plan)
        return super()._trained_model(trained, job)

    def _history(self, trained: Trained[RandomForest], job: Job, model: Any) -> TrainingHistory:
        plan, problem = job.plan
        if not plan.settings.oobScore:
            return trained.history
        score = out_of_bag_score(job.table, problem, plan, model._share(backend_of(job.table.frame)))
        return replace(trained.history, oob_score=score)


def check_empty_trees(forest: RandomForest, plan: ForestPlan) -> None:
    """Raise InputError if no tree has sampled a row; warn if some trees have not."""
    empty, trees = sum(not tree.count[0] for tree in forest.forest.trees), plan.settings.numTrees
    sample = f"subsamplingRate={plan.settings.subsamplingRate:g} of {plan.rows:,} rows"
    if empty == trees:
        raise InputError(
            f"{sample}: none of the {empty:,} trees has drawn a row with a weight; use a larger subsamplingRate"
        )
    if empty:
        log.warning("%s: %d of %d trees have drawn no row, and predict nothing", sample, empty, trees)


class RandomForestClassifier(RandomForestClassifierSettings, ForestEstimator, ProbabilisticClassifier):
    """A random forest: ``pyspark.ml.classification.RandomForestClassifier`` on servers, for any number of classes.

    Example::

        model = RandomForestClassifier(numTrees=100, maxDepth=10, maxBins=256).fit(df)
        model.transform(df).select("label", "probability", "prediction").show()
    """

    __module__ = "ps2.algorithms.classification"

    _MODEL = RandomForestClassificationModel
    _CLASSES = 0

    def _objective(self, survey: Survey) -> Objective:
        return class_objective(self, survey)


class RandomForestRegressor(RandomForestRegressorSettings, ForestEstimator, Regressor["RandomForestRegressionModel"]):
    """A random forest: ``pyspark.ml.regression.RandomForestRegressor`` on servers.

    Example::

        model = RandomForestRegressor(numTrees=100, maxDepth=10, maxBins=256).fit(df)
    """

    __module__ = "ps2.algorithms.regression"

    _MODEL = RandomForestRegressionModel

    def _objective(self, survey: Survey) -> Objective:
        return Objective("squared")


# The elements of the sums for the score: the number of all rows; the number of scored rows, which at least one tree has
# not drawn; and sums over scored rows: of weights; of weights of correct predictions, or of weighted squared errors; of
# weighted labels minus the base; of their weighted squares.
ALL_ROWS, SCORED_ROWS, WEIGHT, FIT, LABELS, SQUARES = range(6)


def out_of_bag_score(
    table: Table, problem: TreeProblem, plan: ForestPlan, get_forest: Callable[[], RandomForest]
) -> float:
    """Return the accuracy or R2, with each row predicted by the trees that have not drawn it; NaN: no row is scored."""
    columns, form = table.columns, Form(problem.dim, problem.classes, missing=True)

    def score_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        forest, sums = get_forest(), np.zeros(SQUARES + 1)
        for batch in batches:
            sums += _out_of_bag_sums(_read_rows(batch, columns, form), forest, problem, plan)
        yield pa.RecordBatch.from_pydict({"sums": [sums.tolist()]})

    rows = table.frame.select(*map(column, names_of(columns)))
    partition_rows = with_python(in_one_wave(rows)).mapInArrow(score_partition, "sums array<double>").collect()
    sums = np.sum([row["sums"] for row in partition_rows], axis=0)
    if unscored := int(sums[ALL_ROWS] - sums[SCORED_ROWS]):
        log.warning(
            "oobScore: each of the %d trees has drawn %d of %d rows, which do not count",
            plan.settings.numTrees,
            unscored,
            sums[ALL_ROWS],
        )
    if not sums[WEIGHT] > 0:
        return float("nan")
    if plan.classes:
        return float(sums[FIT] / sums[WEIGHT])
    total = sums[SQUARES] - sums[LABELS] ** 2 / sums[WEIGHT]
    return float(1.0 - sums[FIT] / total) if total > 0 else float("nan")


def _read_rows(batch: pa.RecordBatch, columns: ColumnNames, form: Form) -> LocalRows:
    reading = read([batch], columns, form)
    if error := error_of(reading.faults[None], columns, form):
        raise error
    return reading.training


def _out_of_bag_sums(rows: LocalRows, forest: RandomForest, problem: TreeProblem, plan: ForestPlan) -> Float64s:
    """Return the sums of a batch for ``out_of_bag_score``, shape (SQUARES + 1,)."""
    assert rows.y is not None
    ids, draws = readable(row_ids(rows, problem.absent)), np.empty((plan.settings.numTrees, len(rows)), np.uint8)
    for tree in range(plan.settings.numTrees):
        count_draws(ids, plan.keys(tree)[0], plan.draw_probabilities, draws[tree])
    votes, trees = forest.votes(with_all_columns(rows, problem.dim), np.ascontiguousarray(draws.T) == 0)
    is_scored = trees > 0
    y, weights = rows.y[is_scored], np.ones(len(rows)) if rows.weights is None else rows.weights
    weights = weights[is_scored]
    sums = np.zeros(SQUARES + 1)
    sums[[ALL_ROWS, SCORED_ROWS, WEIGHT]] = len(rows), len(y), weights.sum()
    if plan.classes:
        sums[FIT] = weights[votes[is_scored].argmax(axis=1) == y].sum()
        return sums
    labels = y - problem.base[0]
    sums[FIT] = weights @ (y - votes[is_scored, 0] / trees[is_scored]) ** 2
    sums[[LABELS, SQUARES]] = weights @ labels, weights @ labels**2
    return sums
