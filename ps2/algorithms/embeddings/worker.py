"""A worker's half of a training of vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ps2.algorithms.embeddings.corpus import Sentences
from ps2.algorithms.embeddings.keyed import KeyedSentences
from ps2.algorithms.embeddings.local import train_local
from ps2.algorithms.embeddings.part import Part, Plan
from ps2.algorithms.embeddings.rows import train_rows
from ps2.algorithms.embeddings.servers import train_servers
from ps2.ops.kernels import Int64s

# Where it is computed.
WAYS: dict[str, Callable[[Part], None]] = {"local": train_local, "rows": train_rows, "servers": train_servers}
Read = Callable[[Any, Iterator[Any]], Sentences]


@dataclass(frozen=True, eq=False)
class Half:
    """What each worker does; picklable.

    Attributes:
        plan: what all do.
        share: gives the words' frequencies, int64, shape (vocabulary,).
    """

    plan: Plan
    share: Callable[[], Int64s]

    def __call__(self, worker: Any, sentences: Sentences | KeyedSentences) -> None:
        plan, share = self.plan, self.share
        if isinstance(sentences, KeyedSentences):
            keyed = sentences
            plan, share = plan.known(keyed.keys), lambda: keyed.frequencies
        WAYS[plan.recipe.via](Part(worker, plan, sentences, share()))
