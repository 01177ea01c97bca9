"""Compile the kernels of topics before their first use (``python -m ps2.algorithms.topics.warm``)."""

from __future__ import annotations

from itertools import product

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.topics import online_kernels, ops
from ps2.algorithms.topics.assignments import Assignments
from ps2.algorithms.topics.corpus import SHORT, Corpus, Prior, iteration_key
from ps2.algorithms.topics.model import LDATopics
from ps2.algorithms.topics.online import document_ids, infer_statistics
from ps2.algorithms.topics.variational import ops as variational_ops
from ps2.algorithms.training.table import deal_by_cost
from ps2.data.rows import LocalRows
from ps2.matrix.partition import Partition

# The numbers of topics, and of a document's tokens, to compile for: one fits 16 bits, one does not.
SIZES = (2, SHORT + 1)


def warm() -> None:
    """Call the kernels on one document, with the argument types that workers, servers and models use."""
    x = sp.csr_array(np.array([[2.0]]))
    for tokens, topics in product(SIZES, SIZES):
        _sample(tokens, topics)
    ops.look(np.zeros((1, 1), np.int32), np.ones(1))
    deal_by_cost(np.ones(1, np.int64), 1)
    _step()
    for dtype in (np.int32, np.float64):
        model = LDATopics(np.ones((1, 2), dtype), np.ones(2), 0.1)
        model.perplexity(x)
        model.logLikelihood(x)


def _sample(tokens: int, topics: int) -> None:
    """Call the samplers' kernels with a document of ``tokens`` tokens, but for no words: types suffice to compile."""
    zeros = np.zeros(1, np.int64)
    key, prior = iteration_key(0, 0), Prior(np.ones(topics), 1.0, 1)
    Assignments.random(Corpus.from_counts(sp.csr_array(np.ones((1, 1))), zeros, zeros), topics, key)
    corpus = Corpus.from_counts(sp.csr_array(np.array([[tokens]])), zeros, zeros)
    for sampler in ("dense", "sparse"):
        assignments = Assignments.of(corpus, topics, np.zeros(tokens, np.int32), sampler)
        assignments.sample(0, 0, np.zeros((0, topics), np.int32), np.zeros(topics, np.int64), prior, key)
        assignments.changes_since(0, 1, assignments.topics[:].copy())
        assignments.likelihood(prior)
        assignments.counts_of_counts()


def _step() -> None:
    for dtype in (np.float32, np.float64):
        counts = np.zeros((1, 1), dtype)
        variational_ops.begin(counts, Partition(0, 0, 1), seed=0, beta=1.0)
        variational_ops.step(counts, np.zeros((1, 1), dtype), keep=1.0, scale=1.0)
        document = LocalRows(np.zeros(1, np.int64), sp.csr_array(np.ones((1, 1))))
        infer_statistics(document, counts, 1.0, np.ones(1), np.ones(1), np.uint64(0))
    online_kernels.draw(document_ids(document), np.uint64(0), 1.0)


if __name__ == "__main__":
    warm()
