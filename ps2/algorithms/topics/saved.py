"""Topics of tokens that workers keep on the servers, from which an attempt goes on after one that died."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ps2.algorithms.topics.corpus import Corpus, dtype_of
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]

# Numbers of a page. Each worker's begin with a page of their own.
PAGE = 1 << 14
# What is known of a worker: how many pages it has, and what it has saved the topics of: 0: nothing.
PAGES, TOKENS_HASH = range(2)
KNOWN = 2


@dataclass(frozen=True, eq=False)
class Saved:
    """What all workers have saved; picklable.

    Attributes:
        pages: int32, PAGE columns.
        known: int64, KNOWN numbers a worker.
        topics: how many there are.
    """

    pages: DCVMatrix
    known: DCV
    topics: int

    @staticmethod
    def make(topics: int, tokens: int, workers: int, names: CheckpointNames) -> Saved:
        rows = _pages(tokens, topics) + workers
        pages = names.give(lambda name: DCV.dense(PAGE, rows, "int32", name=name)).matrix()
        return Saved(pages, names.give(lambda name: DCV.dense(workers * KNOWN, 1, "int64", name=name)), topics)

    def tell_size(self, rank: int, corpus: Corpus) -> None:
        """Say how much a worker is going to save; all do before anybody saves."""
        self.known.push(np.array([_pages(corpus.size, self.topics)]), np.array([rank * KNOWN + PAGES]))

    def save(self, rank: int, corpus: Corpus, topics: Array) -> None:
        """Keep the topics of a worker's tokens; if it dies meanwhile, some stay as they were saved before."""
        rows = self._rows(rank)
        values = np.zeros(len(rows) * PAGE, np.int32)
        values.view(np.uint8)[: topics.nbytes] = topics.view(np.uint8)
        with batch():
            self.pages.push(rows, values.reshape(-1, PAGE))
            self.known.push(np.array([_hash(corpus)]), np.array([rank * KNOWN + TOKENS_HASH]))

    def load(self, rank: int, corpus: Corpus) -> Array | None:
        """Return the topics that a worker's tokens had; None if these were not saved, or others."""
        if int(self.known.pull(np.array([rank * KNOWN + TOKENS_HASH]))[0]) != _hash(corpus):
            return None
        dtype = dtype_of(self.topics)
        values: Array = self.pages.pull(self._rows(rank)).reshape(-1).view(dtype)
        return values[: corpus.size]

    def free(self) -> None:
        self.pages.free()
        self.known.free()

    def _rows(self, rank: int) -> Int64s:
        counts = self.known.pull().reshape(-1, KNOWN)[:, PAGES]
        return np.arange(counts[rank]) + counts[:rank].sum()


def _pages(tokens: int, topics: int) -> int:
    """Return how many pages the topics of tokens take."""
    return -(-tokens * dtype_of(topics).itemsize // (PAGE * np.dtype(np.int32).itemsize))


def _hash(corpus: Corpus) -> int:
    """Return what tells tokens from others, in their order; not 0."""
    hashed = xxhash.xxh3_64()
    for array in corpus.for_kernels:
        hashed.update(np.ascontiguousarray(array).data)
    return int(hashed.intdigest() >> 1) | 1
