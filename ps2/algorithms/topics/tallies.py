"""Topic counts of a worker's documents, in the two forms that the samplers use; both are exact."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics import dense_kernels, sampling_kernels, sparse_kernels
from ps2.algorithms.topics.corpus import Corpus, Prior, topic_dtype
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s

Array = npt.NDArray[Any]

# Lists of documents with fewer tokens hold 16-bit counts.
SHORT = 1 << 16
# Counts of a topic in a document whose logarithms are computed once.
TABLE = 32
# Most counts of a topic in a document are below this.
SMALL = 64
# Beyond this many topics lists are faster, measured on documents of 136 tokens.
MAX_DENSE = 256
# Rows may take this many times the memory of lists.
MAX_RATIO = 2


class Tally(Protocol):
    """Topic counts of documents, kept up to date with the topics of tokens."""

    def sample(self, begin: int, end: int, counts: Array, totals: Int64s, prior: Prior, key: np.uint64) -> None:
        """See ``Assignments.sample``."""

    def likelihood(self, alpha: Float64s) -> float:
        """Return log p(z), the documents' part of the joint likelihood."""

    def counts_of_counts(self) -> tuple[Int64s, Int64s, Int64s]:
        """Return a histogram: topics, numbers of occurrences in a document, and how many documents have that number."""


def make_tally(sampler: str, corpus: Corpus, count: int, topics: Array) -> Tally:
    """Count the topics of documents.

    Args:
        sampler: "auto" chooses the faster one.
        count: number of topics.
        topics: the topic of each token; sampling changes them.
    """
    if sampler == "dense" or (sampler == "auto" and _is_dense(corpus, count)):
        return DenseTally(corpus, count, topics)
    return SparseTally(corpus, count, topics)


def _is_dense(corpus: Corpus, count: int) -> bool:
    lengths = corpus.lengths
    if count > MAX_DENSE or lengths.max(initial=0) >= dense_kernels.MAX_TOKENS:
        return False
    return len(lengths) * count <= MAX_RATIO * int(np.minimum(lengths, count).sum())


class Rises:
    """Logarithms that the likelihood adds up, kept while alpha stays the same."""

    def __init__(self) -> None:
        self._alpha, self._table = np.empty(0), np.empty((0, TABLE))

    def of(self, alpha: Float64s) -> npt.NDArray[np.float64]:
        """Return the table of ``sampling_kernels.tabulate_rises``, shape (topics, TABLE)."""
        if not np.array_equal(alpha, self._alpha):
            self._alpha, self._table = alpha.copy(), np.empty((len(alpha), TABLE))
            sampling_kernels.tabulate_rises(readable(alpha), self._table)
        return readable(self._table)


class DenseTally:
    """One number per document and topic: 4 bytes each."""

    def __init__(self, corpus: Corpus, count: int, topics: Array) -> None:
        group = dense_kernels.GROUP
        self._corpus, self._count, self._topics, self._rises = corpus, count, topics, Rises()
        self._padded = -(-count // group) * group
        self._rows = np.zeros((len(corpus.numbers), self._padded), np.float32)
        # Columns beyond the topics stay 0.
        self._buffers: dense_kernels.Room = (self._vector(), self._vector(), self._vector())
        dense_kernels.count_topics(corpus.documents, readable(topics), self._rows)

    def sample(self, begin: int, end: int, counts: Array, totals: Int64s, prior: Prior, key: np.uint64) -> None:
        corpus, alpha = self._corpus, self._vector()
        alpha[: self._count] = prior.alpha
        dense_kernels.sample_words(
            corpus.words[begin:end],
            corpus.begins[begin : end + 1],
            (corpus.documents, self._topics),
            corpus.numbers,
            self._rows,
            counts,
            totals,
            (readable(alpha), prior.beta, prior.all_beta),
            key,
            self._buffers,
        )

    def likelihood(self, alpha: Float64s) -> float:
        lengths = readable(self._corpus.lengths)
        return float(
            dense_kernels.documents_likelihood(lengths, readable(self._rows), readable(alpha), self._rises.of(alpha))
        )

    def counts_of_counts(self) -> tuple[Int64s, Int64s, Int64s]:
        small, rest = _histogram_buffers(self._corpus, self._count)
        large = rest[: dense_kernels.count_counts(readable(self._rows), small, rest)]
        return _counted(small, large % self._padded, self._rows.reshape(-1)[large].astype(np.int64))

    def _vector(self) -> npt.NDArray[np.float32]:
        return np.zeros(self._padded, np.float32)


class SparseTally:
    """Lists of the topics that occur in each document, with counts: at most one entry per token."""

    def __init__(self, corpus: Corpus, count: int, topics: Array) -> None:
        self._corpus, self._count, self._topics, self._rises = corpus, count, topics, Rises()
        self._lists = _empty_lists(corpus, count)
        groups, longest = -(-count // sparse_kernels.GROUP), int(np.diff(self._lists[0]).max(initial=0))
        self._buffers: sparse_kernels.Room = (np.empty(count), np.empty(groups), np.empty(count), np.empty(longest))
        sparse_kernels.list_topics(corpus.documents, readable(topics), self._lists)

    def sample(self, begin: int, end: int, counts: Array, totals: Int64s, prior: Prior, key: np.uint64) -> None:
        corpus = self._corpus
        sparse_kernels.sample_words(
            corpus.words[begin:end],
            corpus.begins[begin : end + 1],
            (corpus.documents, self._topics),
            corpus.numbers,
            self._lists,
            counts,
            totals,
            (readable(prior.alpha), prior.beta, prior.all_beta),
            key,
            self._buffers,
        )

    def likelihood(self, alpha: Float64s) -> float:
        lengths = readable(self._corpus.lengths)
        return float(sparse_kernels.documents_likelihood(lengths, self._lists, readable(alpha), self._rises.of(alpha)))

    def counts_of_counts(self) -> tuple[Int64s, Int64s, Int64s]:
        _, _, held, often = self._lists
        small, rest = _histogram_buffers(self._corpus, self._count)
        large = rest[: sparse_kernels.count_counts(self._lists, small, rest)]
        return _counted(small, held[large].astype(np.int64), often[large].astype(np.int64))


def _histogram_buffers(corpus: Corpus, count: int) -> tuple[Int64s, Int64s]:
    """Return buffers for the histogram of small counts by topic, and for the positions of large counts."""
    return np.zeros((count, SMALL), np.int64), np.empty(corpus.size // SMALL, np.int64)


def _counted(small: Int64s, topics_of_large: Int64s, large: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Merge small and large counts, as ``Tally.counts_of_counts`` returns them."""
    (more_topics, more_counts), more_times = np.unique(np.stack([topics_of_large, large]), axis=1, return_counts=True)
    topics, counts = np.nonzero(small)
    return (
        np.concatenate([topics, more_topics]),
        np.concatenate([counts, more_counts]),
        np.concatenate([small[topics, counts], more_times]),
    )


def _empty_lists(corpus: Corpus, count: int) -> sparse_kernels.Lists:
    """Return buffers for the topics of documents, each as large as a document can need."""
    lengths = corpus.lengths
    first = np.append(0, np.cumsum(np.minimum(lengths, count)))
    often = np.uint16 if lengths.max(initial=0) < SHORT else np.int32
    return (
        readable(first),
        np.zeros(len(lengths), np.int32),
        np.empty(first[-1], topic_dtype(count)),
        np.empty(first[-1], often),
    )
