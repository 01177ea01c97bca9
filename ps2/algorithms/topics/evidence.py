"""The E-step of online variational Bayes: the statistics of a batch of documents, its task, and a worker's report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import polygamma, psi

from ps2.algorithms.frame.program import Task
from ps2.algorithms.topics import online_kernels as kernels
from ps2.data.rows import LocalRows
from ps2.ops.guards import readable
from ps2.ops.kernels import Float64s

UInt64s = npt.NDArray[np.uint64]


def alpha_after(alpha: Float64s, log_shares: Float64s, documents: float, weight: float) -> Float64s:
    """Return alpha after a step of Newton's method (Hoffman et al., section 3.3; exactly as in pyspark.ml).

    Args:
        log_shares: E[log theta], summed over the documents.
        documents: number of documents.
        weight: rho, the weight of the step. A step that makes alpha non-positive is not taken.
    """
    gradient = documents * (psi(alpha.sum()) - psi(alpha)) + log_shares
    diagonal, rest = -documents * polygamma(1, alpha), documents * polygamma(1, alpha.sum())
    shared = (gradient / diagonal).sum() / (1 / rest + (1 / diagonal).sum())
    moved = alpha - weight * (gradient - shared) / diagonal
    return np.asarray(moved if (moved > 0).all() else alpha)


@dataclass(frozen=True, eq=False)
class InferBatch(Task):
    """Infer the topics of an iteration's documents: add their statistics to the servers', and report on them.

    Attributes:
        iteration: number of the iteration, from 0.
        documents: number of all workers' documents with words; 0: workers need not know it.
        alpha: float64, shape (topics,).
        totals: float64, shape (topics,): lambda's sums over all words.
    """

    iteration: int
    documents: int
    alpha: Float64s
    totals: Float64s


@dataclass
class BatchReport:
    """A worker's report on its documents of a batch.

    Attributes:
        log_shares: shape (topics,): E[log theta], summed over the documents.
        documents: number of the worker's documents, inside and outside of the batch.
        drawn: number of documents in the batch.
        tokens: number of tokens in the batch.
        bound: the bound of the batch's log-likelihood.
        bytes: bytes moved between worker and servers.
    """

    log_shares: Float64s
    documents: int
    drawn: int = 0
    tokens: float = 0.0
    bound: float = 0.0
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class DocumentStatistics:
    """Statistics of documents.

    Attributes:
        stats: shape (words, topics): expected tokens of their words in topics.
        log_shares: shape (topics,): E[log theta], summed over the documents.
        bound: the bound of their log-likelihood.
    """

    stats: Float64s
    log_shares: Float64s
    bound: float


def infer_statistics(
    part: LocalRows, counts: kernels.Array, beta: float, alpha: Float64s, totals: Float64s, key: np.uint64
) -> DocumentStatistics:
    """Infer the topics of documents (the E-step).

    Each document begins with random topics. If all began with equal topics, most would converge to the same ones, and
    those topics would become a mixture of everything.

    Args:
        counts: shape (words, topics): lambda minus beta at the documents' words.
        totals: shape (topics,): lambda's sums over all words.
        key: the key of seed and iteration.
    """
    weights, stats, log_shares = np.empty(counts.shape), np.zeros(counts.shape), np.zeros(len(alpha))
    kernels.weigh(readable(counts), beta, readable(totals), weights)
    entries = readable(part.x.indptr), readable(part.x.indices), readable(part.x.data)
    seeds, no_gammas = readable(document_ids(part) + key), np.empty((0, len(alpha)))
    bound = kernels.infer(*entries, readable(weights), readable(alpha), seeds, no_gammas, stats, log_shares)
    stats *= weights
    return DocumentStatistics(stats, log_shares, bound)


def document_ids(rows: LocalRows) -> UInt64s:
    """Return an id for each document that depends on its words and counts only."""
    ids = np.empty(len(rows), np.uint64)
    tokens = rows.x.data.astype(np.float64).view(np.uint64)
    kernels.identify(readable(rows.x.indptr), readable(rows.keys[rows.x.indices]), readable(tokens), ids)
    return readable(ids)
