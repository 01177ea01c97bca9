"""A worker's corpus: its tokens, word by word."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import xxhash

from ps2.array_types import Float64s, Int32s, Int64s
from ps2.ops.guards import readable

Array = npt.NDArray[Any]

# The maximum number of topics for tokens' topics of 16 bits.
SHORT = 1 << 16
# The maximum number of tokens of a slice of several words. It limits the memory for a copy of their topics.
SLICE_TOKENS = 1 << 21


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens: each occurrence of a word in a document is a token. They are ordered by word, then by document.

    Attributes:
        words: the indices of the worker's words in the vocabulary, ascending, or block by block.
        begins: the position of each word's first token; the last element is the number of tokens.
        documents: the document of each token, as an index among this worker's documents.
        numbers: the global number of each document (see ``document_numbers``).
    """

    words: Int64s
    begins: Int64s
    documents: Int32s
    numbers: Int64s

    @staticmethod
    def from_counts(
        counts: sp.csr_array, words: Int64s, numbers: Int64s, order: Int64s | None = None, keep_empty: bool = False
    ) -> Corpus:
        """Return the tokens of a matrix, shape (documents, words).

        Args:
            words: the indices of the columns' words in the vocabulary, ascending.
            order: the order of the words, as indices of columns; None: the order of the columns.
            keep_empty: whether to keep words without tokens.
        """
        by_word = sp.csc_array(counts)
        if order is not None:
            by_word, words = by_word[:, order], words[order]
        by_word.sort_indices()
        occurrences = by_word.data.astype(np.int64)
        begins = np.append(0, np.cumsum(occurrences))[by_word.indptr]
        selected = np.arange(len(words)) if keep_empty else np.flatnonzero(np.diff(begins))
        documents = np.repeat(by_word.indices.astype(np.int32), occurrences)
        words, begins = words[selected], np.append(begins[selected], begins[-1])
        return Corpus(readable(words), readable(begins), readable(documents), readable(numbers))

    @property
    def size(self) -> int:
        """The number of tokens."""
        return len(self.documents)

    @cached_property
    def lengths(self) -> Int64s:
        """The number of tokens of each document."""
        return np.bincount(self.documents, minlength=len(self.numbers)).astype(np.int64)

    @property
    def for_kernels(self) -> tuple[Int64s, Int64s, Int32s, Int64s]:
        return self.words, self.begins, self.documents, self.numbers

    def slices(
        self, width: int, begin: int = 0, end: int | None = None, tokens: int | None = None
    ) -> list[tuple[int, int]]:
        """Return the bounds, in ``words``, of slices of at most ``width`` words between two positions.

        A slice of several words has at most ``tokens`` tokens; None: SLICE_TOKENS.
        """
        last = len(self.words) if end is None else end
        bounds = [begin]
        while bounds[-1] < last:
            first = bounds[-1]
            token_limit = self.begins[first] + (SLICE_TOKENS if tokens is None else tokens)
            end_by_tokens = int(np.searchsorted(self.begins, token_limit, side="right")) - 1
            bounds.append(max(min(first + width, end_by_tokens, last), first + 1))
        return list(pairwise(bounds))


def corpus_hash(corpus: Corpus) -> int:
    """Return a hash of tokens and their order; never 0."""
    digest = xxhash.xxh3_64()
    for array in corpus.for_kernels:
        digest.update(np.ascontiguousarray(array).data)
    return int(digest.intdigest() >> 1) | 1


def document_numbers(rank: int, count: int) -> Int64s:
    """Return global numbers of a worker's documents; no two workers have a number in common."""
    return (rank << 40) + np.arange(count)


def iteration_key(seed: int, iteration: int) -> np.uint64:
    """Return the key of an iteration's random numbers."""
    return np.random.SeedSequence([seed % 2**64, iteration]).generate_state(1, np.uint64)[0]


@dataclass(frozen=True, eq=False)
class Prior:
    """The Dirichlet priors: alpha, shape (topics,), of a document's topics; beta, of a topic's ``vocabulary`` words."""

    alpha: Float64s
    beta: float
    vocabulary: int

    @property
    def topics(self) -> int:
        return len(self.alpha)

    @property
    def all_beta(self) -> float:
        """The sum of beta over all words."""
        return self.beta * self.vocabulary


def topic_dtype(topics: int) -> np.dtype[Any]:
    """Return the dtype of tokens' topics for a number of topics."""
    return np.dtype(np.uint16 if topics <= SHORT else np.int32)
