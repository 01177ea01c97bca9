"""What each worker runs in a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ps2.algorithms.embeddings.corpus import Sentences
from ps2.algorithms.embeddings.keyed import KeyedSentences
from ps2.algorithms.embeddings.local import train_local
from ps2.algorithms.embeddings.rows import train_rows
from ps2.algorithms.embeddings.servers import train_servers
from ps2.algorithms.embeddings.worker_context import TrainingPlan, WorkerContext
from ps2.ops.kernels import Int64s

# Training loop of each strategy.
STRATEGIES: dict[str, Callable[[WorkerContext], None]] = {
    "local": train_local,
    "rows": train_rows,
    "servers": train_servers,
}
Read = Callable[[Any, Iterator[Any]], Sentences]


@dataclass(frozen=True, eq=False)
class EmbeddingProgram:
    """The worker's program; picklable.

    Attributes:
        plan: equal for all workers.
        share: returns the words' frequencies, int64, shape (vocabulary,).
    """

    plan: TrainingPlan
    share: Callable[[], Int64s]

    def __call__(self, worker: Any, sentences: Sentences | KeyedSentences) -> None:
        plan, share = self.plan, self.share
        if isinstance(sentences, KeyedSentences):
            keyed = sentences
            plan, share = plan.for_keys(keyed.keys), lambda: keyed.frequencies
        STRATEGIES[plan.settings.via](WorkerContext(worker, plan, sentences, share()))
