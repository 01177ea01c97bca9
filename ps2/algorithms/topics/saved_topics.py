"""Topics of tokens, saved on the servers, from which a new attempt of a worker continues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ps2.algorithms.topics.corpus import Corpus, topic_dtype
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.array_types import Int64s
from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix

Array = npt.NDArray[Any]

# Numbers per page. The pages of different workers are separate.
PAGE = 1 << 14
# Kept for each worker: its number of pages, and a hash of the tokens whose topics it saved; 0: it saved nothing.
PAGES, TOKENS_HASH = range(2)
KNOWN = 2


@dataclass(frozen=True, eq=False)
class SavedTopics:
    """The saved topics of all workers; picklable.

    Attributes:
        pages: int32, PAGE columns.
        known: int64, KNOWN numbers per worker.
        topics: number of topics.
    """

    pages: DCVMatrix
    known: DCV
    topics: int

    @staticmethod
    def make(topics: int, tokens: int, workers: int, names: CheckpointNames) -> SavedTopics:
        rows = _pages(tokens, topics) + workers
        pages = names.give(lambda name: DCV.dense(PAGE, rows, "int32", name=name)).matrix()
        return SavedTopics(pages, names.give(lambda name: DCV.dense(workers * KNOWN, 1, "int64", name=name)), topics)

    def tell_size(self, rank: int, tokens: int) -> None:
        """Announce the size of a worker's topics; all workers do so before any of them saves."""
        self.known.push(np.array([_pages(tokens, self.topics)]), np.array([rank * KNOWN + PAGES]))

    def save(self, rank: int, corpus: int, topics: Array) -> None:
        """Save the topics of a worker's tokens. If the worker dies meanwhile, some pages keep their earlier content.

        Args:
            corpus: ``corpus_hash`` the tokens.
        """
        rows = self._rows(rank)
        values = np.zeros(len(rows) * PAGE, np.int32)
        values.view(np.uint8)[: topics.nbytes] = topics.view(np.uint8)
        with batch():
            self.pages.push(rows, values.reshape(-1, PAGE))
            self.known.push(np.array([corpus]), np.array([rank * KNOWN + TOKENS_HASH]))

    def load(self, rank: int, corpus: int, tokens: int) -> Array | None:
        """Return the saved topics of a worker's tokens; None if it saved none, or those of other tokens.

        Args:
            corpus: ``corpus_hash`` the tokens.
            tokens: their number.
        """
        if int(self.known.pull(np.array([rank * KNOWN + TOKENS_HASH]))[0]) != corpus:
            return None
        dtype = topic_dtype(self.topics)
        values: Array = self.pages.pull(self._rows(rank)).reshape(-1).view(dtype)
        return values[:tokens]

    def free(self) -> None:
        self.pages.free()
        self.known.free()

    def _rows(self, rank: int) -> Int64s:
        counts = self.known.pull().reshape(-1, KNOWN)[:, PAGES]
        return np.arange(counts[rank]) + counts[:rank].sum()


def _pages(tokens: int, topics: int) -> int:
    """Return the number of pages that the topics of tokens take."""
    return -(-tokens * topic_dtype(topics).itemsize // (PAGE * np.dtype(np.int32).itemsize))


def corpus_hash(corpus: Corpus) -> int:
    """Return a hash of tokens and their order; never 0."""
    hashed = xxhash.xxh3_64()
    for array in corpus.for_kernels:
        hashed.update(np.ascontiguousarray(array).data)
    return int(hashed.intdigest() >> 1) | 1
