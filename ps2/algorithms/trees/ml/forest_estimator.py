"""``fit`` of random forests."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ps2.algorithms.estimators.attributes import categories_of
from ps2.algorithms.estimators.estimator import FleetEstimator
from ps2.algorithms.estimators.tables import Survey
from ps2.algorithms.estimators.wide_integers import warn_of_wide_integers
from ps2.algorithms.training.placement import Placement
from ps2.algorithms.training.record import StepReport, TrainingHistory
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.cost_model import Cores, Work, choose
from ps2.algorithms.trees.forests.forest_kernels import grow_forest_tree
from ps2.algorithms.trees.forests.options import CODES, ForestOptions, ImpurityName, features_drawn
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.forests.trainer import grow
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.ml.estimator import check_categories
from ps2.algorithms.trees.ml.forest_params import ForestSetters
from ps2.algorithms.trees.ml.label_sums import label_sums
from ps2.algorithms.trees.ml.out_of_bag import out_of_bag_score
from ps2.algorithms.trees.ml.params import features_of
from ps2.algorithms.trees.ops import MAX_CHANNELS
from ps2.algorithms.trees.problem import BoostingOptions, TreeProblem
from ps2.algorithms.trees.program import TrainedForest
from ps2.algorithms.trees.trainer import begun_via
from ps2.coordinator.context import PS2Context
from ps2.errors import ConfigError, InputError, LimitError
from ps2.ops.ahead import compile_ahead
from ps2.run.slots import cores_each, cores_of_one
from ps2.run.spark.backend_lookup import backend_of

log = logging.getLogger(__name__)

# Seconds of a node on servers (decision 62).
NODE_S = 0.3e-3
# Most classes: a channel of a bin each, and one more for draws.
MAX_CLASSES = MAX_CHANNELS - 2


class ForestEstimator(FleetEstimator, ForestSetters):
    """What the estimators of random forests have in common."""

    @abstractmethod
    def _objective(self, found: Survey) -> Objective:
        """Return what labels are: classes, or numbers ("squared")."""

    @abstractmethod
    def _model(self, fitted: RandomForest) -> Any:
        """Return the model of trained trees."""

    _IMPURITIES: tuple[ImpurityName, ...] = ()

    def _check(self) -> None:
        super()._check()
        features_of(self.getFeatureSubsetStrategy(), 1)
        if self._impurity() not in self._IMPURITIES:
            raise ConfigError(f"impurity: expected one of {', '.join(self._IMPURITIES)}, got {self._impurity()!r}")
        if self.getOobScore() and not self.getBootstrap() and self.getSubsamplingRate() == 1:
            raise ConfigError(
                "oobScore: expected trees that leave rows out, got bootstrap=False and subsamplingRate=1.0"
            )

    def _impurity(self) -> Any:
        return self.getOrDefault("impurity").lower()

    def _plan(self) -> ForestOptions:
        impurity: ImpurityName = next(name for name in CODES if name == self._impurity())
        return ForestOptions(
            trees=self.getNumTrees(),
            depth=self.getMaxDepth(),
            bins=self.getMaxBins(),
            impurity=impurity,
            classes=0,
            rows=1,
            min_rows=self.getMinInstancesPerNode(),
            min_info_gain=self.getMinInfoGain(),
            rate=self.getSubsamplingRate(),
            bootstrap=self.getBootstrap(),
            seed=self._seed,
            name=self._name,
        )

    def _compile_ahead(self) -> None:
        if self.getVia() != "servers":
            compile_ahead(grow_forest_tree, "ps2.algorithms.trees.forests.warming:warm_whole_trees")

    def _train_model(
        self, plan: ForestOptions, found: Survey, dealt: Callable[..., Table]
    ) -> tuple[Any, TrainingHistory]:
        objective = self._objective(found)
        options = self._resolved(plan, found, objective)
        categories = categories_of(found.features)
        check_categories(categories, ())
        placement = self._placement(dealt, found, options)
        options = replace(options, via=placement.via)
        table = dealt(1) if placement.via == "local" else dealt()
        warn_of_wide_integers(table.frame, found.features)
        # Labels that are numbers count from their mean, so that gains lose no digits.
        base = 0.0 if options.classes else label_sums(table, of_classes=False).mean
        absent: Any = "missing" if self.getAbsentAsMissing() else "zero"
        problem = TreeProblem(objective, found.dim, (base,), absent, categories)

        def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> TrainedForest[RandomForest]:
            return grow(ps, table, problem, options, found.facts, on_step)

        grown = self._train_in_context(table, options.trees, run)
        check_drawn(grown.forest, options)
        made = self._model(grown.forest)
        score = None
        if self.getOobScore():
            score = out_of_bag_score(table, problem, options, made._share(backend_of(table.frame)))
        placement = replace(placement, workers=table.workers)
        return made, replace(grown.history, placement=placement, oob_score=score)

    def _resolved(self, plan: ForestOptions, found: Survey, objective: Objective) -> ForestOptions:
        """Return options with what the rows decide."""
        classes, facts = objective.classes or 0, found.facts
        if classes > MAX_CLASSES:
            raise LimitError(
                f"column {self.getOrDefault('labelCol')!r}: expected at most {MAX_CLASSES:,} classes, got {classes:,}"
            )
        strategy = features_drawn(self.getFeatureSubsetStrategy(), found.dim, plan.trees, classes)
        return replace(
            plan,
            classes=classes,
            rows=facts.rows,
            features=features_of(strategy, found.dim),
            min_weight=_least_weight(self.getMinWeightFractionPerNode(), facts),
            weighted=self._columns().weight is not None,
        )

    def _placement(self, dealt: Any, found: Survey, options: ForestOptions) -> Placement:
        """Choose where trees grow: as of boosted trees of so many levels, which look at the features drawn."""
        wanted, ps = self.getNumWorkers() if self.isSet(self.numWorkers) else None, PS2Context.getActive()
        spark = backend_of(dealt.frame)
        workers = wanted or min(max(len(found.loads), 1), spark.total_slots())
        cores = Cores(cores_of_one(spark), workers, cores_each(spark, workers))
        values = sum(load.cost - load.rows for load in found.loads.values())
        work = Work(found.rows, values, found.dim, options.trees, NODE_S)
        alike = BoostingOptions(rounds=options.trees, depth=options.depth, bins=options.bins)
        return choose(self.getVia(), wanted, work, alike, cores, None if ps is None else begun_via(ps, options.name))


def check_drawn(forest: RandomForest, options: ForestOptions) -> None:
    """Raise InputError if no tree has drawn a row; warn if some trees have not."""
    empty = sum(not tree.count[0] for tree in forest.forest.trees)
    drawn = f"subsamplingRate={options.rate:g} of {options.rows:,} rows"
    if empty == options.trees:
        raise InputError(f"{drawn}: none of the {empty:,} trees has drawn a row with a weight; use a larger share")
    if empty:
        log.warning("%s: %d of %d trees have drawn no row, and know nothing", drawn, empty, options.trees)


def _least_weight(fraction: float, facts: Facts) -> float:
    """Return the least weight of a node, without the last digits, which depend on how rows lie."""
    return float(f"{fraction * facts.weight * (1 - 1e-6):.6g}")
