"""The base classes of deep estimators and models."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampNTZType

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.model import DeepModel, SharedLayers
from ps2.algorithms.deep.plan import DeepPlan
from ps2.algorithms.deep.program import DeepProgram, DeepTable, compared_settings, train
from ps2.algorithms.deep.settings import DeepSettings
from ps2.algorithms.deep.worker import Learner
from ps2.algorithms.frame.dealing import check_workers, deal_rows
from ps2.algorithms.frame.estimator import HELD_OUT, Job, SurveyingEstimator
from ps2.algorithms.frame.journal import Journal
from ps2.algorithms.frame.keyed_models import MANAGED_KEYS, KeyedEstimator, KeyedModel
from ps2.algorithms.frame.memory import freed_on_failure
from ps2.algorithms.frame.placement import Cores
from ps2.algorithms.frame.tables import (
    NO_ROWS,
    check_held_out,
    check_label_is_apart,
    check_numbers,
    check_times,
    column,
    field,
    in_one_partition_if_small,
)
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.only_worker import OnStep
from ps2.algorithms.training.record import Trained, TrainingHistory
from ps2.algorithms.training.streams.labelled_rows import NEVER
from ps2.algorithms.training.streams.start import ModelFactory
from ps2.algorithms.training.table import COST, LOAD_SUMS, PART, Load, loads_of, quoted
from ps2.client.embedding_settings import TableOptimizer, TableSettings
from ps2.client.embedding_table import EmbeddingTable
from ps2.coordinator.context import PS2Context
from ps2.coordinator.training_host import training_host
from ps2.data.hashing import FieldHasher
from ps2.errors import ConfigError, InputError
from ps2.run.spark.backend_lookup import backend_of

# The arguments of an ``EmbeddingTable`` that are learning rates, by optimizer; other optimizers have "lr".
RATES = {"ftrl+adagrad": ("lr", "alpha"), "ftrl": ("alpha",)}
# The arguments of an ``EmbeddingTable`` that are not hyperparameters of its optimizer.
TABLE_ARGUMENTS = ("k", "optimizer", "zeroColumns", "init", "initScale", "seed", "clock", *MANAGED_KEYS)
# The temporary column of labels, all 1, for rows that are positive pairs and have no labels.
POSITIVE = "ps2 positive"
# The fields of ``Architecture`` in which an estimator must agree with a model that it continues to train.
ARCHITECTURE_FIELDS = ("k", "fields", "deep", "hidden", "temperature", "interaction")
# The params that are fixed when a table is allocated.
TABLE_PARAMS = ("embeddingStepSize", "regParam", "initStd", *MANAGED_KEYS)


@dataclass(frozen=True, eq=False)
class DeepDealer:
    """Deals a surveyed table to a number of workers; ``loads``: the load of each rdd_partition with rows, by index."""

    table: DeepTable
    loads: dict[int, Load]

    def __call__(self, workers: int) -> DeepTable:
        rows = deal_rows(self.table.frame, self.loads, workers, F.lit(1.0))
        return replace(self.table, frame=rows, workers=workers)

    @property
    def cores(self) -> Cores:
        """The number of workers; trainings on servers do not use the other fields."""
        return Cores(1, self.table.workers, 1)


class DeepEstimator(DeepSettings, KeyedEstimator, SurveyingEstimator):
    """The base class of deep estimators."""

    _SETTINGS: ClassVar[type[DeepSettings]]

    def _order_fields(self, hasher: FieldHasher) -> FieldHasher:
        """Return the hasher with its fields in the order that the architecture needs."""
        return hasher

    @abstractmethod
    def _architecture(self, hasher: FieldHasher) -> Architecture:
        """Return the architecture for the params, and for rows with the hasher's fields."""

    def _label(self) -> str | None:
        """Return the column of labels; None: all rows are positive pairs without labels."""
        return self.getLabelCol()

    def _plan(self) -> DeepPlan:
        return DeepPlan(settings=self._values(self._SETTINGS), name=self._name)

    def _fit(self, dataset: DataFrame) -> Any:
        self._check_frame(dataset)
        self._check()
        return self._learn(dataset, self._initial, self._plan())

    def _learn_once(self, dataset: DataFrame, model: Any) -> Any:
        return self._learn(dataset, model, self._plan().with_settings(maxIter=1, patience=0))

    def _learn(self, dataset: DataFrame, model: Any, plan: DeepPlan) -> Any:
        """Train a model, which is new if ``model`` is None; a model that exists has no room for its best epoch."""
        if model is None:
            fitted, history = self._survey_and_train(plan, dataset)
            return self._finish_model(fitted, dataset, history)
        surveyed, dealer = self._survey_and_deal(dataset)
        self._check_model(model, surveyed.hasher)
        table: Any = dealer(surveyed.workers)
        # This estimator's dropout rate replaces the model's.
        trained = replace(model.fitted, architecture=self._architecture(table.hasher))

        def run(ps: PS2Context, on_step: OnStep) -> TrainingHistory:
            training_host(ps).streams.check_free(trained.name)
            return train(ps, table, trained, plan.with_settings(patience=0), on_step)

        model._remember(dataset, self._train_in_context(table, plan.settings.maxIter, run))
        return model

    def _model_factory(self, frame: DataFrame, given: DeepFittedModel | None) -> ModelFactory:
        if self._label() is None:
            raise ConfigError("loss: expected 'logistic' for fitStream, whose rows have labels, got 'softmax'")
        hasher = self._order_fields(self._hasher(frame))
        reader, architecture = self._reader(frame, hasher), self._architecture(hasher)
        plan = DeepPlan(settings=self._values(self._SETTINGS))
        if given is not None:
            self._check_model(given, hasher)
        return ModelFactory(
            architecture.kind,
            {
                "architecture": architecture.to_json(),
                "hasher": hasher.to_json(),
                "optimizer": self.getOptimizer(),
                "life": self._key_arguments(),
            },
            lambda name: self._finish_model(self._MODEL._of(self._begin(hasher, name))),
            lambda name, ps: self._finish_model(self._MODEL._of(self._existing(hasher, name, ps))),
            lambda model: Learner(architecture, plan, model.fitted.layers, model.table),
            reader,
        )

    def _begin(self, hasher: FieldHasher, name: str, with_copy: bool = False) -> DeepModel:
        """Allocate a new model on the servers of the active context, with room for a copy if asked for."""
        architecture = self._architecture(hasher)
        arguments = {**table_arguments(self, architecture), "withCopy": with_copy}
        return DeepModel.new(architecture, hasher, arguments, self._seed, name)

    def _existing(self, hasher: FieldHasher, name: str, ps: PS2Context) -> DeepModel:
        """Return the model with this name on the fleet of a context."""
        architecture = self._architecture(hasher)
        arguments = table_arguments(self, architecture)
        hyperparameters = {key: value for key, value in arguments.items() if key not in TABLE_ARGUMENTS}
        sizes = architecture.width, architecture.num_linear
        optimizer = TableOptimizer.of(arguments["optimizer"], *sizes, hyperparameters)
        settings = TableSettings(optimizer, zero_columns=architecture.num_linear)
        table = EmbeddingTable.existing(ps.vector(name).matrix(), settings)
        return DeepModel(architecture, hasher, SharedLayers.existing(architecture, ps, name), table, name)

    def _check_settings(self, model: DeepFittedModel, hasher: FieldHasher) -> None:
        requested, existing = self._architecture(hasher), model.fitted.architecture
        values = {name: (getattr(requested, name), getattr(existing, name)) for name in ARCHITECTURE_FIELDS}
        values["optimizer"] = self.getOptimizer(), model.table.optimizer
        for name, (value, expected) in values.items():
            if value != expected:
                raise ConfigError(f"model: {name}: expected {expected}, as the model has, got {value}")
        for name in TABLE_PARAMS:
            value, expected = (owner.getOrDefault(name) if owner.isDefined(name) else None for owner in (self, model))
            if self.isSet(name) and value != expected:
                raise ConfigError(f"{name}: expected {expected}, as the model's table has, got {value}")

    def _with_rows(self, job: Job) -> DeepPlan:
        plan: DeepPlan = job.plan
        return plan.with_passes(cast("DeepTable", job.table).rows)

    def _train(self, ps: PS2Context, job: Job, on_step: OnStep) -> Trained[DeepModel]:
        """Train a new model, or that of a restored context."""
        table: Any = job.table
        name = f"{self._name}/0" if self._name else ""
        architecture = self._architecture(table.hasher)
        names = CheckpointNames.of(self._name, ps)
        settings = {**table_arguments(self, architecture), **architecture.to_json()}
        settings |= compared_settings(table, job.plan)
        # Compare the settings first: they determine the matrices that the checkpoint must have.
        Journal.of(names, settings, DeepProgram.number)
        if names.finished_clocks:
            model = self._existing(table.hasher, name, ps)
        else:
            keeps_best = table.held_total > 0 and job.plan.settings.patience > 0
            model = self._begin(table.hasher, name, keeps_best)
        with freed_on_failure(model):
            return Trained(model, train(ps, table, model, job.plan, on_step, names, settings))

    def _survey_and_deal(self, dataset: DataFrame) -> tuple[DeepTable, DeepDealer]:
        """Check labels and weights in a Spark job; return the columns that a training needs, and their dealer."""
        hasher = self._order_fields(self._hasher(dataset))
        spark = backend_of(dataset)
        label, weight = self._label(), self._if_set("weightCol")
        check_label_is_apart(label, hasher.columns)
        held_out = self._if_set("validationIndicatorCol")
        check_workers(spark, self._requested_workers)
        labels = survey_labels(dataset, label, weight, self._time_column(), held_out)
        # The column of weights can also be a key column.
        columns = [column(name) for name in dict.fromkeys([*hasher.columns, label, weight]) if name is not None]
        if labels.held_weight:
            columns.append(column(held_out).cast("boolean").alias(HELD_OUT))
        if label is None:
            columns.append(F.lit(1.0).alias(POSITIVE))
        workers = min(self._requested_workers or spark.total_slots(), labels.rows)
        table = DeepTable(
            *(dataset.select(*columns), hasher, label or POSITIVE, weight, workers, labels.rows, labels.weight),
            *(labels.newest_s, HELD_OUT if labels.held_weight else None, labels.held_weight),
        )
        return table, DeepDealer(table, labels.loads)


