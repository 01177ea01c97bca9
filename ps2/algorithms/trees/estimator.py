"""The public estimators of boosted trees."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
from pyspark.ml.base import Predictor
from pyspark.ml.classification import ProbabilisticClassifier
from pyspark.ml.regression import Regressor
from pyspark.ml.util import MLWriter
from pyspark.sql import DataFrame

from ps2.algorithms.frame.estimator import FleetEstimator, HasInitialModel, Job
from ps2.algorithms.frame.frames import categories_of, warn_of_wide_integers
from ps2.algorithms.frame.models import check_thresholds
from ps2.algorithms.frame.one_job import OneJob
from ps2.algorithms.frame.placement import Work
from ps2.algorithms.frame.settings import with_values
from ps2.algorithms.frame.tables import Survey
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.only_worker import OnStep
from ps2.algorithms.training.record import StepReport, Trained, Via
from ps2.algorithms.training.table import Table
from ps2.algorithms.trees.boosting_settings import ONLY_WITH
from ps2.algorithms.trees.custom_functions import RowFunction, check_functions
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.label_statistics import (
    LabelSums,
    base_of_score,
    label_quantile,
    label_sums,
    margin_reach,
    with_set_numbers,
)
from ps2.algorithms.trees.metrics import CustomMetric, Metric
from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.models import BoostedModel, GBTClassificationModel, GBTRankerModel, GBTRegressionModel
from ps2.algorithms.trees.one_job import BoostingJob
from ps2.algorithms.trees.problem import (
    BoostingPlan,
    TreeProblem,
    TreeTraining,
    automatic_rate,
    check_categories,
    check_features,
    check_initial,
    with_statistics,
    with_table_facts,
    work_of,
)
from ps2.algorithms.trees.program import train, via_of_resumed
from ps2.algorithms.trees.settings import (
    BoostingSettings,
    EnsembleSettings,
    GBTClassifierSettings,
    GBTRankerSettings,
    GBTRegressorSettings,
    num_features_of,
)
from ps2.algorithms.trees.summaries import check_relevance
from ps2.algorithms.trees.tree import Absent, Forest, LossName
from ps2.algorithms.trees.tree_kernels import grow_boosted
from ps2.algorithms.trees.tree_models import AnyTrees
from ps2.coordinator.context import PS2Context
from ps2.errors import ConfigError, InputError, UsageError
from ps2.ops.ahead import compile_ahead

E = TypeVar("E", bound="BoostingEstimator")
R = TypeVar("R", bound="PointwiseEstimator")

# The largest absolute label: leaves may be as large as the range of the labels, and xgboost's are float32.
MAX_LABEL = 1e38
# A number of features so large that every ``featureSubsetStrategy`` except "all" samples fewer.
MANY_FEATURES = 2**31


def class_objective(estimator: Any, survey: Survey) -> Objective:
    """Return the loss for the number of classes; UsageError unless ``thresholds`` has one for each class."""
    classes = len(survey.facts.class_weights)
    if estimator.isSet(estimator.thresholds):
        check_thresholds(tuple(estimator.getThresholds()), classes)
    return Objective("softmax", classes) if classes > 2 else Objective("logistic")


class TreesEstimator(EnsembleSettings, FleetEstimator):
    """Base class of all estimators of trees."""

    _LOCAL_IS_DURABLE = True
    _MODEL: ClassVar[type[AnyTrees]]
    # The kernel that takes the longest time to compile, and the function that compiles it.
    _SLOW_KERNEL: ClassVar[tuple[Any, str]]

    @abstractmethod
    def _objective(self, survey: Survey) -> Objective:
        """Return the loss for a table; a random forest uses only whether it has classes ("squared": no)."""

    def _problem(self, survey: Survey, objective: Objective, initial: Forest | None = None) -> TreeProblem:
        """Return the problem, without ``base`` and ``reach``, which need another pass over the rows."""
        absent: Absent = "missing" if self.getAbsentAsMissing() else "zero"
        return TreeProblem(objective, survey.dim, (), absent, categories_of(survey.features), initial)

    def _compile_ahead(self) -> None:
        if self.getVia() != "servers":
            compile_ahead(*self._SLOW_KERNEL)

    def _earlier_via(self) -> Via | None:
        return via_of_resumed(PS2Context.getActive(), self._name)


class BoostingEstimator(BoostingSettings, HasInitialModel, TreesEstimator):
    """Base class of the estimators of boosted trees."""

    _SLOW_KERNEL = grow_boosted, "ps2.algorithms.trees.warm:warm_whole_trees"

    _on_round = cast(Any, None)
    # The users' functions (``PointwiseEstimator``); None: there is none.
    _custom_objective: RowFunction | None = None
    _custom_metric: RowFunction | None = None

    if TYPE_CHECKING:  # keywords, too
        initialModel: Any = None
        validationData: DataFrame | None = None

    def setInitialModel(self: E, value: BoostedModel | GBTModel | None) -> E:
        """Set a model to resume from; None: no model. ``maxIter`` counts new trees; the new model has all trees.

        The model may be a loaded one. A saved estimator does not contain it.

        Raises:
            ConfigError: the model is not one of boosted trees.
        """
        return super().setInitialModel(value)

    def _read_initial_model(self, value: Any) -> Forest:
        trained = value._trained if isinstance(value, BoostedModel) else value
        if not isinstance(trained, GBTModel):
            raise ConfigError(f"initialModel: expected a model of boosted trees, got {type(value).__name__}")
        return trained.forest

    def onRound(self: E, function: Callable[[StepReport], Any]) -> E:
        """Call a function in the driver after each round of trees. It is not a param, and is not saved.

        Args:
            function: called with the ``StepReport`` of the round: number, objective, validation, seconds and more. If
                it returns True, the training ends, and the model has the trees so far (with validation: up to the best
                round). If it raises an exception, ``fit`` fails. After a rollback of the fleet, the function may be
                called again for a round.
        """
        if not callable(function):
            raise ConfigError(f"onRound: expected a function, got {type(function).__name__}")
        self._on_round = function
        return self

    def _check(self) -> None:
        super()._check()
        for name in ("earlyStoppingRounds", "evalMetric"):
            if self.isSet(name) and not self.isSet("validationIndicatorCol"):
                raise ConfigError(f"{name}: expected with validationIndicatorCol, which marks the rows to measure")
        if self.isSet("maximize") and self._custom_metric is None:
            raise ConfigError("maximize: expected with customMetric, whose direction it is, got no customMetric")
        if self.isSet("evalMetric"):
            Metric.parse(self.getEvalMetric() or "")
        self._check_samples()
        samples_features = min(self.getColsampleBytree(), self.getColsampleBylevel()) < 1
        samples_features |= num_features_of(self.getFeatureSubsetStrategy(), MANY_FEATURES) > 0
        if self.isSet("featureWeights") and not samples_features:
            raise ConfigError(
                "featureWeights: expected with a featureSubsetStrategy, colsampleBytree or colsampleBylevel that "
                "samples features, got all"
            )
        if self.isSet("baseScore") and self.isSet("baseMarginCol"):
            raise ConfigError("baseScore: expected without baseMarginCol, which has the margin of each row")
        if self.isSet("baseScore") and self._initial is not None:
            raise ConfigError("baseScore: expected without an initial model, which has its own")
        if self.isSet("numTrees"):
            raise ConfigError("numTrees: expected for a model, which predicts by this many trees; maxIter is for fit")

    def _check_samples(self) -> None:
        for name, (param, value) in ONLY_WITH.items():
            if self.isSet(name) and self.getOrDefault(param) != value:
                raise ConfigError(f"{name}: expected with {param}={value!r}, got {self.getOrDefault(param)!r}")
        top, other, rate = self.getTopRate(), self.getOtherRate(), self.getSubsamplingRate()
        is_goss = self.getDataSampleStrategy() == "goss"
        if is_goss and rate < 1:
            raise ConfigError(f"subsamplingRate: expected 1 with dataSampleStrategy='goss', got {rate:g}")
        if is_goss and top + other > 1:
            raise ConfigError(f"otherRate: expected at most 1 - topRate, which is {1 - top:g}, got {other:g}")

    def _plan(self) -> BoostingPlan:
        settings = self._values(BoostingSettings)
        if settings.earlyStoppingRounds and not self.isSet("validationTol"):
            settings = with_values(settings, validationTol=0.0)
        metric = None
        if self._custom_metric is not None:
            metric = CustomMetric(function=self._custom_metric, maximize=bool(settings.maximize))
        return BoostingPlan(settings=settings, name=self._name, custom_metric=metric)

    def _survey_and_deal(self, dataset: DataFrame) -> tuple[Any, Any]:
        columns, sets = self._columns(), tuple[str, ...]()
        if columns.validation is not None:
            dataset, sets = with_set_numbers(dataset, columns.validation)
        survey, dealer = super()._survey_and_deal(dataset)
        return replace(survey, validation_sets=sets), dealer

    def _resolve(self, plan: BoostingPlan, survey: Survey) -> TreeTraining:
        objective, initial = self._objective(survey), self._initial
        objective = replace(objective, function=self._custom_objective).by_library(self.getDefaults())
        labels = survey.facts.label_range if objective.classes is None else range(objective.classes)
        check_functions(objective.function, self._custom_metric, labels, objective.width)
        Metric.parse(plan.settings.evalMetric or "").check(objective.loss)
        check_features(plan.settings, survey.dim)
        if self.getDefaults() == "catboost" and not self.isSet("stepSize"):
            rate = automatic_rate(plan.settings, objective.loss, survey.facts.rows)
            plan = replace(plan, settings=with_values(plan.settings, stepSize=rate))
        problem = with_statistics(self._problem(survey, objective, initial), plan.settings, survey.facts)
        plan = with_table_facts(plan, problem, survey.facts, self._columns().weight is not None)
        check_categories(problem.categories, plan.monotone)
        plan = replace(plan, validation_sets=survey.validation_sets)
        if initial is not None:
            check_initial(initial, objective, survey.dim)
            if initial.absent != problem.absent:
                raise ConfigError(f"absentAsMissing: expected {not self.getAbsentAsMissing()}, as of the initial model")
        return TreeTraining(plan, problem)

    def _work(self, training: TreeTraining, survey: Survey) -> Work:
        trees = training.plan.settings.maxIter * training.problem.objective.width
        return work_of(survey, training.plan, trees, columns=training.problem.dim - survey.dim)

    def _with_rows(self, job: Job) -> TreeTraining:
        warn_of_wide_integers(job.table.frame, job.survey.features)
        return self._with_margins(job.plan, job.placement.via, job.survey, job.table)

    def _with_margins(
        self, training: TreeTraining, via: Via, survey: Survey, table: Table, sums: LabelSums | None = None
    ) -> TreeTraining:
        """Return the training with the initial margins and their reach; sums: see ``_base``."""
        plan, problem = training
        base = self._base(problem.objective, survey, table, sums)
        reach = margin_reach(table, self._initial) if plan.settings.evalMetric else (0.0, 0.0)
        return TreeTraining(replace(plan, via=via), replace(problem, base=base, reach=reach))

    def _steps(self, training: TreeTraining) -> int:
        return int(training.plan.settings.maxIter)

    def _train(self, ps: PS2Context, job: Job, on_step: OnStep) -> Trained[Forest]:
        plan, problem = job.plan
        return train(ps, job.table, problem, plan, job.survey.facts, self._on_round_after(on_step))

    def _on_round_after(self, on_step: OnStep) -> Callable[[StepReport], Any]:
        def on_round(report: StepReport) -> Any:
            on_step(report)
            return None if self._on_round is None else self._on_round(report)

        return on_round

    def _trained_model(self, trained: Trained[Forest], job: Job) -> Any:
        return self._public_model(trained, job.plan.plan.settings.stepSize)

    def _public_model(self, trained: Trained[Forest], rate: float) -> Any:
        model: Any = self._MODEL._of(GBTModel(trained.model))
        return model if rate == self.getStepSize() else model._set(stepSize=rate)

    def _base(
        self, objective: Objective, survey: Survey, table: Table, sums: LabelSums | None = None
    ) -> tuple[float, ...]:
        """Return the margins before the first tree; sums None: compute the sums in a job if they are needed."""
        facts, level = survey.facts, objective.label_quantile_level
        if self._initial is not None:
            return tuple(self._initial.base.tolist())
        if self.isSet("baseMarginCol") and objective.width > 1:
            raise ConfigError(f"baseMarginCol: expected one margin a row, but {objective.width} classes have one each")
        if self.isSet("baseScore"):
            return base_of_score(objective, self.getOrDefault("baseScore"))
        if objective.starts_at_zero or self.isSet("baseMarginCol"):
            return (0.0,)
        quantile = 0.0 if level is None else label_quantile(table, level, facts)
        mean, class_weights, row_weight = facts.label_mean, facts.class_weights, 1.0
        if level is None and (not class_weights or table.columns.weight is not None):
            # The sums of the survey are not used: their last digits depend on the order of the rows.
            sums = sums or label_sums(table, of_classes=bool(class_weights))
            mean, row_weight = sums.mean, sums.weight / facts.rows
            class_weights = tuple(sums.class_weights.get(label, 0.0) for label in range(len(class_weights)))
        return tuple(objective.base(mean, np.array(class_weights), quantile, row_weight).tolist())


class PointwiseEstimator(BoostingEstimator):
    """Base class of the estimators whose gradients depend on single rows, so that users' functions can compute them."""

    _OBJECTS = (*BoostingEstimator._OBJECTS, "objective", "customMetric")

    def _one_job(self, plan: BoostingPlan, dataset: DataFrame) -> OneJob | None:
        return BoostingJob.make(self, plan, dataset)

    if TYPE_CHECKING:  # keywords, too
        objective: Any = None
        customMetric: Any = None

    def setObjective(self: R, value: Callable[..., Any] | None) -> R:
        """Set a function that replaces the loss's gradients; None: no function. It is not a param, and is not saved.

        The loss (``lossType``) still decides what labels are valid, the initial margin, and how margins become
        predictions. It is also the loss in reports, unless ``customMetric`` is set.

        Args:
            value: a picklable function of margins, labels and weights, float64 arrays of some rows. It returns the
                gradients and the hessians (>= 0) of the loss by the margins, multiplied by the weights. All arrays have
                shape (n,); with more than two classes, margins, gradients and hessians have shape (n, classes). The
                result for a row must depend on this row alone. Workers call it, possibly in several threads.

        Raises:
            ConfigError: the value is no function.
        """
        self._custom_objective = None if value is None else RowFunction("objective", value)
        return self

    def setCustomMetric(self: R, value: Callable[..., Any] | None) -> R:
        """Set a function that measures held-out rows instead of ``evalMetric``; ``maximize`` is its direction.

        With ``objective``, it also measures the training rows, for ``objectiveHistory``. It is not a param, and is not
        saved.

        Args:
            value: a picklable function of margins, labels and weights, as that of ``setObjective``. It returns two
                numbers for these rows, such as the weighted sum of errors and the sum of weights. The metric is the sum
                of the first numbers of all workers, divided by the sum of the second ones. None: no function.

        Raises:
            ConfigError: the value is no function.
        """
        self._custom_metric = None if value is None else RowFunction("customMetric", value)
        return self

    def _check(self) -> None:
        super()._check()
        held_out = self.isSet("validationIndicatorCol")
        if self._custom_metric is not None:
            if not self.isSet("maximize"):
                raise ConfigError(
                    "maximize: expected True or False with customMetric: whether a larger value is better"
                )
            if self.isSet("evalMetric"):
                raise ConfigError(f"evalMetric: expected without customMetric, got {self.getEvalMetric()!r}")
            if not held_out and self._custom_objective is None:
                raise ConfigError("customMetric: expected with validationIndicatorCol or objective, got neither")
        elif held_out and self._custom_objective is not None and not self.isSet("evalMetric"):
            raise ConfigError(
                "objective: expected with evalMetric or customMetric if validationIndicatorCol is set, as the function "
                "computes no loss of the rows that are held out"
            )

    def write(self) -> MLWriter:
        """Return a writer: ``write().overwrite().save(path)``.

        Raises:
            UsageError: there is an initial model or a function, which is not part of the file.
        """
        for function in (self._custom_objective, self._custom_metric):
            if function is not None:
                raise UsageError(f"{function.param}: a file of the estimator would lack the function; save the model")
        return super().write()


