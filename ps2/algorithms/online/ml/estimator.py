"""Estimators of online models: fit, partialFit and fitStream."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from pyspark.ml import Estimator
from pyspark.sql import DataFrame

from ps2.algorithms.estimators.estimator import TrainingEstimator
from ps2.algorithms.estimators.tables import field
from ps2.algorithms.estimators.unfinished import freed_on_failure
from ps2.algorithms.online.ml.models import LiveModel, OnlineModel, new_name
from ps2.algorithms.online.ml.params import OnlineSetters
from ps2.algorithms.online.program import OnlineProgram
from ps2.algorithms.training.streams.batches import learn_frame
from ps2.algorithms.training.streams.labelled_rows import LabelledReader
from ps2.algorithms.training.streams.learner import BatchProgress, LearnerOptions
from ps2.algorithms.training.streams.start import StreamModel, start_stream
from ps2.algorithms.training.streams.training import StreamingTraining
from ps2.client.embedding_table import EmbeddingTable
from ps2.coordinator.context import PS2Context
from ps2.errors import ConfigError

log = logging.getLogger(__name__)

_one_context = threading.Lock()


class OnlineEstimator(OnlineSetters, TrainingEstimator, Estimator[Any]):
    """Base class of the estimators of online models."""

    # The class of the models.
    _MODEL: type[OnlineModel]

    # -- training ----------------------------------------------------------------------------------------------------

    def partialFit(self, dataset: DataFrame, model: OnlineModel | None = None) -> Any:
        """Learn from rows once; return the model.

        Args:
            dataset: a batch.
            model: of this estimator, which goes on learning, on the servers; None: begin a new one.

        Raises:
            InputError: there are no rows, or some cannot be learned from. The model may have learned some of them.
            ConfigError: the model is of another kind, or has other settings.
            UsageError: the model learns from a stream.
        """
        self._check_frame(dataset)
        self._check()
        if model is not None:
            self._check_model(model)
        return self._learned(dataset, model, 1)

    def fitStream(  # noqa: PLR0913 - keywords
        self,
        streamingDf: DataFrame,
        checkpointLocation: str,
        *,
        snapshotEvery: str | float = "5 minutes",
        model: OnlineModel | None = None,
        trigger: Mapping[str, Any] | None = None,
        queryName: str | None = None,
        onProgress: Callable[[BatchProgress], object] | None = None,
    ) -> StreamingTraining:
        """Learn from a streaming query until it is stopped; each row counts once, whatever is killed meanwhile.

        Start it again with the same ``checkpointLocation`` after the driver's end: it goes on where it was. Without an
        active PS2Context it starts one from the newest snapshot.

        Args:
            streamingDf: a streaming DataFrame whose source can repeat rows, as files and Kafka can.
            checkpointLocation: of Spark's query; the fleet's snapshots are in ``ps2/snapshots`` below it, unless the
                context has a checkpointDir. Servers and executors must reach it.
            snapshotEvery: time between two snapshots of the fleet: "5 minutes", seconds, or a number of batches, "10
                batches"; after 40 batches there is one in any case. At a failure the stream repeats what came after
                the newest one.
            model: that goes on learning; None: begin a new one, or go on with that of ``checkpointLocation``.
            trigger: as for ``DataStreamWriter.trigger``, such as ``{"availableNow": True}``.
            queryName: of Spark's query.
            onProgress: called after each batch with its ``BatchProgress``, in another thread.

        Raises:
            UsageError: ``checkpointLocation`` belongs to another query, model or fleet; the model learns from another
                stream already; or ``streamingDf`` is no streaming DataFrame.
            ConfigError: params contradict each other.
        """
        self._check_frame(streamingDf)
        self._check()
        settings = self._settings()

        if model is not None:
            self._check_model(model)
        of_stream = StreamModel(
            settings.kind,
            {**settings.to_json(), "hasher": self._hasher().to_json()},
            self._begin,
            self._known,
            self._program,
            self._reader(streamingDf),
        )
        return start_stream(
            streamingDf,
            checkpointLocation,
            of_stream,
            self._options(),
            given=model,
            snapshot_every=snapshotEvery,
            trigger=dict(trigger or {}),
            query_name=queryName,
            on_progress=onProgress,
            servers=self.getNumServers() if self.isSet(self.numServers) else None,
        )

    def _fit(self, dataset: DataFrame) -> Any:
        self._check_frame(dataset)
        self._check()
        return self._learned(dataset, None, self.getOrDefault(self.maxIter))

    def _learned(self, dataset: DataFrame, model: OnlineModel | None, passes: int) -> Any:
        """Learn from a batch; return the model, a new one if none is given."""
        ps, reader = self._context(dataset), self._reader(dataset)
        started = model if model is not None else self._begin()
        with ExitStack() as learning:
            if model is None:
                learning.enter_context(freed_on_failure(started))
            learning.enter_context(ps._steps.streams.stream(started.name))
            learned = learn_frame(ps, self._program(started), reader, self._options(), dataset, passes)
        return self._completed(started, learned)

    # -- parts -------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        super()._check()
        self._settings()
        if self.isSet(self.lateAfterS) and not self.isSet(self.timeCol):
            raise ConfigError("lateAfterS: expected timeCol with it, the column of the rows' times")

    def _context(self, dataset: DataFrame) -> PS2Context:
        servers = self.getNumServers() if self.isSet(self.numServers) else None
        with _one_context:
            return PS2Context.getOrCreate(dataset.sparkSession, servers)

    def _begin(self, name: str = "") -> OnlineModel:
        """Return a new model on the fleet of the active context."""
        name, settings = name or new_name(), self._settings()
        return self._model_of(LiveModel(name, settings, settings.new_table(name), self._hasher()))

    def _known(self, name: str, ps: PS2Context) -> OnlineModel:
        """Return the model of that name, which the fleet has already."""
        settings = self._settings()
        matrix = ps.vector(name).matrix()
        table = EmbeddingTable.known(matrix, settings.table_settings())
        return self._model_of(LiveModel(name, settings, table, self._hasher()))

    def _model_of(self, live: LiveModel) -> OnlineModel:
        return self._completed(self._MODEL(live), None)

    def _completed(self, model: OnlineModel, learned: list[BatchProgress] | None) -> Any:
        model = self._copyValues(model)
        model._resetUid(self.uid)
        if learned is not None:
            model._progress = learned
        return model

    def _check_model(self, model: Any) -> None:
        if not isinstance(model, self._MODEL):
            raise ConfigError(f"model: expected a {self._MODEL.__name__}, got {type(model).__name__}")
        have, want = model._live.to_json(), {**self._settings().to_json(), "hasher": self._hasher().to_json()}
        for name in have:
            if have[name] != want[name]:
                raise ConfigError(f"model: {name}: expected {have[name]!r}, as the model has, got {want[name]!r}")

    def _program(self, model: OnlineModel) -> OnlineProgram:
        return model._live.program

    def _reader(self, dataset: DataFrame) -> LabelledReader:
        def named(param: Any) -> str | None:
            return self.getOrDefault(param) or None if self.isSet(param) else None

        label, weight, time = self.getOrDefault(self.labelCol), named(self.weightCol), named(self.timeCol)
        for name in filter(None, (label, weight, time)):
            field(dataset, name)  # or an error that says which columns there are
        return LabelledReader(self._hasher(dataset), label, weight, time)

    def _options(self) -> LearnerOptions:
        workers = self.getNumWorkers() if self.isSet(self.numWorkers) else None
        late_after_s = self.getLateAfterS() if self.isSet(self.lateAfterS) else None
        return LearnerOptions(self.getBatchSize(), workers, late_after_s)
