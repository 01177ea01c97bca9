"""``fit`` of what learns vectors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from ps2.algorithms.embeddings.ml.training_params import EmbeddingParams
from ps2.algorithms.embeddings.model import Embedding
from ps2.algorithms.embeddings.problem import Fitted, Recipe
from ps2.algorithms.embeddings.trainer import Trainer
from ps2.algorithms.estimators.anew import done_anew
from ps2.algorithms.estimators.dealing import check_workers
from ps2.algorithms.estimators.estimator import TrainingEstimator
from ps2.algorithms.training.record import StepReport, TrainingHistory
from ps2.algorithms.training.table import Table
from ps2.coordinator.context import PS2Context
from ps2.ops.kernels import Int64s
from ps2.run.slots import count_executors


class EmbeddingEstimator(TrainingEstimator, EmbeddingParams):
    """What all that learns vectors has in common."""

    # What is trained, as ``Embedding.kind`` has it; and the class of the model.
    _KIND: str
    _MODEL: Callable[[Embedding], Any]

    def _fit(self, dataset: DataFrame) -> Any:
        self._check_frame(dataset)
        self._check()
        wanted = self.getNumWorkers() if self.isSet(self.numWorkers) else None
        check_workers(dataset.sparkSession.sparkContext, wanted)
        embedding, history = done_anew(lambda: self._embedded(dataset, wanted))
        model = self._copyValues(type(self)._MODEL(embedding)._resetUid(self.uid))
        model._remember(dataset, history)
        return model

    @abstractmethod
    def _embedded(self, dataset: DataFrame, workers: int | None) -> tuple[Embedding, TrainingHistory]:
        """Train.

        Args:
            workers: as many as are wanted; None: it is not said.
        """

    def _train(
        self, table: Table, read: Callable[[Any, Any], Any], recipe: Recipe, frequencies: Int64s, **more: Any
    ) -> Fitted:
        """Train on the servers.

        Args:
            table: rows for each worker.
            read: makes a worker's sentences of them.
            frequencies: int64, shape (vocabulary,): how often each comes, the most frequent first.
            more: of the ``Trainer``.
        """

        def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> Fitted:
            return Trainer(ps, table.frame, read, recipe, frequencies, table.workers, on_step, **more).fit()

        return self._trained(table, recipe.epochs, run)

    def _recipe_of(self, vocabulary: int, total: int, **more: Any) -> Recipe:
        """Return how to train, as the params say."""
        return Recipe(
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
    """Return how many workers there are: one for each executor, if nothing is said, and no more than rows."""
    return min(wanted or count_executors(dataset.sparkSession.sparkContext), rows)
