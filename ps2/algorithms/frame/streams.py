"""``StreamEstimator``: ``fitStream`` of online and deep estimators."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame

from ps2.algorithms.frame.estimator import TrainingEstimator
from ps2.algorithms.frame.key_hasher import KeyParams
from ps2.algorithms.frame.key_settings import LearningSettings
from ps2.algorithms.frame.tables import check_label_is_apart, check_numbers, check_times
from ps2.algorithms.training.observing import observed
from ps2.algorithms.training.streams.labelled_rows import LabelledReader
from ps2.algorithms.training.streams.learner import BatchProgress, LearnerOptions
from ps2.algorithms.training.streams.start import ModelFactory, start_stream
from ps2.algorithms.training.streams.training import StreamingTraining
from ps2.data.hashing import FieldHasher
from ps2.errors import ConfigError

# The params of managed keys, which are arguments of ``EmbeddingTable``, too.
MANAGED_KEYS = ("admitAfter", "expireAfterS", "maxKeys")


class StreamEstimator(LearningSettings, KeyParams, TrainingEstimator):
    """Base class of estimators that learn from streaming queries."""

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
        """Learn from a streaming query until it is stopped; each row counts once, whatever is killed meanwhile.

        A task learns from ``batchSize`` rows at a time. Start the stream again with the same ``checkpointLocation``
        after the driver's end: it goes on where it was. Without an active PS2Context it starts one from the newest
        snapshot.

        Args:
            streamingDf: a streaming DataFrame whose source can repeat rows, as files and Kafka can (tested with files).
            checkpointLocation: folder of Spark's query. The fleet's snapshots are in ``ps2/snapshots`` below it, unless
                the context has a checkpointDir. Servers, driver and executors must reach it.
            snapshotEvery: time between two snapshots of the fleet, "5 minutes" or a number of seconds; or "10 batches".
                There is one after 40 batches in any case. After a failure the stream repeats what came after it.
            model: a model of this estimator that goes on learning; None: a new one, or that of ``checkpointLocation``.
            trigger: keywords for ``DataStreamWriter.trigger``, such as ``{"availableNow": True}``.
            queryName: name of Spark's query.
            onProgress: called after each batch with its ``BatchProgress``, in the query's thread.

        Raises:
            UsageError: ``checkpointLocation`` belongs to another query, model or fleet; the model learns from another
                stream already; or ``streamingDf`` is not a streaming DataFrame.
            ConfigError: params contradict each other, or the model is of another kind, or has other settings.
            InputError: a column is missing, or of another type.
        """
        self._check_frame(streamingDf)
        self._check()
        factory = self._model_factory(streamingDf, model)
        return start_stream(
            streamingDf,
            checkpointLocation,
            factory,
            self._learner_options(),
            given=model,
            snapshot_every=snapshotEvery,
            trigger=dict(trigger or {}),
            query_name=queryName,
            on_progress=onProgress,
            watch=lambda: observed(self),
            servers=self._servers(),
        )

    @abstractmethod
    def _model_factory(self, frame: DataFrame, given: Any) -> ModelFactory:
        """Return the ``ModelFactory`` for ``start_stream``; ConfigError: the given model does not fit."""

    def _check(self) -> None:
        super()._check()
        if self.isSet(self.lateAfterS) and self._time() is None:
            raise ConfigError("lateAfterS: expected timeCol with it, the column of the rows' times")

    def _reader(self, frame: DataFrame, hasher: FieldHasher) -> LabelledReader:
        """Return what reads rows of a DataFrame; raise InputError unless it has the columns, of usable types."""
        label, weight, time = self.getLabelCol(), self._weight(), self._time()
        check_label_is_apart(label, hasher.columns)
        check_numbers(frame, label, "labels")
        if weight is not None:
            check_numbers(frame, weight, "weights")
        if time is not None:
            check_times(frame, time)
        return LabelledReader(hasher, label, weight, time)

    def _learner_options(self) -> LearnerOptions:
        """Return how to learn a batch."""
        late_after_s = self.getLateAfterS() if self.isSet(self.lateAfterS) else None
        return LearnerOptions(self.getBatchSize(), self._requested_workers, late_after_s)

    def _time(self) -> str | None:
        """Return the name of the column of times, or None."""
        return self.getTimeCol() or None if self.isSet(self.timeCol) else None

    def _key_arguments(self) -> dict[str, Any]:
        """Return the params of MANAGED_KEYS that are set, as arguments of ``EmbeddingTable``; with times, the clock."""
        arguments = {name: self.getOrDefault(name) for name in MANAGED_KEYS if self.isSet(name)}
        return {**arguments, "clock": "event"} if arguments and self._time() is not None else arguments

    def _servers(self) -> int | None:
        """Return numServers, or None if it is not set."""
        return self.getNumServers() if self.isSet(self.numServers) else None

    def _weight(self) -> str | None:
        """Return the name of the column of weights, or None."""
        return self.getWeightCol() or None if self.isSet(self.weightCol) else None
