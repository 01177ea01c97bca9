"""What one worker trains on: its sentences, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ps2.ops.kernels import Int64s

Int32s = npt.NDArray[np.int32]
# Tokens of all sentences, one after the other; and where each begins in them, and the last one ends.
Batch = tuple[Int32s, Int64s]

# Tokens of a batch, about: a longer sentence is one.
BATCH_TOKENS = 20_000


class Sentences(Protocol):
    """What one worker has; made in the worker."""

    @property
    def tokens(self) -> int:
        """How many an epoch has, about."""

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the sentences of an epoch, some ``BATCH_TOKENS`` tokens at a time; the same for every attempt."""


@dataclass(frozen=True, eq=False)
class Kept:
    """Sentences that are in memory.

    Attributes:
        words: int32: of all sentences, one after the other.
        offsets: int64, shape (sentences + 1,): where each begins, and the last one ends.
    """

    words: Int32s
    offsets: Int64s

    @property
    def tokens(self) -> int:
        """How many an epoch has."""
        return len(self.words)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield the sentences in their order, which is that of every epoch."""
        offsets = self.offsets
        first = 0
        while first < len(offsets) - 1:
            last = int(np.searchsorted(offsets, offsets[first] + BATCH_TOKENS, side="right")) - 1
            last = max(last, first + 1)
            yield self.words[offsets[first] : offsets[last]], offsets[first : last + 1] - offsets[first]
            first = last
