"""Base classes of estimators and models whose weights belong to keys, in an ``EmbeddingTable`` on the servers."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from pyspark.sql import DataFrame

from ps2.algorithms.frame.frames import spark_calls
from ps2.algorithms.frame.key_hasher import KeyParams
from ps2.algorithms.frame.key_predictions import with_class_predictions
from ps2.algorithms.frame.models import FittedModel
from ps2.algorithms.frame.scoring import KeyScoring
from ps2.algorithms.frame.streams import StreamEstimator
from ps2.algorithms.training.observing import watched_fit
from ps2.algorithms.training.streams.task import check_clock
from ps2.client.embedding_table import EmbeddingTable
from ps2.coordinator.context import PS2Context
from ps2.data.hashing import FieldHasher
from ps2.errors import ConfigError, StoppedError


class KeyedEstimator(StreamEstimator):
    """Base class of estimators that learn from batches and streams."""

    # The class of the models that this estimator returns.
    _MODEL: ClassVar[type[Any]]

    def partialFit(self, dataset: DataFrame, model: Any = None) -> Any:
        """Learn from rows once; return the model.

        Args:
            dataset: rows to learn from, not a streaming DataFrame.
            model: a model of this kind of estimator, which goes on learning on the servers; None: a new one.

        Raises:
            InputError: there are no rows, or some cannot be learned from. The model may have learned some of them.
            ConfigError: the model is of another kind, or has other keys, sizes or settings.
            UsageError: the model learns from a stream.
        """
        with watched_fit(self) as report_model, spark_calls(dataset):
            self._check_frame(dataset)
            self._check()
            learned = self._learn_once(dataset, model)
            report_model(learned)
            return learned

    @abstractmethod
    def _learn_once(self, dataset: DataFrame, model: Any) -> Any:
        """Learn from rows once; return the model, a new one if ``model`` is None."""

    def _check_model(self, model: Any, hasher: FieldHasher) -> None:
        """Raise ConfigError unless this estimator can go on with a model."""
        if not isinstance(model, self._MODEL):
            raise ConfigError(f"model: expected a {self._MODEL.__name__}, got {type(model).__name__}")
        self._check_settings(model, hasher)
        check_clock(model.table, self._time())
        if model.fitted.hasher != hasher:
            raise ConfigError("model: expected the columns of keys that the model has, in the same order")

    @abstractmethod
    def _check_settings(self, model: Any, hasher: FieldHasher) -> None:
        """Raise ConfigError unless a model has this estimator's settings."""


class KeyedModel(KeyParams, FittedModel):
    """Base class of trained models of keys. They lie on the servers, until ``free()``; copies share them."""

    @property
    def name(self) -> str:
        """Name of the model on the fleet, by which a stream finds it again."""
        return str(self._fitted.name)

    @property
    def table(self) -> EmbeddingTable:
        """The weights of keys with their optimizer's state: pull and push work on them as on any table."""
        table: EmbeddingTable = self._fitted.table
        return table

    def export(self, path: str, since: Any = None) -> Any:
        """Write the model to a folder, which ``ps2.serving.Scorer`` reads without Spark and servers.

        Args:
            path: a folder, or any fsspec URL.
            since: an earlier export, its number, or "last": only keys that changed since are written.

        Raises:
            RecoveryError: the file system refuses; the export before stays.
        """
        return self._fitted.export(path, since)

    def free(self) -> None:
        """Free the model on the servers; it cannot be used any more."""
        self._fitted.free()

    def _check_fleet(self) -> None:
        if PS2Context.getActive() is None:
            raise StoppedError(f"{self!r}: its fleet was stopped; an export scores without one (ps2.serving.Scorer)")


class KeyedClassModel(KeyedModel):
    """Base class of models of labels 0 and 1; the trained parameters return ``margins`` for tasks."""

    def _transform(self, dataset: DataFrame) -> DataFrame:
        self._check_fleet()
        return with_class_predictions(dataset, self._fitted.hasher, self._fitted.predictor().margins, self)

    def scoring(self) -> KeyScoring:
        """Return how ``transform`` scores rows, as plain data, for scorers of an export without Spark and servers."""
        values = (self.getOrDefault(name) for name in ("predictionCol", "probabilityCol", "threshold"))
        return KeyScoring(tuple(self._fitted.hasher.columns), *values)
