"""The public estimators of random forests."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from pyspark.ml.classification import ProbabilisticClassifier
from pyspark.ml.regression import Regressor

from ps2.algorithms.frame.estimator import Job
from ps2.algorithms.frame.frames import warn_of_wide_integers
from ps2.algorithms.frame.placement import Work
from ps2.algorithms.frame.tables import Survey
from ps2.algorithms.training.only_worker import OnStep
from ps2.algorithms.training.record import TrainingHistory
from ps2.algorithms.trees.estimator import TreesEstimator, class_objective, size_of
from ps2.algorithms.trees.forests.forest_kernels import grow_forest_tree
from ps2.algorithms.trees.forests.out_of_bag import out_of_bag_score
from ps2.algorithms.trees.forests.plan import ForestPlan, node_features_of
from ps2.algorithms.trees.forests.program import grow
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.label_statistics import label_sums
from ps2.algorithms.trees.models import RandomForestClassificationModel, RandomForestRegressionModel
from ps2.algorithms.trees.ops import MAX_CHANNELS
from ps2.algorithms.trees.problem import BoostingPlan, TreeTraining, check_categories, without_last_digits, work_of
from ps2.algorithms.trees.program import TrainedForest
from ps2.algorithms.trees.settings import (
    BoostingSettings,
    ForestSettings,
    RandomForestClassifierSettings,
    RandomForestRegressorSettings,
)
from ps2.coordinator.context import PS2Context
from ps2.errors import ConfigError, InputError, LimitError
from ps2.run.spark.backend_lookup import backend_of

log = logging.getLogger(__name__)

# Seconds of a node on servers (decision 62).
NODE_S = 0.3e-3
# The maximum number of classes: each needs a channel of a bin, and draws need one more.
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
        """Return the work of boosted trees with as many levels that look at as many features."""
        settings = training.plan.settings
        boosted = BoostingPlan(settings=BoostingSettings(maxDepth=settings.maxDepth, maxBins=settings.maxBins))
        return work_of(size_of(survey), boosted, settings.numTrees, NODE_S)

    def _with_rows(self, job: Job) -> TreeTraining:
        plan, problem = job.plan
        warn_of_wide_integers(job.table.frame, job.survey.features)
        # Labels that are numbers count from their mean, so that gains lose no digits.
        base = 0.0 if plan.classes else label_sums(job.table, of_classes=False).mean
        return TreeTraining(replace(plan, via=job.placement.via), replace(problem, base=(base,)))

    def _steps(self, training: TreeTraining) -> int:
        return int(training.plan.settings.numTrees)

    def _train(self, ps: PS2Context, job: Job, on_step: OnStep) -> TrainedForest[RandomForest]:
        plan, problem = job.plan
        return grow(ps, job.table, problem, plan, job.survey.facts, on_step)

    def _trained_model(self, trained: TrainedForest[RandomForest], job: Job) -> Any:
        check_empty_trees(trained.forest, job.plan.plan)
        return self._MODEL._of(trained.forest)

    def _history(self, trained: TrainedForest[RandomForest], job: Job, model: Any) -> TrainingHistory:
        plan, problem = job.plan
        if not plan.settings.oobScore:
            return trained.history
        score = out_of_bag_score(job.table, problem, plan, model._share(backend_of(job.table.frame)))
        return replace(trained.history, oob_score=score)


def check_empty_trees(forest: RandomForest, plan: ForestPlan) -> None:
    """Raise InputError if no tree has drawn a row; warn if some trees have not."""
    empty, trees = sum(not tree.count[0] for tree in forest.forest.trees), plan.settings.numTrees
    share = f"subsamplingRate={plan.settings.subsamplingRate:g} of {plan.rows:,} rows"
    if empty == trees:
        raise InputError(f"{share}: none of the {empty:,} trees has drawn a row with a weight; use a larger share")
    if empty:
        log.warning("%s: %d of %d trees have drawn no row, and know nothing", share, empty, trees)


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
