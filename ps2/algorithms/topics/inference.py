"""Inference of the topics of new documents, given trained topics: by sampling, or by variational Bayes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.special import gammaln, psi

from ps2.algorithms.frame.row_matrices import as_rows
from ps2.algorithms.topics import inference_kernels, online_kernels
from ps2.algorithms.topics.corpus import iteration_key
from ps2.algorithms.topics.sparse_kernels import GROUP
from ps2.errors import InputError
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s, Int64s
from ps2.ops.parallel import over_blocks

Array = npt.NDArray[Any]

# The number of sweeps over a new document's tokens: in the burn-in, and after it, for the mean.
BURN_IN, AVERAGED = 10, 20
# In documents with more tokens, all tokens of a word are drawn at once, which needs a longer burn-in to converge.
MAX_TOKENS, LONG_BURN_IN = 1 << 20, 200
# The maximum of a count, and of a document's number of tokens. The counts of longer documents are scaled down.
MAX_COUNT = 2.0**53
# The cost of a token in a sweep, in element additions.
TOKEN_COST = 64
# The maximum number of weights, one for each word and topic, in memory. If all words have more, batches of documents
# get the weights of their words.
MAX_WEIGHTS = 1 << 22
# The maximum number of counts for which logarithms of the gamma function are computed at a time; it limits the memory.
MAX_LOGARITHMS = 1 << 20


def checked_documents(x: Any, vocabulary: int) -> sp.csr_array:
    """Return documents as a float64 matrix in canonical form: sorted words, no explicit zeros.

    Raises:
        ShapeError, DTypeError: x is not a matrix, shape (n, vocabulary).
        InputError: a value of x is not a count.
    """
    x = as_rows("x", x, vocabulary, "counts")
    documents = sp.csr_array(x, dtype=np.float64, copy=True)
    documents.sum_duplicates()
    counts = documents.data
    is_wrong = ~((counts >= 0) & (counts == np.floor(counts)) & (counts <= MAX_COUNT))
    if is_wrong.any():
        rows = np.repeat(np.arange(documents.shape[0]), np.diff(documents.indptr))[is_wrong]
        raise InputError(
            f"x: {len(np.unique(rows)):,} of {documents.shape[0]:,} documents hold values that are no counts, such as "
            f"{counts[is_wrong][0]:g} in row {rows[0]}; expected whole numbers from 0 to 2**53"
        )
    documents.eliminate_zeros()
    return documents


def halves(x: sp.csr_array, seed: int) -> tuple[sp.csr_array, sp.csr_array]:
    """Split each document's tokens into random halves, the first with an odd token; equal documents split equally."""
    second = np.empty(x.nnz)
    matrix = _for_kernels(x)
    inference_kernels.halve(matrix, _document_ids(matrix), iteration_key(seed, 1), second)
    parts = [sp.csr_array((data, x.indices, x.indptr), shape=x.shape, copy=True) for data in (x.data - second, second)]
    for part in parts:
        part.eliminate_zeros()
    return parts[0], parts[1]


