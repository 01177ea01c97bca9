"""Estimators of online models: fit, partialFit and fitStream."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from typing import Any

from pyspark.ml import Estimator
from pyspark.sql import DataFrame

from ps2.algorithms.estimators.frames import spark_calls
from ps2.algorithms.estimators.streams import StreamEstimator
from ps2.algorithms.estimators.unfinished import freed_on_failure
from ps2.algorithms.online.ml.models import LiveModel, OnlineModel, new_name
from ps2.algorithms.online.ml.params import OnlineSetters
from ps2.algorithms.online.program import OnlineProgram
from ps2.algorithms.training.observing import watched_fit
from ps2.algorithms.training.streams.batches import Passes, learn_frame
from ps2.algorithms.training.streams.key_time import check_clock
from ps2.algorithms.training.streams.learner import BatchProgress
from ps2.algorithms.training.streams.start import ModelFactory
from ps2.client.embedding_table import EmbeddingTable
from ps2.coordinator.context import PS2Context
from ps2.coordinator.training_host import training_host
from ps2.errors import ConfigError
from ps2.run.spark.backend_lookup import backend_of

log = logging.getLogger(__name__)

_one_context = threading.Lock()


class OnlineEstimator(OnlineSetters, StreamEstimator, Estimator[Any]):
    """Base class of the estimators of online models."""

    # Class of the models that this estimator returns.
    _MODEL: type[OnlineModel]

    # -- training ----------------------------------------------------------------------------------------------------

    def partialFit(self, dataset: DataFrame, model: OnlineModel | None = None) -> Any:
        """Learn from rows once; return the model.

        Args:
            dataset: rows to learn from, not a streaming DataFrame.
            model: a model of this estimator, which goes on learning on the servers; None: a new one.

        Raises:
            InputError: there are no rows, or some cannot be learned from. The model may have learned some of them.
            ConfigError: the model is of another kind, or has other settings.
            UsageError: the model learns from a stream.
        """
        with watched_fit(self) as made, spark_calls(dataset):
            self._check_frame(dataset)
            self._check()
            if model is not None:
                self._check_model(model)
            learned = self._learned(dataset, model, 1)
            made(learned)
            return learned

    def _model_factory(self, frame: DataFrame, given: OnlineModel | None) -> ModelFactory:
        settings = self._settings()
        if given is not None:
            self._check_model(given)
        return ModelFactory(
            settings.kind,
            {**settings.to_json(), "hasher": self._hasher().to_json()},
            self._begin,
            self._existing,
            self._program,
            self._reader(frame, self._hasher(frame)),
        )

    def _fit(self, dataset: DataFrame) -> Any:
        self._check_frame(dataset)
        self._check()
        return self._learned(dataset, None, self.getOrDefault(self.maxIter))

    def _learned(self, dataset: DataFrame, model: OnlineModel | None, passes: int) -> Any:
        """Learn from a DataFrame in passes; return the model, a new one if none is given."""
        ps, reader = self._context(dataset), self._reader(dataset, self._hasher(dataset))
        started = model if model is not None else self._begin()
        with ExitStack() as learning:
            if model is None:
                learning.enter_context(freed_on_failure(started))
            learning.enter_context(training_host(ps).streams.stream(started.name))
            on_step = learning.enter_context(self._shown(backend_of(dataset), passes))
            program, options = self._program(started), self._learner_options()
            learned = learn_frame(ps, program, reader, options, dataset, Passes(passes, on_step))
        return self._finish_model(started, learned)

    # -- parts -------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        super()._check()
        self._settings()

    def _context(self, dataset: DataFrame) -> PS2Context:
        with _one_context:
            return PS2Context.getOrCreate(dataset.sparkSession, self._servers())

    def _begin(self, name: str = "") -> OnlineModel:
        """Return a new model on the fleet of the active context."""
        name, settings = name or new_name(), self._settings()
        return self._model_of(LiveModel(name, settings, settings.new_table(name), self._hasher()))

    def _existing(self, name: str, ps: PS2Context) -> OnlineModel:
        """Return the model of that name on the fleet; raise NotFoundError if the fleet has none."""
        settings = self._settings()
        matrix = ps.vector(name).matrix()
        table = EmbeddingTable.existing(matrix, settings.table_settings())
        return self._model_of(LiveModel(name, settings, table, self._hasher()))

    def _model_of(self, live: LiveModel) -> OnlineModel:
        return self._finish_model(self._MODEL(live), None)

    def _finish_model(self, model: OnlineModel, learned: list[BatchProgress] | None) -> Any:
        model = self._copyValues(model)
        model._resetUid(self.uid)
        if learned is not None:
            model._progress = learned
        return model

    def _check_model(self, model: Any) -> None:
        if not isinstance(model, self._MODEL):
            raise ConfigError(f"model: expected a {self._MODEL.__name__}, got {type(model).__name__}")
        check_clock(model.table, self._time())
        have, want = model._live.settings.params(), self._settings().params()
        for name in {**have, **want}:
            if have.get(name) != want.get(name):
                raise ConfigError(f"{name}: expected {have.get(name)!r}, as the model has, got {want.get(name)!r}")
        if model._live.hasher != self._hasher():
            raise ConfigError("model: expected the columns of keys that the model has, in the same order")

    def _program(self, model: OnlineModel) -> OnlineProgram:
        return model._live.program
