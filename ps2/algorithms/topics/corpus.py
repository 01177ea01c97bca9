"""What a worker has of a corpus: its tokens, word by word, and the topics that they have been given."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ps2.algorithms.topics import sampling_kernels as kernels
from ps2.algorithms.topics.sampling_kernels import GROUP, Lists, Room
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s

Array = npt.NDArray[Any]
Int32s = npt.NDArray[np.int32]

SHORT = 1 << 16
# Tokens whose old and new topics, and changes of counts, are held at a time.
SLICE_TOKENS = 1 << 21
# Most counts of a topic in a document are below this.
SMALL = 64


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
    def for_kernels(self) -> tuple[Float64s, float, float]:
        return readable(self.alpha), self.beta, self.beta * self.vocabulary


class Assignments:
    """The topics of a corpus's tokens, and of its documents.

    Attributes:
        topics: shape (tokens,), unsigned: of each token.
    """

    def __init__(self, corpus: Corpus, topics: int, given: Array) -> None:
        """Args:
        topics: how many there are.
        given: integers: of each token its topic; it is copied.
        """
        self.corpus = corpus
        self.topics = given.astype(dtype_of(topics))
        self._lists = _empty_lists(corpus, topics)
        longest = int(np.diff(self._lists[0]).max(initial=0))
        self._room: Room = (np.empty(topics), np.empty(-(-topics // GROUP)), np.empty(topics), np.empty(longest))
        kernels.list_topics(corpus.documents, readable(self.topics), self._lists)

    @staticmethod
    def random(corpus: Corpus, topics: int, key: np.uint64) -> Assignments:
        """Give each token any topic."""
        given = np.empty(corpus.size, dtype_of(topics))
        kernels.draw_topics(*corpus.for_kernels, topics, key, given)
        return Assignments(corpus, topics, given)

    def sample(self, begin: int, end: int, counts: Array, totals: Int64s, prior: Prior, key: np.uint64) -> None:
        """Give the tokens of some words topics anew.

        Args:
            begin, end: places in the corpus's words.
            counts: int32, shape (end - begin, topics): of these words' topics, those of other workers' tokens too.
            totals: int64, shape (topics,): of all words; both follow what changes.
            key: of seed and iteration.
        """
        corpus = self.corpus
        kernels.sample_words(
            corpus.words[begin:end],
            corpus.begins[begin : end + 1],
            (corpus.documents, self.topics),
            corpus.numbers,
            self._lists,
            counts,
            totals,
            prior.for_kernels,
            key,
            self._room,
        )

    def changed(self, begin: int, end: int, before: Array) -> Changes:
        """Return by what the counts of some words have changed since their tokens had other topics.

        Args:
            begin, end: as of ``sample``.
            before: the topics that the words' tokens had.
        """
        begins = self.corpus.begins[begin : end + 1]
        after = self.topics[begins[0] : begins[-1]]
        most = 2 * len(after)
        found = np.empty(end - begin, np.int32), np.empty(most, self.topics.dtype), np.empty(most, np.int32)
        shifted = readable(begins - begins[0])
        count = kernels.changes(shifted, readable(before), readable(after), self._counted(), found)
        return Changes(self.corpus.words[begin:end], found[0], found[1][:count], found[2][:count])

    def listed(self, begin: int, end: int) -> Changes:
        """Return the counts of some words: by what they change when these tokens are added.

        Args:
            begin, end: as of ``sample``.
        """
        begins = self.corpus.begins[begin : end + 1]
        topics = self.topics[begins[0] : begins[-1]]
        found = np.empty(end - begin, np.int32), np.empty(len(topics), topics.dtype), np.empty(len(topics), np.int32)
        count = kernels.list_counts(readable(begins - begins[0]), readable(topics), self._counted(), found)
        return Changes(self.corpus.words[begin:end], found[0], found[1][:count], found[2][:count])

    def _counted(self) -> Int32s:
        """Return room to count by topic."""
        return np.zeros(len(self._room[0]), np.int32)

    def likelihood(self, prior: Prior) -> float:
        """Return log p(z), the documents' part of the joint likelihood."""
        return float(kernels.documents_likelihood(readable(self.corpus.lengths), self._lists, readable(prior.alpha)))

    def counts_of_counts(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return topics, how often they are in a document, and in how many documents they are so often."""
        _, _, held, often = self._lists
        small, rest = np.zeros((len(self._room[0]), SMALL), np.int64), np.empty(self.corpus.size // SMALL, np.int64)
        large = rest[: kernels.count_counts(self._lists, small, rest)]
        pairs = np.stack([held[large].astype(np.int64), often[large].astype(np.int64)])
        pairs, times = np.unique(pairs, axis=1, return_counts=True)
        topics, counts = np.nonzero(small)
        return (
            np.concatenate([topics, pairs[0]]),
            np.concatenate([counts, pairs[1]]),
            np.concatenate([small[topics, counts], times]),
        )


@dataclass(frozen=True, eq=False)
class Changes:
    """By what counts of words in topics change.

    Attributes:
        words: int64: numbers among all.
        sizes: int32: of each word, how many counts change.
        topics, by: of each of these, one word's side by side.
    """

    words: Int64s
    sizes: Int32s
    topics: Array
    by: Int32s


def dtype_of(topics: int) -> np.dtype[Any]:
    """Return the dtype in which topics are kept."""
    return np.dtype(np.uint16 if topics <= SHORT else np.int32)


def _empty_lists(corpus: Corpus, topics: int) -> Lists:
    """Return room for the topics of documents: as many as a document can have."""
    lengths = corpus.lengths
    first = np.append(0, np.cumsum(np.minimum(lengths, topics)))
    often = np.uint16 if lengths.max(initial=0) < SHORT else np.int32
    return (
        readable(first),
        np.zeros(len(lengths), np.int32),
        np.empty(first[-1], dtype_of(topics)),
        np.empty(first[-1], often),
    )