class DeepFittedModel(DeepSettings, KeyedModel):
    """The base class of trained deep models."""

    _ARRAYS = DeepModel

    def __repr__(self) -> str:
        architecture = self.fitted.architecture
        sizes = f"factorSize={architecture.k}, hiddenLayers={list(architecture.hidden)}"
        return f"{type(self).__name__}: uid={self.uid}, {sizes}"

    @property
    def fitted(self) -> DeepModel:
        """The model on the servers: its architecture, ``EmbeddingTable`` and layers."""
        fitted: DeepModel = self._fitted
        return fitted


def table_arguments(params: Any, architecture: Architecture) -> dict[str, Any]:
    """Return the arguments of the ``EmbeddingTable`` for an estimator's params."""
    optimizer, penalty = params.getOptimizer(), params.getRegParam()
    rates = dict.fromkeys(RATES.get(optimizer, ("lr",)), params.getEmbeddingStepSize())
    penalties = {"l2": penalty, **({"decay": penalty} if optimizer == "ftrl+adagrad" else {})} if penalty else {}
    return {
        "k": architecture.width,
        "optimizer": optimizer,
        "zeroColumns": architecture.num_linear,
        "init": "normal",
        "initScale": params.getInitStd(),
        "seed": params._seed,
        **params._key_arguments(),
        **rates,
        **penalties,
    }


