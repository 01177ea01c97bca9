"""Base classes of estimators and models with weights for keys, in an ``EmbeddingTable``; their predictions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType

from ps2.algorithms.frame.arrow_batches import as_lists
from ps2.algorithms.frame.estimator import HasInitialModel, HasValidationData
from ps2.algorithms.frame.frames import check_frame, spark_calls
from ps2.algorithms.frame.heads import ClassHead
from ps2.algorithms.frame.key_hasher import KeyParams, check_key_columns
from ps2.algorithms.frame.key_settings import LearningSettings
from ps2.algorithms.frame.models import FittedModel
from ps2.algorithms.frame.predict import metadata_of
from ps2.algorithms.frame.scoring import KeyScoring
from ps2.algorithms.frame.tables import (
    check_held_out,
    check_label_is_apart,
    check_new_columns,
    check_numbers,
    check_times,
    column,
)
from ps2.algorithms.training.observing import new_watch, watched_fit
from ps2.algorithms.training.streams.labelled_rows import LabelledReader
from ps2.algorithms.training.streams.learner import BatchProgress, LearnerOptions
from ps2.algorithms.training.streams.start import ModelFactory, start_stream
from ps2.algorithms.training.streams.task import check_clock
from ps2.algorithms.training.streams.training import StreamingTraining
from ps2.array_types import Float64s
from ps2.client.embedding_table import EmbeddingTable
from ps2.client.fleet import lending
from ps2.client.matrix import disown
from ps2.coordinator.context import PS2Context
from ps2.data.hashing import FieldHasher
from ps2.data.key_rows import KeyRows
from ps2.errors import ConfigError, StoppedError
from ps2.run.spark.backend_lookup import backend_of, with_python
from ps2.run.spark.frames import map_in_arrow

# Called in a task with n rows of keys; returns their margins, float64 of shape (n,).
Margins = Callable[[KeyRows], Float64s]
# The params that decide which keys are stored; ``EmbeddingTable`` has arguments of the same names.
MANAGED_KEYS = ("admitAfter", "expireAfterS", "maxKeys")


class KeyedEstimator(LearningSettings, KeyParams, HasInitialModel, HasValidationData):
    """Base class of estimators that learn from batches and streams.

    ``initialModel`` is a model of the estimator on the servers, which ``fit`` continues to train, in place.
    """

    # The class of the models that this estimator returns.
    _MODEL: ClassVar[type[Any]]
    if TYPE_CHECKING:  # so that type checkers accept the keywords in the constructor
        initialModel: Any = None
        validationData: DataFrame | None = None

    def _read_initial_model(self, value: Any) -> Any:
        if not isinstance(value, self._MODEL):
            raise ConfigError(f"initialModel: expected a {self._MODEL.__name__}, got {type(value).__name__}")
        return value

    def partialFit(self, dataset: DataFrame, model: Any = None) -> Any:
        """Learn once from each row; return the model.

        Args:
            dataset: rows to learn from, not a streaming DataFrame.
            model: a model of this estimator, which continues to learn on the servers; None: ``initialModel``, or a new
                model if there is none.

        Raises:
            InputError: there are no rows, or some rows are faulty. The model may already have learned from other rows.
            ConfigError: the model is of another estimator, or has other keys, sizes or settings.
            UsageError: the model learns from a stream.
        """
        if self._validation_data is not None:
            return self._fit_united(dataset, lambda estimator, rows: estimator.partialFit(rows, model))
        with watched_fit(self) as report_model, spark_calls(dataset):
            self._check_frame(dataset)
            self._check()
            trained_model = self._learn_once(dataset, self._initial if model is None else model)
            report_model(trained_model)
            return trained_model

    @abstractmethod
    def _learn_once(self, dataset: DataFrame, model: Any) -> Any:
        """Learn from rows once; return the model, a new one if ``model`` is None."""

    def _check_model(self, model: Any, hasher: FieldHasher) -> None:
        """Raise ConfigError unless this estimator can continue to train a model."""
        if not isinstance(model, self._MODEL):
            raise ConfigError(f"model: expected a {self._MODEL.__name__}, got {type(model).__name__}")
        self._check_settings(model, hasher)
        check_clock(model.table, self._time_column())
        if model.fitted.hasher != hasher:
            raise ConfigError(
                "model: expected an estimator with the model's columns of keys, in the same order, and its time zone"
            )

    @abstractmethod
    def _check_settings(self, model: Any, hasher: FieldHasher) -> None:
        """Raise ConfigError unless a model has this estimator's settings."""

    def fitStream(  # noqa: PLR0913 - keywords
        self,
        streamingDf: DataFrame,
        checkpointLocation: str,
        *,
        snapshotEvery: str | float = "5 minutes",
        model: Any = None,
        trigger: Mapping[str, Any] | None = None,
        queryName: str | None = None,
        onProgress: Callable[[BatchProgress], object] | None = None,
    ) -> StreamingTraining:
        """Learn from a streaming query until it is stopped. Each row counts once, even after failures.

        A task learns from ``batchSize`` rows at a time. Another driver that calls ``fitStream`` with the same
        ``checkpointLocation`` resumes the stream. Without an active PS2Context, this starts one from the newest
        snapshot.

        Args:
            streamingDf: a streaming DataFrame whose source can repeat rows, as files and Kafka can (tested with files).
            checkpointLocation: the checkpoint folder of Spark's query, which servers, driver and executors can reach.
                The fleet's snapshots are in its subfolder ``ps2/snapshots``, unless the context has a checkpointDir.
            snapshotEvery: the time between two snapshots of the fleet, "5 minutes" or a number of seconds; or "10
                batches". There are at most 40 batches between two snapshots. After a failure the stream repeats the
                batches since the newest snapshot.
            model: a model of this estimator that continues to learn; None: ``initialModel``, that of
                ``checkpointLocation``, or a new model.
            trigger: keywords for ``DataStreamWriter.trigger``, such as ``{"availableNow": True}``.
            queryName: the name of Spark's query.
            onProgress: called after each batch with its ``BatchProgress``, in the query's thread.

        Raises:
            UsageError: ``checkpointLocation`` belongs to another query, model or fleet; the model already learns from
                another stream; or ``streamingDf`` is not a streaming DataFrame.
            ConfigError: params contradict each other, or the model is of another estimator, or has other settings.
            InputError: a column is missing, or its type is wrong.
        """
        self._check_frame(streamingDf)
        self._check()
        name = "validationIndicatorCol" if self._validation_data is None else "validationData"
        if self._validation_data is not None or self._if_set(name) is not None:
            raise ConfigError(f"{name}: a stream predicts each row before it learns, and holds none out")
        model = self._initial if model is None else model
        factory = self._model_factory(streamingDf, model)
        for matrix in () if model is None else model.fitted.matrices:
            disown(matrix)  # another driver can resume the stream, and finds the model by its name
        return start_stream(
            streamingDf,
            checkpointLocation,
            factory,
            self._learner_options(),
            requested_model=model,
            snapshot_every=snapshotEvery,
            trigger=dict(trigger or {}),
            query_name=queryName,
            on_progress=onProgress,
            watch=lambda: new_watch(self),
            servers=self._if_set("numServers"),
        )

    @abstractmethod
    def _model_factory(self, frame: DataFrame, model: Any) -> ModelFactory:
        """Return the ``ModelFactory`` for ``start_stream``; raise ConfigError if ``model`` has other settings."""

    def _check(self) -> None:
        super()._check()
        if self.isSet(self.lateAfterS) and self._time_column() is None:
            raise ConfigError("lateAfterS: expected timeCol, the column of the rows' times, to be set, too")

    def _reader(self, frame: DataFrame, hasher: FieldHasher) -> LabelledReader:
        """Return a reader of the rows of a DataFrame; raise InputError unless its columns exist with usable types."""
        label, weight, time = self.getLabelCol(), self._if_set("weightCol"), self._time_column()
        check_label_is_apart(label, hasher.columns)
        check_numbers(frame, label, "labels")
        if weight is not None:
            check_numbers(frame, weight, "weights")
        if time is not None:
            check_times(frame, time)
        return LabelledReader(hasher, label, weight, time, self._if_set("validationIndicatorCol"))

    def _held_out(self, frame: DataFrame) -> Column | None:
        """Return the column that is true for rows to hold out; None: there is none. Readers refuse its nulls."""
        name = self._if_set("validationIndicatorCol")
        if name is None:
            return None
        check_held_out(frame, name)
        return column(name).cast("boolean")

    def _learner_options(self) -> LearnerOptions:
        return LearnerOptions(self.getBatchSize(), self._requested_workers, self._if_set("lateAfterS"))

    def _time_column(self) -> str | None:
        name: str | None = self._if_set("timeCol")
        return name

    def _key_arguments(self) -> dict[str, Any]:
        """Return the params of MANAGED_KEYS that are set, and the clock of expiry, for ``EmbeddingTable``."""
        arguments = {name: self.getOrDefault(name) for name in MANAGED_KEYS if self.isSet(name)}
        return {**arguments, "clock": "event"} if arguments and self._time_column() is not None else arguments


