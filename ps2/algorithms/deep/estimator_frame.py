"""The base classes of deep estimators and models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.label_survey_frame import survey_labels
from ps2.algorithms.deep.model import DeepModel, DeepPredictor
from ps2.algorithms.deep.plan import DeepPlan
from ps2.algorithms.deep.program import DeepTable, Resumable, train
from ps2.algorithms.deep.settings import DeepSettings
from ps2.algorithms.deep.shared_layers import SharedLayers
from ps2.algorithms.deep.stream import DeepStreamProgram
from ps2.algorithms.frame.dealing import check_workers, deal_rows
from ps2.algorithms.frame.frames import spark_calls
from ps2.algorithms.frame.key_hasher import KeyParams
from ps2.algorithms.frame.memory import freed_on_failure
from ps2.algorithms.frame.models import FittedModel
from ps2.algorithms.frame.retry import retry_after_server_loss
from ps2.algorithms.frame.settings import with_values
from ps2.algorithms.frame.streams import MANAGED_KEYS, StreamEstimator
from ps2.algorithms.frame.tables import check_label_is_apart, column
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.observing import watched_fit
from ps2.algorithms.training.record import StepReport, TrainingHistory
from ps2.algorithms.training.streams.start import ModelFactory
from ps2.algorithms.training.streams.task import check_clock
from ps2.algorithms.training.table import Table
from ps2.client.embedding_settings import TableOptimizer, TableSettings
from ps2.client.embedding_table import EmbeddingTable
from ps2.coordinator.context import PS2Context
from ps2.coordinator.training_host import training_host
from ps2.data.hashing import FieldHasher
from ps2.errors import ConfigError, StoppedError
from ps2.run.spark.backend_lookup import backend_of

# The names of the learning rate of each optimizer of a table.
RATES = {"ftrl+adagrad": ("lr", "alpha"), "ftrl": ("alpha",)}
# Arguments of an ``EmbeddingTable`` that are no hyperparameters of its optimizer.
TABLE_ARGUMENTS = ("k", "optimizer", "zeroColumns", "init", "initScale", "seed", "clock", *MANAGED_KEYS)
# The column of labels of positive pairs, which have none.
POSITIVE = "ps2 positive"
# Params that do not change in the life of a table.
TABLE_PARAMS = ("embeddingStepSize", "regParam", "initStd", *MANAGED_KEYS)


class DeepEstimator(DeepSettings, StreamEstimator):
    """Base class of deep estimators."""

    _SETTINGS: ClassVar[type[DeepSettings]]
    _MODEL: ClassVar[type[DeepFittedModel]]

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
        return self._new_model(self._table(dataset, self._arranged(self._hasher(dataset))), self.getMaxIter())

    def _new_model(self, table: DeepTable, epochs: int) -> tuple[DeepFittedModel, TrainingHistory]:
        fitted, history = retry_after_server_loss(lambda: self._trained_on(table, None, epochs))
        return self._MODEL._of(fitted), history

    def partialFit(self, dataset: DataFrame, model: DeepFittedModel | None = None) -> Any:
        """Learn from rows once; return the model.

        Args:
            model: of this kind of estimator, which goes on learning on the servers, with this estimator's batches and
                the layers' rate; None: begin a new one.

        Raises:
            ConfigError: the model is of another kind, or has other keys, sizes or another optimizer.
            InputError: rows cannot be used.
            UsageError: the model learns from a stream.
        """
        with watched_fit(self) as made, spark_calls(dataset):
            learned = self._partly_fitted(dataset, model)
            made(learned)
            return learned

    def _partly_fitted(self, dataset: DataFrame, model: DeepFittedModel | None) -> Any:
        self._check_frame(dataset)
        self._check()
        hasher = self._arranged(self._hasher(dataset))
        table = self._table(dataset, hasher)
        if model is None:
            fitted, history = self._new_model(table, 1)
            return self._finish_model(fitted, dataset, history)
        self._check_model(model, hasher)
        # Dropout is this estimator's.
        own = replace(model.fitted, architecture=self._architecture(hasher))
        _, history = self._trained_on(table, own, 1)
        model._remember(dataset, history)
        return model

    def _model_factory(self, frame: DataFrame, given: DeepFittedModel | None) -> ModelFactory:
        if self._label() is None:
            raise ConfigError("loss: fitStream needs 'logistic', as its rows have labels, got 'softmax'")
        hasher = self._arranged(self._hasher(frame))
        reader, architecture, plan = (
            self._reader(frame, hasher),
            self._architecture(hasher),
            DeepPlan(settings=self._values(self._SETTINGS)),
        )
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
            lambda made: DeepStreamProgram(architecture, plan, made.fitted.layers, made.fitted.table),
            reader,
        )

    def _begin(self, hasher: FieldHasher, name: str = "") -> DeepModel:
        """Put a new model on the servers of the active context."""
        architecture = self._architecture(hasher)
        arguments = table_arguments(self, architecture)
        return DeepModel.new(architecture, hasher, arguments, self._seed, name)

    def _existing(self, hasher: FieldHasher, name: str, ps: PS2Context) -> DeepModel:
        """Return the model of that name, which the fleet of a context has."""
        architecture = self._architecture(hasher)
        table = EmbeddingTable.existing(ps.vector(name).matrix(), table_settings(table_arguments(self, architecture)))
        return DeepModel(architecture, hasher, SharedLayers.existing(architecture, ps, name), table, name)

    def _check_model(self, model: Any, hasher: FieldHasher) -> None:
        if not isinstance(model, self._MODEL):
            raise ConfigError(f"model: expected a {self._MODEL.__name__}, got {type(model).__name__}")
        names = ("k", "fields", "deep", "hidden", "temperature")
        sizes = model.fitted.architecture, self._architecture(hasher)
        have, want = ({name: getattr(one, name) for name in names} for one in sizes)
        have, want = have | {"optimizer": model.table.optimizer}, want | {"optimizer": self.getOptimizer()}
        for name in have:
            if have[name] != want[name]:
                raise ConfigError(f"model: {name}: expected {have[name]}, as the model has, got {want[name]}")
        for name in TABLE_PARAMS:
            mine, its = (one.getOrDefault(name) if one.isDefined(name) else None for one in (self, model))
            if self.isSet(name) and mine != its:
                raise ConfigError(f"{name}: expected {its}, as the model has, whose table stays, got {mine}")
        check_clock(model.table, self._time())
        if model.fitted.hasher != hasher:
            raise ConfigError("model: expected the columns of keys that the model has, in the same order")

    def _trained_on(self, table: DeepTable, model: DeepModel | None, epochs: int) -> tuple[DeepModel, TrainingHistory]:
        """Train a model, a new one if none is given, or go on with that of a restored context."""
        plan = DeepPlan(settings=with_values(self._values(self._SETTINGS), maxIter=epochs))

        def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> tuple[DeepModel, TrainingHistory]:
            if model is not None:
                training_host(ps).streams.check_free(model.name)
                return model, train(ps, table, model.parts, plan, on_step)
            hasher, name = table.hasher, f"{self._name}/0" if self._name else ""
            architecture = self._architecture(hasher)
            settings = {**table_arguments(self, architecture), **architecture.to_json()}
            training = Resumable.of(self._name, ps, table, plan, settings)
            made = self._existing(hasher, name, ps) if training.names.begun else self._begin(hasher, name)
            with freed_on_failure(made):
                return made, train(ps, table, made.parts, plan, on_step, training)

        columns = ColumnNames((), table.label, table.weight)
        return self._train_in_context(Table(table.frame, columns, table.workers), epochs, run)

    def _table(self, dataset: DataFrame, hasher: FieldHasher) -> DeepTable:
        """Check labels and weights in a Spark job; return the columns that a training needs, dealt out to workers."""
        spark = backend_of(dataset)
        label, weight = self._label(), self._weight()
        check_label_is_apart(label, hasher.columns)
        check_workers(spark, self._requested_workers)
        found = survey_labels(dataset, label, weight, self._time())
        # A column of weights may be a key column, too.
        given = [column(name) for name in dict.fromkeys([*hasher.columns, label, weight]) if name is not None]
        if label is None:
            given.append(F.lit(1.0).alias(POSITIVE))
        workers = min(self._requested_workers or spark.total_slots(), found.rows)
        rows = deal_rows(dataset.select(*given), found.loads, workers, F.lit(1.0))
        counts = found.rows, found.weight, found.newest_s
        return DeepTable(rows, hasher, label or POSITIVE, weight, workers, *counts)


class DeepFittedModel(DeepSettings, KeyParams, FittedModel):
    """Base class of trained deep models. Embeddings and layers lie on the servers, until ``free()``."""

    def __repr__(self) -> str:
        sizes = self.fitted.architecture
        return f"{type(self).__name__}: uid={self.uid}, factorSize={sizes.k}, hiddenLayers={list(sizes.hidden)}"

    @property
    def fitted(self) -> DeepModel:
        """The model on the servers: its architecture, ``EmbeddingTable`` and layers."""
        found: DeepModel = self._fitted
        return found

    @property
    def name(self) -> str:
        """Name of the model on the fleet."""
        return self.fitted.name

    @property
    def table(self) -> EmbeddingTable:
        """The embeddings: pull and push work on them as on any table."""
        return self.fitted.table

    def export(self, path: str, since: Any = None) -> Any:
        """Write the model to a folder, which ``ps2.serving.Scorer`` reads without Spark and servers.

        Args:
            path: a folder, or any fsspec URL.
            since: an earlier export, its number, or "last": only keys that changed since are written.

        Raises:
            RecoveryError: the file system refuses; the export before stays.
        """
        return self.fitted.export(path, since)

    def free(self) -> None:
        """Free the model on the servers; it cannot be used any more."""
        self.fitted.free()

    def _predictor(self) -> DeepPredictor:
        if PS2Context.getActive() is None:
            raise StoppedError(f"{self!r}: its fleet was stopped; an export scores without one (ps2.serving.Scorer)")
        return self.fitted.predictor()

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
        "zeroColumns": architecture.first,
        "init": "normal",
        "initScale": params.getInitStd(),
        "seed": params._seed,
        **params._key_arguments(),
        **rates,
        **penalties,
    }


def table_settings(arguments: Mapping[str, Any]) -> TableSettings:
    """Return the settings of the table that these arguments make."""
    rates = {name: value for name, value in arguments.items() if name not in TABLE_ARGUMENTS}
    zeros = arguments["zeroColumns"]
    steps = TableOptimizer.of(arguments["optimizer"], arguments["k"], zeros, rates)
    return TableSettings(steps, zero_columns=zeros)
