"""``fit`` of all estimators of embeddings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from ps2.algorithms.embeddings.ml.training_params import EmbeddingParams
from ps2.algorithms.embeddings.model import Embedding
from ps2.algorithms.embeddings.settings import EmbeddingSettings, FittedEmbeddings
from ps2.algorithms.embeddings.trainer import Trainer
from ps2.algorithms.estimators.anew import done_anew
from ps2.algorithms.estimators.dealing import check_workers
from ps2.algorithms.estimators.estimator import TrainingEstimator
from ps2.algorithms.training.record import StepReport, TrainingHistory
from ps2.algorithms.training.table import Table
from ps2.coordinator.context import PS2Context
from ps2.ops.kernels import Int64s
from ps2.run.slots import count_executors
from ps2.run.spark.backend_lookup import backend_of


class EmbeddingEstimator(TrainingEstimator, EmbeddingParams):
    """Base of the estimators of embeddings."""

    # ``Embedding.kind`` of what is trained; class of the model.
    _KIND: str
    _MODEL: Callable[[Embedding], Any]

    def _fit(self, dataset: DataFrame) -> Any:
        self._check_frame(dataset)
        self._check()
        wanted = self.getNumWorkers() if self.isSet(self.numWorkers) else None
        check_workers(backend_of(dataset), wanted)
        embedding, history = done_anew(lambda: self._embedded(dataset, wanted))
        model = self._copyValues(type(self)._MODEL(embedding)._resetUid(self.uid))
        model._remember(dataset, history)
        return model

    @abstractmethod
    def _embedded(self, dataset: DataFrame, workers: int | None) -> tuple[Embedding, TrainingHistory]:
        """Train.

        Args:
            workers: the requested number; None: not set.
        """

    def _train(
        self,
        table: Table,
        read: Callable[[Any, Any], Any],
        settings: EmbeddingSettings,
        frequencies: Int64s,
        **more: Any,
    ) -> FittedEmbeddings:
        """Train on the servers.

        Args:
            table: the rows of each worker.
            read: makes a worker's sentences from its rows.
            frequencies: int64, shape (vocabulary,): occurrences of each word, the most frequent first.
            more: further fields of ``Trainer``.
        """

        def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> FittedEmbeddings:
            return Trainer(ps, table.frame, read, settings, frequencies, table.workers, on_step, **more).fit()

        return self._train_in_context(table, settings.epochs, run)

    def _settings_for(self, vocabulary: int, total: int, **more: Any) -> EmbeddingSettings:
        """Return the settings that the params stand for."""
        return EmbeddingSettings(
            vocabulary=vocabulary,
            total=total,
            **{
                "size": self.getVectorSize(),
                "negative": self.getNegative(),
                "exponent": self.getNsExponent(),
                "step_size": self.getStepSize(),
                "epochs": self.getMaxIter(),
                "via": self.getVia(),
                "seed": self._seed,
                "name": self._name,
                **more,
            },
        )


def workers_of(dataset: DataFrame, wanted: int | None, rows: int) -> int:
    """Return the number of workers: if it is not set, one for each executor; never more than rows."""
    return min(wanted or count_executors(backend_of(dataset)), rows)