class KeyedModel(KeyParams, FittedModel):
    """Base class of trained models of keys, whose weights are on the servers; copies share them.

    The servers free the weights after ``free()``, or when neither a copy of the model or of its ``table`` is left, nor
    a plan of Spark that contains its predictions. A model that was pickled, or learns from a stream, stays until
    ``free()``.
    """

    @property
    def name(self) -> str:
        """The name of the model on the fleet, by which a resumed stream finds the model."""
        return str(self._fitted.name)

    @property
    def table(self) -> EmbeddingTable:
        """The weights of the keys with their optimizer's state; pull and push work as on any ``EmbeddingTable``."""
        table: EmbeddingTable = self._fitted.table
        return table

    def export(self, path: str, since: Any = None) -> Any:
        """Write the model to a folder, which ``ps2.serving.Scorer`` reads without Spark and servers.

        Args:
            path: a folder, or any fsspec URL.
            since: an earlier export, its number, or "last": write only the keys that have changed since that export.

        Raises:
            RecoveryError: the files cannot be written. The previous export remains usable.
        """
        return self._fitted.export(path, since)

    def free(self) -> None:
        """Free the model on the servers; it cannot be used any more."""
        self._fitted.free()

    def _check_fleet(self) -> None:
        if PS2Context.getActive() is None:
            raise StoppedError(f"{self!r}: its fleet was stopped; exports score without a fleet (ps2.serving.Scorer)")


