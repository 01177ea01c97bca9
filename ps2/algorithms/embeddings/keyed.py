"""Sentences of keys: integers that nobody has numbered, as the ids of a graph without bounds.

A worker numbers the keys of its own sentences, and draws negatives of them. Nothing is as long as the list of all keys
but what the driver makes of them at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ps2.algorithms.embeddings.corpus import Batch, Sentences
from ps2.ops.kernels import Int64s


@dataclass(frozen=True, eq=False)
class KeyedSentences:
    """A worker's sentences, whose words are numbers of its own keys.

    Attributes:
        numbered: the sentences.
        keys: int64: of the words; one at least.
        frequencies: int64: how often each comes here, or is an edge's target.
    """

    numbered: Sentences
    keys: Int64s
    frequencies: Int64s

    @property
    def tokens(self) -> int:
        """How many an epoch has."""
        return self.numbered.tokens

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield an epoch's sentences."""
        return self.numbered.batches(epoch)