class GBTClassifier(GBTClassifierSettings, PointwiseEstimator, ProbabilisticClassifier):
    """Gradient boosted trees: ``pyspark.ml.classification.GBTClassifier`` on servers, for any number of classes.

    Example::

        model = GBTClassifier(maxIter=50, maxDepth=6, maxBins=256).fit(df)
        model.transform(df).select("label", "probability", "prediction").show()
    """

    __module__ = "ps2.algorithms.classification"

    _MODEL = GBTClassificationModel
    _CLASSES = 0

    def _objective(self, survey: Survey) -> Objective:
        return class_objective(self, survey)


class GBTRegressor(GBTRegressorSettings, PointwiseEstimator, Regressor["GBTRegressionModel"]):
    """Gradient boosted trees: ``pyspark.ml.regression.GBTRegressor`` on servers, with more losses.

    Example::

        model = GBTRegressor(maxIter=50, maxDepth=6, maxBins=256).fit(df)
    """

    __module__ = "ps2.algorithms.regression"

    _MODEL = GBTRegressionModel

    def _check(self) -> None:
        super()._check()
        loss, shape = self.getLossType(), self.getLossShape()
        if not 0 < shape < (1 if loss == "quantile" else np.inf):
            expected = "a number in (0, 1)" if loss == "quantile" else "a finite positive number"
            raise ConfigError(f"lossShape: expected {expected}, got {shape:g}")

    def _objective(self, survey: Survey) -> Objective:
        loss, facts = self.getLossType(), survey.facts
        low, high = facts.label_range
        name = f"column {self.getLabelCol()!r}"
        if max(-low, high) > MAX_LABEL:
            label = low if -low > high else high
            raise InputError(f"{name}: expected labels up to {MAX_LABEL:g}, the limit for leaves, got {label:g}")
        if loss == "poisson" and low < 0:
            raise InputError(f"{name}: expected counts for loss 'poisson', got labels down to {low:g}")
        if loss == "poisson" and not facts.label_mean > 0:
            raise InputError(f"{name}: expected a count above 0 for loss 'poisson', got only zeros")
        return Objective(cast(LossName, loss), shape=self.getLossShape())


class GBTRanker(GBTRankerSettings, BoostingEstimator, Predictor["GBTRankerModel"]):
    """LambdaMART on servers: gradient boosted trees whose predictions order the rows of each group by relevance.

    Labels are relevances, integers from 0 to 31; a label's gain is 2^label - 1. The rows of a group are moved to one
    worker. A group of one row, or without two different labels, does not change the trees.

    Example::

        model = GBTRanker(groupCol="query", maxIter=100, maxDepth=6).fit(df)
        model.evaluate(df).ndcgAt(10)
    """

    __module__ = "ps2.algorithms.ranking"

    _MODEL = GBTRankerModel

    def _check(self) -> None:
        super()._check()
        if not self.isSet("groupCol"):
            raise ConfigError("groupCol: expected the name of the column whose rows are ranked together, got none")

    def _survey(self, dataset: DataFrame, columns: ColumnNames) -> Survey:
        check_relevance(dataset, columns)
        survey: Survey = super()._survey(dataset, columns)
        return survey

    def _objective(self, survey: Survey) -> Objective:
        return Objective("lambdarank", shape=float(self.getLambdarankNumPairPerSample()))
