"""``fit`` of boosted trees."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from pyspark.sql import functions as F

from ps2.algorithms.estimators.attributes import categories_of
from ps2.algorithms.estimators.estimator import FleetEstimator
from ps2.algorithms.estimators.initial_model import HasInitialModel
from ps2.algorithms.estimators.tables import Survey, column
from ps2.algorithms.estimators.wide_integers import warn_of_wide_integers
from ps2.algorithms.training.placement import Placement
from ps2.algorithms.training.record import StepReport, TrainingHistory
from ps2.algorithms.training.table import Table
from ps2.algorithms.trees.cost_model import Cores, Work, choose
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.layout import MAX_CATEGORIES
from ps2.algorithms.trees.metrics import Metric
from ps2.algorithms.trees.ml.label_quantile import label_quantile
from ps2.algorithms.trees.ml.label_sums import label_sums
from ps2.algorithms.trees.ml.models import ForestModel
from ps2.algorithms.trees.ml.params import TreeSetters, check_tree_params, features_of, options_of, resolved
from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.problem import BoostingOptions, TreeProblem, key_of
from ps2.algorithms.trees.program import TrainedForest
from ps2.algorithms.trees.starts import reach_of
from ps2.algorithms.trees.trainer import begun_via, train
from ps2.algorithms.trees.tree import Absent, Forest
from ps2.algorithms.trees.tree_kernels import grow_boosted
from ps2.coordinator.context import PS2Context
from ps2.errors import ConfigError, LimitError
from ps2.ops.ahead import compile_ahead
from ps2.run.slots import cores_each, cores_of_one
from ps2.run.spark.backend_lookup import backend_of

E = TypeVar("E", bound="TreeEstimator")


class TreeEstimator(HasInitialModel, FleetEstimator, TreeSetters):
    """What the estimators of boosted trees have in common."""

    _on_round: Callable[[StepReport], Any] = staticmethod(lambda report: None)

    # The trees that the training goes on from.
    _initial: Forest | None = None

    def setInitialModel(self: E, value: ForestModel | GBTModel | None) -> E:
        """Set a model to go on from; None: begin anew. ``maxIter`` counts the new trees; the new model has all.

        The model may have been loaded. It is not part of the estimator's file.

        Raises:
            ConfigError: it is no model of boosted trees.
        """
        return super().setInitialModel(value)

    def _start_of(self, value: Any) -> Forest:
        trained = value._trained if isinstance(value, ForestModel) else value
        if not isinstance(trained, GBTModel):
            raise ConfigError(f"initialModel: expected a model of boosted trees, got {type(value).__name__}")
        return trained.forest

    def onRound(self: E, function: Callable[[StepReport], Any]) -> E:
        """Call a function in the driver after each round of trees: it is no param, and is not saved.

        Args:
            function: called with the ``StepReport`` of the round: number, objective, validation, seconds and more. If
                it returns True, the training ends, and the model keeps the trees so far (of a validation: up to the
                best). What it raises ends ``fit``. After a rollback of the fleet, a round may come once more.
        """
        if not callable(function):
            raise ConfigError(f"onRound: expected a function, got {type(function).__name__}")
        self._on_round = function
        return self

    @abstractmethod
    def _objective(self, found: Survey) -> Objective:
        """Return the loss for a table."""

    @abstractmethod
    def _model(self, fitted: GBTModel) -> Any:
        """Return the model of trained trees."""

    def _check(self) -> None:
        super()._check()
        check_tree_params(self)
        if self._initial is not None and self.isSet("baseScore"):
            raise ConfigError("baseScore: expected without an initial model, which has its own")

    def _plan(self) -> BoostingOptions:
        return replace(options_of(self), name=self._name)

    def _compile_ahead(self) -> None:
        if self.getVia() != "servers":
            compile_ahead(grow_boosted, "ps2.algorithms.trees.warm:warm_whole_trees")

    def _train_model(
        self, plan: BoostingOptions, found: Survey, dealt: Callable[..., Table]
    ) -> tuple[Any, TrainingHistory]:
        objective = self._objective(found)
        Metric.parsed(plan.metric).check(objective.loss)
        signs = self.getMonotoneConstraints() if self.isSet("monotoneConstraints") else []
        if signs and len(signs) != found.dim:
            raise ConfigError(f"monotoneConstraints: expected one for each of {found.dim} features, got {len(signs)}")
        drawn = features_of(self.getFeatureSubsetStrategy(), found.dim)
        options = resolved(
            replace(plan, features=drawn), self, objective, found.facts, self._columns().weight is not None
        )
        categories = categories_of(found.features)
        check_categories(categories, plan.monotone)
        check_features(options, found.dim)
        initial = self._initial
        if initial is not None:
            check_initial(initial, objective, found.dim)
            # The first new tree is no first one; other random numbers than those of the trees before.
            options = replace(options, first_rate=None, seed=key_of(options.seed, len(initial.trees)))
        placement = self._placement(dealt, found, options, objective)
        options = replace(options, via=placement.via)
        table = dealt(1) if placement.via == "local" else dealt()
        warn_of_wide_integers(table.frame, found.features)
        absent: Absent = "missing" if self.getAbsentAsMissing() else "zero"
        if initial is not None and initial.absent != absent:
            raise ConfigError(f"absentAsMissing: expected {not self.getAbsentAsMissing()}, as of the initial model")
        base = self._base(objective, found, table)
        reach = self._reach(table) if options.metric else (0.0, 0.0)
        problem = TreeProblem(objective, found.dim, base, absent, categories, initial, reach)

        def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> TrainedForest[Forest]:
            def on_round(report: StepReport) -> Any:
                on_step(report)
                return self._on_round(report)

            return train(ps, table, problem, options, found.facts, on_round)

        trained = self._train_in_context(table, options.rounds, run)
        placement = replace(placement, workers=table.workers)
        return self._model(GBTModel(trained.forest)), replace(trained.history, placement=placement)

    def _placement(self, dealt: Any, found: Survey, options: BoostingOptions, objective: Objective) -> Placement:
        """Choose where trees grow."""
        wanted, ps = self.getNumWorkers() if self.isSet(self.numWorkers) else None, PS2Context.getActive()
        spark = backend_of(dealt.frame)
        slots = spark.total_slots()
        workers = wanted or min(max(len(found.loads), 1), slots)
        cores = Cores(cores_of_one(spark), workers, cores_each(spark, workers))
        values = sum(load.cost - load.rows for load in found.loads.values())
        work = Work(found.rows, values, found.dim, options.rounds * objective.width)
        begun = None if ps is None else begun_via(ps, options.name)
        return choose(self.getVia(), wanted, work, options, cores, begun)

    def _base(self, objective: Objective, found: Survey, table: Table) -> tuple[float, ...]:
        """Return the margins of a model without trees."""
        facts, share = found.facts, objective.label_share
        if self._initial is not None:
            return tuple(self._initial.base.tolist())
        if self.isSet("baseMarginCol"):
            if objective.width > 1:
                raise ConfigError(
                    f"baseMarginCol: expected one margin a row, but {objective.width} classes have one each"
                )
            return (0.0,)
        if objective.loss == "lambdarank" and not self.isSet("baseScore"):
            return (0.0,)
        if self.isSet("baseScore"):
            return self._given_base(objective, self.getBaseScore())
        quantile = 0.0 if share is None else label_quantile(table, share, facts)
        mean, of_classes, row_weight = facts.label_mean, facts.class_weights, 1.0
        if share is None and (not of_classes or table.columns.weight is not None):
            # Those of facts are sums whose last digits depend on how rows lie.
            sums = label_sums(table, of_classes=bool(of_classes))
            mean, row_weight = sums.mean, sums.weight / facts.rows
            of_classes = tuple(sums.class_weights.get(label, 0.0) for label in range(len(of_classes)))
        return tuple(objective.base(mean, np.array(of_classes), quantile, row_weight).tolist())

    def _reach(self, table: Table) -> tuple[float, float]:
        """Return by how much margins may lie below and above the base, before the first new tree."""
        least, most = (0.0, 0.0) if self._initial is None else reach_of(self._initial)
        if table.columns.margin is not None:
            margin = column(table.columns.margin).cast("double")
            found = table.frame.agg(F.min(margin), F.max(margin)).first()
            least, most = least + (found[0] or 0.0), most + (found[1] or 0.0)
        return least, most

    def _given_base(self, objective: Objective, score: float) -> tuple[float, ...]:
        if objective.loss == "softmax":
            return (score,) * objective.width
        if objective.loss == "logistic":
            if not 0 < score < 1:
                raise ConfigError(f"baseScore: expected a probability in (0, 1), got {score:g}")
            return (float(np.log(score / (1 - score))),)
        if objective.loss == "poisson":
            if not score > 0:
                raise ConfigError(f"baseScore: expected a positive mean for loss 'poisson', got {score:g}")
            return (float(np.log(score)),)
        return (score,)


def check_categories(categories: Mapping[int, int], monotone: Sequence[int]) -> None:
    """Raise an error for categorical features that trees cannot be grown with.

    Args:
        categories: how many a feature has, by its number.
        monotone: a constraint a feature; none at all.

    Raises:
        LimitError: a feature has more categories than a histogram has bins.
        ConfigError: a constraint is of a feature whose categories have no order.
    """
    for feature, count in categories.items():
        if count > MAX_CATEGORIES:
            raise LimitError(f"feature {feature}: expected at most {MAX_CATEGORIES:,} categories, got {count:,}")
        if monotone and monotone[feature]:
            raise ConfigError(
                f"monotoneConstraints: expected 0 for feature {feature}, which has {count:,} categories, "
                f"got {monotone[feature]}"
            )


def check_initial(initial: Forest, objective: Objective, dim: int) -> None:
    """Raise ConfigError unless a training can go on from a forest."""
    for what, wanted, had in (
        ("loss", objective.loss, initial.loss),
        ("features", dim, initial.features),
        ("classes", objective.width, initial.width),
        ("lossShape", objective.shape if objective.has_shape else None, initial.shape if objective.has_shape else None),
    ):
        if wanted != had:
            raise ConfigError(f"initialModel: expected a model of {what} {wanted!r}, as this training is, got {had!r}")


def check_features(options: BoostingOptions, dim: int) -> None:
    """Raise ConfigError unless weights and groups are of the features that there are."""
    if options.feature_weights and len(options.feature_weights) != dim:
        raise ConfigError(
            f"featureWeights: expected one for each of {dim} features, got {len(options.feature_weights)}"
        )
    for feature in (feature for group in options.groups for feature in group):
        if not 0 <= feature < dim:
            raise ConfigError(f"interactionConstraints: expected features from 0 to {dim - 1}, got {feature}")
