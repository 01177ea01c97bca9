"""The base classes of deep estimators and models."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampNTZType

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.model import DeepModel, SharedLayers
from ps2.algorithms.deep.plan import DeepPlan
from ps2.algorithms.deep.program import DeepTable, Resumable, train
from ps2.algorithms.deep.settings import DeepSettings
from ps2.algorithms.deep.worker import Learner
from ps2.algorithms.frame.dealing import check_workers, deal_rows
from ps2.algorithms.frame.keyed_models import MANAGED_KEYS, KeyedEstimator, KeyedModel
from ps2.algorithms.frame.memory import freed_on_failure
from ps2.algorithms.frame.retry import retry_after_server_loss
from ps2.algorithms.frame.settings import with_values
from ps2.algorithms.frame.tables import (
    NO_ROWS,
    check_label_is_apart,
    check_numbers,
    check_times,
    column,
    field,
    in_one_partition_if_small,
)
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.record import StepReport, TrainingHistory
from ps2.algorithms.training.streams.labelled_rows import NEVER
from ps2.algorithms.training.streams.start import ModelFactory
from ps2.algorithms.training.table import COST, LOAD_SUMS, PART, Load, Table, loads_of, quoted
from ps2.client.embedding_settings import TableOptimizer, TableSettings
from ps2.client.embedding_table import EmbeddingTable
from ps2.coordinator.context import PS2Context
from ps2.coordinator.training_host import training_host
from ps2.data.hashing import FieldHasher
from ps2.errors import ConfigError, InputError
from ps2.run.spark.backend_lookup import backend_of

# The names of the learning rate of each optimizer of a table.
RATES = {"ftrl+adagrad": ("lr", "alpha"), "ftrl": ("alpha",)}
# Arguments of an ``EmbeddingTable`` that are no hyperparameters of its optimizer.
TABLE_ARGUMENTS = ("k", "optimizer", "zeroColumns", "init", "initScale", "seed", "clock", *MANAGED_KEYS)
# The column of labels of positive pairs, which have none.
POSITIVE = "ps2 positive"
# Parts of an architecture that a model keeps.
ARCHITECTURE_PARTS = ("k", "fields", "deep", "hidden", "temperature")
# Params that do not change in the life of a table.
TABLE_PARAMS = ("embeddingStepSize", "regParam", "initStd", *MANAGED_KEYS)


class DeepEstimator(DeepSettings, KeyedEstimator):
    """Base class of deep estimators."""

    _SETTINGS: ClassVar[type[DeepSettings]]

    def _arranged(self, hasher: FieldHasher) -> FieldHasher:
        """Return a hasher with its fields in the order that the architecture needs."""
        return hasher

    @abstractmethod
    def _architecture(self, hasher: FieldHasher) -> Architecture:
        """Return the architecture that the params describe, for rows of a hasher's fields."""

    def _label(self) -> str | None:
        """Return the column of labels; None: all rows are positive."""
        return self.getLabelCol()

    def _train_on(self, dataset: DataFrame) -> tuple[DeepFittedModel, TrainingHistory]:
        return self._new_model(self._table(dataset), self.getMaxIter())

    def _new_model(self, table: DeepTable, epochs: int) -> tuple[DeepFittedModel, TrainingHistory]:
        fitted, history = retry_after_server_loss(lambda: self._train(table, None, epochs))
        return self._MODEL._of(fitted), history

    def _learn_once(self, dataset: DataFrame, model: Any) -> Any:
        table = self._table(dataset)
        if model is None:
            fitted, history = self._new_model(table, 1)
            return self._finish_model(fitted, dataset, history)
        self._check_model(model, table.hasher)
        # Dropout is this estimator's.
        own = replace(model.fitted, architecture=self._architecture(table.hasher))
        _, history = self._train(table, own, 1)
        model._remember(dataset, history)
        return model

    def _model_factory(self, frame: DataFrame, given: DeepFittedModel | None) -> ModelFactory:
        if self._label() is None:
            raise ConfigError("loss: fitStream needs 'logistic', as its rows have labels, got 'softmax'")
        hasher = self._arranged(self._hasher(frame))
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

    def _begin(self, hasher: FieldHasher, name: str) -> DeepModel:
        """Put a new model on the servers of the active context."""
        architecture = self._architecture(hasher)
        return DeepModel.new(architecture, hasher, table_arguments(self, architecture), self._seed, name)

    def _existing(self, hasher: FieldHasher, name: str, ps: PS2Context) -> DeepModel:
        """Return the model of that name, which the fleet of a context has."""
        architecture = self._architecture(hasher)
        arguments = table_arguments(self, architecture)
        rates = {key: value for key, value in arguments.items() if key not in TABLE_ARGUMENTS}
        optimizer = TableOptimizer.of(arguments["optimizer"], architecture.width, architecture.num_linear, rates)
        settings = TableSettings(optimizer, zero_columns=architecture.num_linear)
        table = EmbeddingTable.existing(ps.vector(name).matrix(), settings)
        return DeepModel(architecture, hasher, SharedLayers.existing(architecture, ps, name), table, name)

    def _check_settings(self, model: DeepFittedModel, hasher: FieldHasher) -> None:
        own, other = self._architecture(hasher), model.fitted.architecture
        pairs = {name: (getattr(own, name), getattr(other, name)) for name in ARCHITECTURE_PARTS}
        pairs["optimizer"] = self.getOptimizer(), model.table.optimizer
        for name, (value, expected) in pairs.items():
            if value != expected:
                raise ConfigError(f"model: {name}: expected {expected}, as the model has, got {value}")
        for name in TABLE_PARAMS:
            value, expected = (one.getOrDefault(name) if one.isDefined(name) else None for one in (self, model))
            if self.isSet(name) and value != expected:
                raise ConfigError(f"{name}: expected {expected}, as the model has, whose table stays, got {value}")

    def _train(self, table: DeepTable, model: DeepModel | None, epochs: int) -> tuple[DeepModel, TrainingHistory]:
        """Train a model, a new one if there is none, or go on with that of a restored context."""
        plan = DeepPlan(settings=with_values(self._values(self._SETTINGS), maxIter=epochs))

        def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> tuple[DeepModel, TrainingHistory]:
            if model is not None:
                training_host(ps).streams.check_free(model.name)
                return model, train(ps, table, model, plan, on_step)
            hasher, name = table.hasher, f"{self._name}/0" if self._name else ""
            architecture = self._architecture(hasher)
            settings = {**table_arguments(self, architecture), **architecture.to_json()}
            training = Resumable.of(self._name, ps, table, plan, settings)
            new = self._existing(hasher, name, ps) if training.names.begun else self._begin(hasher, name)
            with freed_on_failure(new):
                return new, train(ps, table, new, plan, on_step, training)

        columns = ColumnNames((), table.label, table.weight)
        return self._train_in_context(Table(table.frame, columns, table.workers), epochs, run)

    def _table(self, dataset: DataFrame) -> DeepTable:
        """Check labels and weights in a Spark job; return the columns that a training needs, dealt out to workers."""
        hasher = self._arranged(self._hasher(dataset))
        spark = backend_of(dataset)
        label, weight = self._label(), self._if_set("weightCol")
        check_label_is_apart(label, hasher.columns)
        check_workers(spark, self._requested_workers)
        loads, total, newest_s = survey_labels(dataset, label, weight, self._time())
        num_rows = sum(load.rows for load in loads.values())
        # A column of weights may be a key column, too.
        columns = [column(name) for name in dict.fromkeys([*hasher.columns, label, weight]) if name is not None]
        if label is None:
            columns.append(F.lit(1.0).alias(POSITIVE))
        workers = min(self._requested_workers or spark.total_slots(), num_rows)
        rows = deal_rows(dataset.select(*columns), loads, workers, F.lit(1.0))
        return DeepTable(rows, hasher, label or POSITIVE, weight, workers, num_rows, total, newest_s)