class Sampling:
    """Gibbs sampling of documents' topics, given the topics' words; equal documents get equal topics.

    Tokens are drawn one by one, or, in very long documents, all tokens of a word at once.
    """

    def __init__(self, counts: Array, alpha: Float64s, beta: float, seed: int) -> None:
        """``counts`` has the tokens of words in topics, shape (vocabulary, topics)."""
        self._counts, self._alpha = readable(counts), readable(alpha)
        self._beta, self._key = beta, iteration_key(seed, 0)
        totals = counts.sum(axis=0, dtype=np.float64)
        self._scale = readable(1.0 / (totals + beta * len(counts)))
        groups = -(-counts.shape[1] // GROUP)
        self._has_sums, self._sums = np.zeros(len(counts), np.bool_), np.empty((len(counts), groups))

    def proportions(self, x: sp.csr_array) -> Float64s:
        """Return the documents' topic proportions, shape (n, topics); an empty document has those of the prior."""
        matrix = _for_kernels(x)
        inference_kernels.sum_groups(matrix[1], self._topics, self._has_sums, self._sums)
        out, ids, tokens = np.empty((x.shape[0], len(self._alpha))), _document_ids(matrix), x.sum(axis=1)
        short = np.flatnonzero(tokens <= MAX_TOKENS)
        cost = int(TOKEN_COST * (BURN_IN + AVERAGED) * (tokens[short].sum() + 1) / max(len(short), 1))
        arguments = (matrix, ids, self._topics, readable(self._sums), self._key, (BURN_IN, AVERAGED))
        proportions = np.empty((len(short), len(self._alpha)))
        over_blocks(inference_kernels.sample_documents, (short, proportions), *arguments, cost=cost)
        out[short] = proportions
        for row in np.flatnonzero(tokens > MAX_TOKENS):
            entries = slice(x.indptr[row], x.indptr[row + 1])
            out[row] = self._long_proportions(x.indices[entries], x.data[entries], int(ids[row]))
        return out

    def _long_proportions(self, words: Array, word_counts: Float64s, id: int) -> Float64s:
        """Return the topic proportions of a long document. The cost depends on its number of distinct words.

        This Gibbs sampler does not integrate theta out. It alternates between drawing theta from its Dirichlet
        distribution, given the number of tokens in each topic, and drawing the topics of each word's tokens from their
        multinomial distribution, given theta.
        """
        rng = np.random.default_rng([int(self._key), id & (2**64 - 1)])
        counts = np.floor(word_counts * min(1.0, MAX_COUNT / word_counts.sum())).astype(np.int64)
        theta, mean = self._alpha, np.zeros(len(self._alpha))
        rows = max(1, MAX_WEIGHTS // len(theta))
        for sweep in range(LONG_BURN_IN + AVERAGED):
            tokens = np.zeros(len(theta))
            for begin in range(0, len(words), rows):
                part = slice(begin, begin + rows)
                probabilities = theta * ((self._counts[words[part]] + self._beta) * self._scale)
                probabilities /= probabilities.sum(axis=1, keepdims=True)
                tokens += rng.multinomial(counts[part], probabilities).sum(axis=0)
            theta = rng.standard_gamma(tokens + self._alpha)
            theta /= theta.sum()
            if sweep >= LONG_BURN_IN:
                mean += tokens / AVERAGED
        return (mean + self._alpha) / (mean.sum() + self._alpha.sum())

    def scores(self, x: sp.csr_array, theta: Float64s) -> Float64s:
        """Return log p(w | theta, phi) of documents, summed over tokens, shape (n,); theta has shape (n, topics)."""
        out = np.empty(x.shape[0])
        cost = len(self._alpha) * (x.nnz // max(len(out), 1) + 1)
        arguments = (_for_kernels(x), self._topics, readable(theta))
        over_blocks(inference_kernels.score, (np.arange(len(out)), out), *arguments, cost=cost)
        return out

    @property
    def _topics(self) -> inference_kernels.Topics:
        return self._counts, self._beta, self._alpha, self._scale


class Variational:
    """Variational Bayes, as in pyspark.ml's LocalLDAModel: Hoffman et al. (2010), Algorithm 2 and equation 3."""

    def __init__(self, counts: Array, alpha: Float64s, beta: float) -> None:
        """``counts`` are lambda minus beta, shape (vocabulary, topics)."""
        self._counts, self._alpha, self._beta = readable(counts), readable(alpha), beta
        self._totals = readable(counts.sum(axis=0, dtype=np.float64) + beta * len(counts))

    def proportions(self, x: sp.csr_array) -> Float64s:
        """Return the documents' topic proportions, shape (n, topics); an empty document has those of the prior."""
        gammas, _ = self._infer(x)
        return gammas / gammas.sum(axis=1, keepdims=True)

    def bound(self, x: sp.csr_array) -> float:
        """Return the documents' terms of the lower bound of the log-likelihood: Hoffman et al., equation 16."""
        return self._infer(x)[1]

    def _infer(self, x: sp.csr_array) -> tuple[Float64s, float]:
        """Return the documents' gammas, and their terms of the bound."""
        topics = len(self._alpha)
        gammas, bound = np.tile(self._alpha, (x.shape[0], 1)), 0.0
        no_seeds = readable(np.empty(0, np.uint64))
        with_words = np.flatnonzero(np.diff(x.indptr))
        for rows, words, batch in self._batches(x[with_words], with_words):
            weights = self._all_weights if words is None else self._weights(words)
            batch_gammas, stats, log_theta = np.empty((len(rows), topics)), np.zeros(weights.shape), np.zeros(topics)
            matrix = _for_kernels(batch)
            bound += online_kernels.infer(*matrix, weights, self._alpha, no_seeds, batch_gammas, stats, log_theta, 0.0)
            gammas[rows] = batch_gammas
        return gammas, bound

    def _batches(self, x: sp.csr_array, rows: Array) -> Iterator[tuple[Array, Array | None, sp.csr_array]]:
        """Yield batches of documents: their ``rows``, their words (None: all words), and a matrix of these words.

        The words of a batch have at most ``MAX_WEIGHTS`` weights, unless the batch has a single document.
        """
        max_words = max(1, MAX_WEIGHTS // len(self._alpha))
        if len(self._counts) <= max_words:
            yield rows, None, x
            return
        # The documents of a batch have at most as many distinct words as entries.
        batches = (x.indptr[1:] - 1) // max_words
        ends = np.append(np.flatnonzero(np.diff(batches)) + 1, x.shape[0])
        begin = 0
        for end in ends.tolist():
            part = x[begin:end]
            words, inverse = np.unique(part.indices, return_inverse=True)
            batch = sp.csr_array((part.data, inverse.astype(np.int32), part.indptr), shape=(end - begin, len(words)))
            yield rows[begin:end], words, batch
            begin = end

    def _weights(self, words: Array) -> Float64s:
        """Return exp(E[log beta]) of words, shape (words, topics)."""
        weights = np.empty((len(words), len(self._alpha)))
        online_kernels.weigh(readable(self._counts[words]), self._beta, self._totals, weights)
        return readable(weights)

    @cached_property
    def _all_weights(self) -> Float64s:
        return self._weights(np.arange(len(self._counts)))

    @cached_property
    def bound_of_topics(self) -> float:
        """The topics' term of the bound, E[log p(beta | eta) - log q(beta | lambda)]; counts of 0 add nothing."""
        words, topics = self._counts.shape
        log_gamma_beta, log_totals = gammaln(self._beta), psi(self._totals)
        total = topics * gammaln(words * self._beta) - gammaln(self._totals).sum()
        rows = max(1, MAX_LOGARITHMS // topics)
        for begin in range(0, words, rows):
            counts = self._counts[begin : begin + rows]
            cells = np.nonzero(counts)
            n = counts[cells].astype(np.float64)
            logs = psi(n + self._beta) - log_totals[cells[1]]
            total += (gammaln(n + self._beta) - log_gamma_beta - n * logs).sum()
        return float(total)


def _for_kernels(x: sp.csr_array) -> tuple[Array, Array, Array]:
    """Return the arrays of a CSR matrix in the dtypes of the kernels."""
    return readable(x.indptr.astype(np.int64)), readable(x.indices.astype(np.int32)), readable(x.data)


def _document_ids(matrix: tuple[Array, Array, Array]) -> Int64s:
    """Return an id for each document that depends only on its words and counts."""
    indptr, words, counts = matrix
    ids = np.empty(len(indptr) - 1, np.uint64)
    online_kernels.identify(indptr, readable(words.astype(np.int64)), readable(counts.view(np.uint64)), ids)
    return readable(ids.view(np.int64))