class KeyedClassModel(KeyedModel):
    """Base class of models of keys that predict labels 0 and 1."""

    def _transform(self, dataset: DataFrame) -> DataFrame:
        self._check_fleet()
        names = [
            (self.getOrDefault("rawPredictionCol"), "raw"),
            (self.getOrDefault("probabilityCol"), "probability"),
            (self.getOrDefault("predictionCol"), "prediction"),
        ]
        head = ClassHead(2, "logistic", threshold=self.getOrDefault("threshold"))
        return with_key_predictions(dataset, self._fitted.hasher, self._fitted.predictor().margins, head, names)

    def scoring(self) -> KeyScoring:
        """Return how ``transform`` scores rows, as plain data, for scorers of an export without Spark and servers."""
        values = (self.getOrDefault(name) for name in ("predictionCol", "probabilityCol", "threshold"))
        return KeyScoring(tuple(self._fitted.hasher.columns), *values)


def with_key_predictions(
    frame: DataFrame, hasher: FieldHasher, margins: Margins, head: ClassHead | None, names: Sequence[tuple[str, str]]
) -> DataFrame:
    """Add columns of predictions. Tasks receive rows as Arrow batches, which keep large integers exact.

    Args:
        head: turns margins into predictions; None: the predictions are the margins.
        names: the name and the kind of each new column; a column named "" is left out.
    """
    check_frame(frame)
    check_key_columns(frame, hasher)
    outputs = [(name, kind) for name, kind in names if name]
    new_names = [name for name, _ in outputs]
    check_new_columns(frame, new_names)
    if not outputs:
        return frame

    def add_predictions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        num_before = 0
        for batch in batches:
            predictions = _prediction_arrays(margins(hasher.rows(batch, num_before)), head)
            num_before += batch.num_rows
            arrays = [predictions[kind] for _, kind in outputs]
            yield pa.RecordBatch.from_arrays([*batch.columns, *arrays], names=[*batch.schema.names, *new_names])

    types = [DoubleType() if kind == "prediction" else ArrayType(DoubleType(), False) for _, kind in outputs]
    new_fields = [StructField(name, type, False) for name, type in zip(new_names, types, strict=True)]
    schema = StructType([*frame.schema.fields, *new_fields])
    with lending(backend_of(frame).loan):
        predictions = map_in_arrow(with_python(frame), add_predictions, schema)
    # Columns are selected by index, because two names can be equal, or differ only in case.
    indexed = predictions.toDF(*(f"c{index}" for index in range(len(predictions.columns))))
    columns = [F.col(f"c{index}").alias(name) for index, name in enumerate(frame.columns)]
    for index, (name, kind) in enumerate(outputs, len(columns)):
        columns.append(_as_prediction_column(F.col(f"c{index}"), name, kind, head))
    return indexed.select(*columns)


def _prediction_arrays(margins: Float64s, head: ClassHead | None) -> dict[str, pa.Array]:
    """Return the predictions for margins of shape (n,) by kind, as Arrow arrays of n values or lists."""
    if head is None:
        return {"prediction": pa.array(margins, pa.float64())}
    raw = head.raw(margins[:, None])
    probability = head.probability(raw)
    values_by_kind = {"raw": raw} if probability is None else {"raw": raw, "probability": probability}
    lists = {kind: as_lists(values) for kind, values in values_by_kind.items()}
    return {**lists, "prediction": pa.array(head.prediction(raw), pa.float64())}


def _as_prediction_column(values: Column, name: str, kind: str, head: ClassHead | None) -> Column:
    """Return a new column with pyspark.ml's type and metadata for its kind."""
    from pyspark.ml.functions import array_to_vector

    if kind != "prediction":
        vectors = array_to_vector(values)
        values = F.coalesce(vectors, vectors)
    return values.alias(name, metadata=metadata_of(kind, None if head is None else head.classes))
