"""The sentences that one worker trains on, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ps2.array_types import Int32s, Int64s

# Tokens of all sentences, concatenated; bounds of the sentences.
Batch = tuple[Int32s, Int64s]

# Approximate tokens of a batch; a longer sentence is a batch of its own.
BATCH_TOKENS = 20_000


class Sentences(Protocol):
    """The sentences of one worker; created in the worker."""

    @property
    def tokens(self) -> int:
        """Tokens of an epoch, approximately."""

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the sentences of an epoch, about ``BATCH_TOKENS`` tokens at a time; the same in each attempt."""


@dataclass(frozen=True, eq=False)
class InMemorySentences:
    """Sentences in memory.

    Attributes:
        words: int32: of all sentences, concatenated.
        offsets: int64, shape (sentences + 1,): bounds of the sentences.
    """

    words: Int32s
    offsets: Int64s

    @property
    def tokens(self) -> int:
        """Tokens of an epoch."""
        return len(self.words)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the sentences, in the same order in each epoch."""
        for first, last in split(self.offsets, BATCH_TOKENS):
            begin, end = self.offsets[first], self.offsets[last]
            yield self.words[begin:end], self.offsets[first : last + 1] - begin


def split(offsets: Int64s, most: int) -> Iterator[tuple[int, int]]:
    """Yield bounds of runs of whole sentences, of at most ``most`` tokens; a longer sentence is a run of its own."""
    first = 0
    while first < len(offsets) - 1:
        last = max(int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1, first + 1)
        yield first, last
        first = last
