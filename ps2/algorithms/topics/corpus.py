"""A worker's corpus: its tokens, word by word."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.guards import readable

Array = npt.NDArray[Any]

# 16 bits distinguish this many topics.
SHORT = 1 << 16
# Maximum number of tokens whose old and new topics are held at a time.
SLICE_TOKENS = 1 << 21


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens: each occurrence of a word in a document is one. The tokens of a word lie together, by document.

    Attributes:
        words: int64: numbers of the words here, ascending, or block by block.
        begins: int64, shape (words + 1,): position of each word's first token, and the end.
        documents: int32, shape (tokens,): the document of each token, counted from 0 in this worker.
        numbers: int64, shape (documents,): global numbers of the documents.
    """

    words: Int64s
    begins: Int64s
    documents: Int32s
    numbers: Int64s

    @staticmethod
    def from_counts(
        counts: sp.csr_array, words: Int64s, numbers: Int64s, order: Int64s | None = None, keeps: bool = False
    ) -> Corpus:
        """Make a corpus from a matrix.

        Args:
            counts: integers, shape (documents, len(words)): occurrences of a word in a document.
            words: int64, ascending: numbers of the columns' words.
            numbers: int64: global numbers of the documents.
            order: the columns in the order of words to make; None: their own order.
            keeps: keep words without tokens, which are left out otherwise.
        """
        by_word = sp.csc_array(counts)
        if order is not None:
            by_word, words = by_word[:, order], words[order]
        by_word.sort_indices()
        times = by_word.data.astype(np.int64)
        ends = np.append(0, np.cumsum(times))[by_word.indptr]
        some = np.arange(len(words)) if keeps else np.flatnonzero(np.diff(ends))
        documents = np.repeat(by_word.indices.astype(np.int32), times)
        return Corpus(
            readable(words[some]), readable(np.append(ends[some], ends[-1])), readable(documents), readable(numbers)
        )

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.documents)

    @cached_property
    def lengths(self) -> Int64s:
        """Number of tokens of each document."""
        return np.bincount(self.documents, minlength=len(self.numbers)).astype(np.int64)

    @property
    def for_kernels(self) -> tuple[Int64s, Int64s, Int32s, Int64s]:
        return self.words, self.begins, self.documents, self.numbers

    def slices(
        self, width: int, begin: int = 0, end: int | None = None, tokens: int | None = None
    ) -> list[tuple[int, int]]:
        """Return bounds of slices of at most ``width`` words: positions in ``words``, begin and end.

        Args:
            begin, end: positions between which the slices lie; None: to the last word.
            tokens: maximum number of tokens of a slice with several words; None: SLICE_TOKENS.
        """
        last = len(self.words) if end is None else end
        ends = [begin]
        while ends[-1] < last:
            first = ends[-1]
            token_limit = self.begins[first] + (SLICE_TOKENS if tokens is None else tokens)
            full = int(np.searchsorted(self.begins, token_limit, side="right")) - 1
            ends.append(max(min(first + width, full, last), first + 1))
        return list(pairwise(ends))


def document_numbers(rank: int, count: int) -> Int64s:
    """Return global numbers for a worker's documents, distinct from all other workers'."""
    return (rank << 40) + np.arange(count)


def iteration_key(seed: int, iteration: int) -> np.uint64:
    """Return the key of an iteration's random numbers."""
    return np.random.SeedSequence([seed % 2**64, iteration]).generate_state(1, np.uint64)[0]


@dataclass(frozen=True, eq=False)
class Prior:
    """The Dirichlet priors.

    Attributes:
        alpha: float64, shape (topics,): the prior of a document's topics.
        beta: the prior of a topic's words.
        vocabulary: the number of words.
    """

    alpha: Float64s
    beta: float
    vocabulary: int

    @property
    def topics(self) -> int:
        return len(self.alpha)

    @property
    def all_beta(self) -> float:
        """Sum of beta over all words."""
        return self.beta * self.vocabulary


def topic_dtype(topics: int) -> np.dtype[Any]:
    """Return the dtype in which topics are kept."""
    return np.dtype(np.uint16 if topics <= SHORT else np.int32)
