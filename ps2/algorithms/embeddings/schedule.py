"""Which batches of a worker's sentences are of which clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ps2.algorithms.embeddings.corpus import Batch, Sentences
from ps2.algorithms.embeddings.problem import Recipe

# Tokens of a worker in a clock, at least; and bytes of tables that may be exchanged for each of them.
CLOCK_TOKENS, TOKEN_BYTES = 20_000, 500
# Times as many, if nobody else waits to hear of them: the changes are for checkpoints then.
ALONE = 10
# Clocks of a training, at least: between two of them workers hear of each other.
LEAST_CLOCKS = 10


@dataclass(frozen=True)
class Clocks:
    """How a training is divided.

    Attributes:
        epochs: how many.
        each: clocks of an epoch.
        first: the run's clock that its first one is.
    """

    epochs: int
    each: int
    first: int = 0

    @staticmethod
    def of(recipe: Recipe, workers: int, tokens: int, first: int = 0) -> Clocks:
        """Args:
        tokens: that a worker trains on in a clock, about.
        """
        own = recipe.total * recipe.units / workers
        each = max(-(-own // tokens), -(-LEAST_CLOCKS // recipe.epochs))
        return Clocks(recipe.epochs, int(min(each, own)) or 1, first)

    @property
    def count(self) -> int:
        return self.epochs * self.each

    def epoch(self, clock: int) -> int:
        return clock // self.each

    def is_last(self, clock: int) -> bool:
        """Tell whether an epoch ends with a clock."""
        return (clock + 1) % self.each == 0


class Reader:
    """Reads a worker's batches, those of one clock after those of the clock before, or of any other.

    A batch is of the clock in which the share of the worker's tokens lies that come before it in the epoch; whoever
    begins in the middle of an epoch makes its sentences from the beginning.

    Attributes:
        progress: of the worker before the batch that it is at: epochs, and the share of the one that is under way.
    """

    def __init__(self, sentences: Sentences, clocks: Clocks) -> None:
        self._sentences, self._clocks = sentences, clocks
        self._next, self._before, self._number, self.progress = -1, 0, 0, 0.0
        self._batches: Iterator[Batch] = iter(())

    def batches(self, clock: int) -> Iterator[tuple[int, Batch]]:
        """Yield the batches of a clock, each with its number in the epoch."""
        turn, each = clock % self._clocks.each, self._clocks.each
        if clock != self._next or not turn:
            self._batches = iter(self._sentences.batches(self._clocks.epoch(clock)))
            self._before = self._number = 0
        self._next = -1
        whole = max(self._sentences.tokens, 1)
        for batch in self._batches:
            of = min(self._before * each // whole, each - 1)
            if of > turn:
                self._batches = chain([batch], self._batches)
                break
            number = self._number
            self.progress = self._clocks.epoch(clock) + min(self._before / whole, 1.0)
            self._number += 1
            self._before += len(batch[0])
            if of == turn:
                yield number, batch
        self._next = clock + 1


def clock_tokens(recipe: Recipe, workers: int) -> int:
    """Return on how many tokens a worker trains in a clock, so that to exchange tables takes little beside it."""
    exchanged = recipe.tables * recipe.table_bytes if recipe.via == "local" else 0
    return max(CLOCK_TOKENS, exchanged // TOKEN_BYTES) * (ALONE if workers == 1 else 1)


def key_of(seed: int, epoch: int, rank: int, number: int) -> np.uint64:
    """Return what all draws for a batch come of."""
    key: Any = np.random.SeedSequence([seed % 2**64, epoch, rank, number]).generate_state(1, np.uint64)[0]
    return np.uint64(key)
