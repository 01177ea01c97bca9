"""What a worker has of a corpus: its tokens, word by word."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s

Array = npt.NDArray[Any]
Int32s = npt.NDArray[np.int32]

# So many topics are told apart by 16 bits.
SHORT = 1 << 16
# Tokens whose old and new topics, and changes of counts, are held at a time.
SLICE_TOKENS = 1 << 21


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens: each time that a word comes in a document is one. Those of a word lie together, by document.

    Attributes:
        words: int64: numbers of the words that are here, among all; ascending, unless they lie by block.
        begins: int64, shape (words + 1,): where each one's tokens begin, and the end.
        documents: int32, shape (tokens,): which one each is in, counted from 0 here.
        numbers: int64, shape (documents,): of these among all.
    """

    words: Int64s
    begins: Int64s
    documents: Int32s
    numbers: Int64s

    @staticmethod
    def of(counts: sp.csr_array, words: Int64s, numbers: Int64s, order: Int64s | None = None) -> Corpus:
        """Take documents apart.

        Args:
            counts: whole numbers, shape (documents, len(words)): how often a word comes in a document.
            words: int64, ascending: the columns' numbers among all; one without tokens is left out.
            numbers: int64: of the documents among all.
            order: places of columns in the order in which words are to lie; None: that in which they come.
        """
        by_word = sp.csc_array(counts)
        if order is not None:
            by_word, words = by_word[:, order], words[order]
        by_word.sort_indices()
        times = by_word.data.astype(np.int64)
        ends = np.append(0, np.cumsum(times))[by_word.indptr]
        some = np.flatnonzero(np.diff(ends))
        documents = np.repeat(by_word.indices.astype(np.int32), times)
        return Corpus(
            readable(words[some]), readable(np.append(ends[some], ends[-1])), readable(documents), readable(numbers)
        )

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return len(self.documents)

    @cached_property
    def lengths(self) -> Int64s:
        """Tokens of each document."""
        return np.bincount(self.documents, minlength=len(self.numbers)).astype(np.int64)

    @property
    def for_kernels(self) -> tuple[Int64s, Int64s, Int32s, Int64s]:
        return self.words, self.begins, self.documents, self.numbers

    def slices(
        self, width: int, begin: int = 0, end: int | None = None, tokens: int | None = None
    ) -> list[tuple[int, int]]:
        """Return places in ``words``, begin and end, of slices of so many words at most.

        Args:
            begin, end: places that they lie between; None: all to the last word.
            tokens: that they have at most, if they have several words; None: SLICE_TOKENS.
        """
        last = len(self.words) if end is None else end
        ends = [begin]
        while ends[-1] < last:
            at = ends[-1]
            most = self.begins[at] + (SLICE_TOKENS if tokens is None else tokens)
            full = int(np.searchsorted(self.begins, most, side="right")) - 1
            ends.append(max(min(at + width, full, last), at + 1))
        return list(pairwise(ends))


def numbers_of(rank: int, count: int) -> Int64s:
    """Number a worker's documents among all: no other worker's has one of these numbers."""
    return (rank << 40) + np.arange(count)


def key_of(seed: int, iteration: int) -> np.uint64:
    """Return what the random numbers of an iteration come of."""
    return np.random.SeedSequence([seed % 2**64, iteration]).generate_state(1, np.uint64)[0]


@dataclass(frozen=True, eq=False)
class Prior:
    """Dirichlet's parameters.

    Attributes:
        alpha: float64, shape (topics,): of topics in documents.
        beta: of words in topics.
        vocabulary: how many words there are.
    """

    alpha: Float64s
    beta: float
    vocabulary: int

    @property
    def topics(self) -> int:
        return len(self.alpha)

    @property
    def all_beta(self) -> float:
        """Of all words."""
        return self.beta * self.vocabulary


def dtype_of(topics: int) -> np.dtype[Any]:
    """Return the dtype in which topics are kept."""
    return np.dtype(np.uint16 if topics <= SHORT else np.int32)