class DeepFittedModel(DeepSettings, KeyedModel):
    """Base class of trained deep models."""

    def __repr__(self) -> str:
        sizes = self.fitted.architecture
        return f"{type(self).__name__}: uid={self.uid}, factorSize={sizes.k}, hiddenLayers={list(sizes.hidden)}"

    @property
    def fitted(self) -> DeepModel:
        """The model on the servers: its architecture, ``EmbeddingTable`` and layers."""
        fitted: DeepModel = self._fitted
        return fitted

    @classmethod
    def _read_content(cls, path: str, url: str, content: Any) -> DeepModel:
        return DeepModel.read(path, url, content)


def table_arguments(params: Any, architecture: Architecture) -> dict[str, Any]:
    """Return the arguments of the ``EmbeddingTable``."""
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


def survey_labels(
    frame: DataFrame, label: str | None, weight: str | None, time: str | None
) -> tuple[dict[int, Load], float, float]:
    """Count rows and sum weights; check that labels are 0 or 1, weights finite and not negative, and times finite.

    Returns:
        The rows of each rdd_partition that has any, by its number; the sum of the weights of all rows; and the largest
        time of a row, in seconds, minus infinity without times.

    Raises:
        InputError: there are no rows; or a column is missing, has another type, or has other values: the message says
            in how many rows, and names one value.
    """
    columns = [F.spark_partition_id().alias(PART), F.lit(1.0).alias(COST)]
    aggregates = list(map(F.expr, LOAD_SUMS))
    if label is not None:
        columns.append(_number(frame, label, "labels").alias("y"))
        aggregates += _faults("y", F.col("y").isNull() | ~F.col("y").isin(0.0, 1.0))
    if weight is not None:
        w = F.col("w")
        columns.append(_number(frame, weight, "weights").alias("w"))
        bad = w.isNull() | F.isnan(w) | (w < 0) | (w == float("inf"))
        aggregates += [*_faults("w", bad), F.sum(w).alias("total")]
    if time is not None:
        columns.append(_seconds(frame, time).alias("t"))
        seconds = F.col("t")
        bad = seconds.isNull() | ~(F.abs(seconds) < float("inf"))
        aggregates += [*_faults("t", bad), F.max(seconds).alias("newest")]
    groups = in_one_partition_if_small(frame.select(*columns)).groupBy(PART).agg(*aggregates).collect()
    if not groups:
        raise InputError(NO_ROWS)
    for value, name, expected in (
        ("y", label, "labels 0 or 1"),
        ("w", weight, "finite weights that are not negative"),
        ("t", time, "finite times"),
    ):
        if name is not None and (wrong := [row for row in groups if row[f"{value}_wrong"]]):
            count, shown = sum(row[f"{value}_wrong"] for row in wrong), wrong[0][f"{value}_shown"]
            raise InputError(f"column {name!r}: expected {expected}, got {shown} in {count:,} rows")
    total = float(sum(row["rows" if weight is None else "total"] for row in groups))
    if not 0 < total < math.inf:
        raise InputError(f"column {weight!r}: expected weights whose sum is finite and above 0, got {total:g}")
    return loads_of(groups), total, NEVER if time is None else max(row["newest"] for row in groups)


def _number(frame: DataFrame, name: str, role: str) -> Column:
    check_numbers(frame, name, role)
    return column(name).cast("double")


def _seconds(frame: DataFrame, name: str) -> Column:
    """Return a column of times as seconds, the numbers that ``read_times`` returns."""
    check_times(frame, name)
    if isinstance(field(frame, name).dataType, TimestampNTZType):
        t = quoted(name)
        return F.expr(
            f"(unix_date(cast({t} as date)) * 86400000000L + hour({t}) * 3600000000L + minute({t}) * 60000000L"
            f" + cast(extract(second from {t}) * 1000000 as bigint)) / 1e6d"
        )
    return column(name).cast("double")


def _faults(name: str, bad: Column) -> list[Column]:
    """Return aggregates of a column: how many rows are wrong, and one of their values."""
    shown = F.coalesce(F.col(name).cast("string"), F.lit("null"))
    return [
        F.count(F.when(bad, 1)).alias(f"{name}_wrong"),
        F.first(F.when(bad, shown), ignorenulls=True).alias(f"{name}_shown"),
    ]
