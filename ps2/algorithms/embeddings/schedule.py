"""Which batches of a worker belong to which clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ps2.algorithms.embeddings.corpus import Batch, Sentences
from ps2.algorithms.embeddings.settings import EmbeddingSettings

# Minimum tokens of a worker in a clock; maximum bytes of tables exchanged for each of them.
CLOCK_TOKENS, TOKEN_BYTES = 20_000, 500
# A single worker's clocks are longer by this factor: only checkpoints need its changes.
ONLY_NEIGHBOUR = 10
# Minimum clocks of a training; workers see each other's changes between clocks.
MIN_CLOCKS = 10


@dataclass(frozen=True)
class EpochSchedule:
    """The clocks of a training.

    Attributes:
        epochs: number of epochs.
        clocks_per_epoch: clocks of an epoch.
        first: the run's clock with which the training begins.
    """

    epochs: int
    clocks_per_epoch: int
    first: int = 0

    @staticmethod
    def of(settings: EmbeddingSettings, workers: int, tokens: int, first: int = 0) -> EpochSchedule:
        """Args:
        tokens: of a worker in a clock, approximately.
        """
        own = settings.total * settings.tokens_per_example / workers
        each = max(-(-own // tokens), -(-MIN_CLOCKS // settings.epochs))
        return EpochSchedule(settings.epochs, int(min(each, own)) or 1, first)

    @property
    def count(self) -> int:
        return self.epochs * self.clocks_per_epoch

    def epoch(self, clock: int) -> int:
        return clock // self.clocks_per_epoch

    def is_last(self, clock: int) -> bool:
        """Return True if a clock is the last of its epoch."""
        return (clock + 1) % self.clocks_per_epoch == 0


class ClockReader:
    """Reads a worker's batches clock by clock, or from any clock on.

    A batch belongs to the clock that follows from the share of the worker's tokens before it in the epoch. To begin in
    the middle of an epoch, the reader makes its sentences from the beginning.

    Attributes:
        progress: of the worker before the current batch: epochs, the share of the current one included.
    """

    def __init__(self, sentences: Sentences, schedule: EpochSchedule) -> None:
        self._sentences, self._schedule = sentences, schedule
        self._next, self._before, self._number, self.progress = -1, 0, 0, 0.0
        self._batches: Iterator[Batch] = iter(())

    def batches(self, clock: int) -> Iterator[tuple[int, Batch]]:
        """Yield the batches of a clock with their numbers in the epoch."""
        turn, each = clock % self._schedule.clocks_per_epoch, self._schedule.clocks_per_epoch
        if clock != self._next or not turn:
            self._batches = iter(self._sentences.batches(self._schedule.epoch(clock)))
            self._before = self._number = 0
        self._next = -1
        whole = max(self._sentences.tokens, 1)
        for batch in self._batches:
            of = min(self._before * each // whole, each - 1)
            if of > turn:
                self._batches = chain([batch], self._batches)
                break
            number = self._number
            self.progress = self._schedule.epoch(clock) + min(self._before / whole, 1.0)
            self._number += 1
            self._before += len(batch[0])
            if of == turn:
                yield number, batch
        self._next = clock + 1


def clock_tokens(settings: EmbeddingSettings, workers: int) -> int:
    """Return the tokens of a worker in a clock, so that exchanging tables takes little time in comparison."""
    exchanged = settings.tables * settings.table_bytes if settings.via == "local" else 0
    return max(CLOCK_TOKENS, exchanged // TOKEN_BYTES) * (ONLY_NEIGHBOUR if workers == 1 else 1)


def key_of(seed: int, epoch: int, rank: int, number: int) -> np.uint64:
    """Return the random key of a batch."""
    key: Any = np.random.SeedSequence([seed % 2**64, epoch, rank, number]).generate_state(1, np.uint64)[0]
    return np.uint64(key)
