"""Sentences of keys: integers without numbering, such as the ids of an unbounded graph.

A worker numbers the keys of its own sentences and draws its negatives from them. Nothing has the length of the list of
all keys, except the driver's result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ps2.algorithms.embeddings.corpus import Batch, Sentences
from ps2.ops.kernels import Int64s


@dataclass(frozen=True, eq=False)
class KeyedSentences:
    """A worker's sentences; their words are numbers of the worker's own keys.

    Attributes:
        numbered: the sentences.
        keys: int64: of the words; at least one.
        frequencies: int64: occurrences of each word here; with edges, as a target.
    """

    numbered: Sentences
    keys: Int64s
    frequencies: Int64s

    @property
    def tokens(self) -> int:
        """Tokens of an epoch, approximately."""
        return self.numbered.tokens

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the sentences of an epoch."""
        return self.numbered.batches(epoch)
