"""A worker's corpus: its tokens, word by word."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import xxhash

from ps2.array_types import Float64s, Int64s
from ps2.data.block_file import StoredArray
from ps2.data.rows import LocalRows
from ps2.data.spilled_rows import KeptRows
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
        documents: the document of each token, int32, as an index among this worker's documents.
        numbers: the global number of each document (see ``document_numbers``).
        new_array: makes an array of zeros, of a length and a dtype, in memory or in the file of the documents.
    """

    words: Int64s
    begins: Int64s
    documents: StoredArray
    numbers: Int64s
    new_array: Callable[[int, npt.DTypeLike], StoredArray] = np.zeros

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

    @staticmethod
    def from_rows(
        rows: KeptRows, numbers: Int64s, order: Int64s | None = None, keep_empty: bool = False, begin: int = 0
    ) -> Corpus:
        """Return the tokens of documents, from number ``begin`` on, as ``from_counts`` does; of a file, in the file."""
        end = begin + len(numbers)
        if isinstance(rows, LocalRows):
            x = rows.x if len(numbers) == len(rows) else rows.x[begin:end]
            return Corpus.from_counts(x, rows.keys, numbers, order, keep_empty)
        part = rows if len(numbers) == len(rows) else rows.chosen(np.arange(begin, end))
        order = np.arange(len(rows.keys)) if order is None else order
        ends = np.cumsum(word_frequencies(part)[order])
        begins, size = np.append(0, ends), int(ends[-1]) if len(ends) else 0
        documents, next_positions, first_document = rows.new_array(size, np.int32), begins[:-1].copy(), 0
        for block in part.blocks():
            by_word = sp.csc_array(block.x)[:, order]
            by_word.sort_indices()
            occurrences = by_word.data.astype(np.int64)
            token_documents = np.repeat(by_word.indices.astype(np.int32) + np.int32(first_document), occurrences)
            word_begins = np.append(0, np.cumsum(occurrences))[by_word.indptr]
            sizes = np.diff(word_begins)
            positions = np.repeat(next_positions - word_begins[:-1], sizes) + np.arange(len(token_documents))
            for tokens in _windows(size):
                first, last = np.searchsorted(positions, [tokens.start, tokens.stop])
                if first < last:
                    documents[tokens][positions[first:last] - tokens.start] = token_documents[first:last]
            next_positions += sizes
            first_document += len(block)
        selected = np.arange(len(order)) if keep_empty else np.flatnonzero(np.diff(begins))
        words, begins = rows.keys[order][selected], np.append(begins[selected], begins[-1])
        return Corpus(readable(words), readable(begins), documents, readable(numbers), rows.new_array)

    @property
    def size(self) -> int:
        """The number of tokens."""
        return len(self.documents)

    @cached_property
    def lengths(self) -> Int64s:
        """The number of tokens of each document."""
        lengths = np.zeros(len(self.numbers), np.int64)
        for tokens in self.windows():
            lengths += np.bincount(self.documents[tokens], minlength=len(lengths))
        return lengths

    def windows(self) -> Iterator[slice]:
        """Yield slices of at most SLICE_TOKENS tokens, in order."""
        return _windows(self.size)

    def tokens(self, begin: int, end: int) -> slice:
        """Return the slice of the tokens of some words."""
        return slice(int(self.begins[begin]), int(self.begins[end]))

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
    for array in (corpus.words, corpus.begins, *map(corpus.documents.__getitem__, corpus.windows()), corpus.numbers):
        digest.update(np.ascontiguousarray(array).data)
    return int(digest.intdigest() >> 1) | 1


def word_frequencies(rows: KeptRows) -> Int64s:
    """Return the number of tokens of each of the rows' words."""
    frequencies = np.zeros(len(rows.keys), np.int64)
    for block in rows.blocks():
        frequencies += np.bincount(block.x.indices, block.x.data, len(frequencies)).astype(np.int64)
    return frequencies


def _windows(size: int) -> Iterator[slice]:
    for begin in range(0, size, SLICE_TOKENS):
        yield slice(begin, min(begin + SLICE_TOKENS, size))


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
