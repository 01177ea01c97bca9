"""``fit`` of all estimators of embeddings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from pyspark.sql import DataFrame

from ps2.algorithms.embeddings.ml.training_params import EmbeddingParams
from ps2.algorithms.embeddings.model import Embedding
from ps2.algorithms.embeddings.program import Corpus, train
from ps2.algorithms.embeddings.settings import EmbeddingSettings, FittedEmbeddings
from ps2.algorithms.estimators.anew import done_anew
from ps2.algorithms.estimators.dealing import check_workers
from ps2.algorithms.estimators.estimator import TrainingEstimator
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.record import TrainingHistory
from ps2.algorithms.training.table import Table
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
        workers = self.getNumWorkers() if self.isSet(self.numWorkers) else None
        check_workers(backend_of(dataset), workers)
        embedding, history = done_anew(lambda: self._embedded(dataset, workers))
        model = self._copyValues(type(self)._MODEL(embedding)._resetUid(self.uid))
        model._remember(dataset, history)
        return model

    @abstractmethod
    def _embedded(self, dataset: DataFrame, workers: int | None) -> tuple[Embedding, TrainingHistory]:
        """Train.

        Args:
            workers: the requested number; None: not set.
        """

    def _train_on(
        self, corpus: Corpus, settings: EmbeddingSettings, shared_cleanup: ExitStack | None = None
    ) -> FittedEmbeddings:
        """Train on the servers; for ``shared_cleanup`` see ``train``."""
        table = Table(corpus.frame, ColumnNames(label=None), corpus.workers)
        return self._train_in_context(
            table,
            settings.epochs,
            lambda ps, on_step: train(ps, corpus, settings, on_step, shared_cleanup=shared_cleanup),
        )

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


def workers_of(dataset: DataFrame, requested_workers: int | None, rows: int) -> int:
    """Return the number of workers: if it is not set, one for each executor; never more than rows."""
    return min(requested_workers or count_executors(backend_of(dataset)), rows)