@dataclass(frozen=True, eq=False)
class LabelSurvey:
    """The survey of the rows of a training.

    Attributes:
        loads: the load of each rdd_partition with rows, by its index.
        rows: the number of rows to train on.
        weight, held_weight: the sums of the weights of the rows to train on, and of the others.
        newest_s: the latest time of a row, in seconds; minus infinity without times.
    """

    loads: dict[int, Load]
    rows: int
    weight: float
    held_weight: float
    newest_s: float


def survey_labels(
    frame: DataFrame, label: str | None, weight: str | None, time: str | None, held_out: str | None = None
) -> LabelSurvey:
    """Check the columns of labels, weights, times and held-out rows; raise InputError for no rows or a faulty value."""
    columns = [F.spark_partition_id().alias(PART), F.lit(1.0).alias(COST)]
    aggregates = list(map(F.expr, LOAD_SUMS))
    w, is_held_out = F.lit(1.0), F.lit(False)
    if held_out is not None:
        check_held_out(frame, held_out)
        columns.append(column(held_out).cast("boolean").alias("h"))
        is_held_out = F.col("h")
        aggregates += _faults("h", is_held_out.isNull())
    if label is not None:
        columns.append(_number(frame, label, "labels").alias("y"))
        aggregates += _faults("y", F.col("y").isNull() | ~F.col("y").isin(0.0, 1.0))
    if weight is not None:
        w = F.col("w")
        columns.append(_number(frame, weight, "weights").alias("w"))
        is_bad = w.isNull() | F.isnan(w) | (w < 0) | (w == float("inf"))
        aggregates += _faults("w", is_bad)
    if time is not None:
        columns.append(_seconds(frame, time).alias("t"))
        seconds = F.col("t")
        is_bad = seconds.isNull() | ~(F.abs(seconds) < float("inf"))
        aggregates += [*_faults("t", is_bad), F.max(seconds).alias("newest")]
    aggregates += [
        F.count(F.when(~is_held_out, 1)).alias("trained"),
        F.sum(F.when(is_held_out, 0.0).otherwise(w)).alias("total"),
        F.sum(F.when(is_held_out, w).otherwise(0.0)).alias("held_total"),
    ]
    groups = in_one_partition_if_small(frame.select(*columns)).groupBy(PART).agg(*aggregates).collect()
    if not groups:
        raise InputError(NO_ROWS)
    for alias, name, expected in (
        ("y", label, "labels 0 or 1"),
        ("w", weight, "finite weights that are not negative"),
        ("t", time, "finite times"),
        ("h", held_out, "true or false"),
    ):
        if name is not None and (faulty := [row for row in groups if row[f"{alias}_faults"]]):
            count, example = sum(row[f"{alias}_faults"] for row in faulty), faulty[0][f"{alias}_example"]
            raise InputError(f"column {name!r}: expected {expected}, got {example} in {count:,} rows")
    rows, total, held_total = (sum(row[name] for row in groups) for name in ("trained", "total", "held_total"))
    if not rows:
        raise InputError(f"expected rows to train on, but all of them are held out ({held_out})")
    if not 0 < total < math.inf or not held_total < math.inf:
        raise InputError(
            f"column {weight!r}: expected weights whose sum is finite and above 0, got {total:g} and, of held-out "
            f"rows, {held_total:g}"
        )
    newest_s = NEVER if time is None else max(row["newest"] for row in groups)
    return LabelSurvey(loads_of(groups), rows, total, held_total, newest_s)


def _number(frame: DataFrame, name: str, role: str) -> Column:
    """Return a numeric column as doubles."""
    check_numbers(frame, name, role)
    return column(name).cast("double")


def _seconds(frame: DataFrame, name: str) -> Column:
    """Return a column of times in seconds, the same values as those of ``read_times``."""
    check_times(frame, name)
    if isinstance(field(frame, name).dataType, TimestampNTZType):
        t = quoted(name)
        return F.expr(
            f"(unix_date(cast({t} as date)) * 86400000000L + hour({t}) * 3600000000L + minute({t}) * 60000000L"
            f" + cast(extract(second from {t}) * 1000000 as bigint)) / 1e6d"
        )
    return column(name).cast("double")


def _faults(name: str, is_bad: Column) -> list[Column]:
    """Return aggregates of a column: the number of bad values, and an example."""
    text = F.coalesce(F.col(name).cast("string"), F.lit("null"))
    return [
        F.count(F.when(is_bad, 1)).alias(f"{name}_faults"),
        F.first(F.when(is_bad, text), ignorenulls=True).alias(f"{name}_example"),
    ]
