"""Compile kernels of topics (``python -m ps2.algorithms.topics.warm``); else they are at first use."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.topics import online_kernels, online_ops
from ps2.algorithms.topics.corpus import SHORT, Assignments, Corpus, Prior, key_of
from ps2.algorithms.topics.model import LDATopics
from ps2.algorithms.topics.online import ids_of, told_of
from ps2.data.rows import LocalRows
from ps2.matrix.partition import Partition

# Numbers of topics that fit into 16 bits, and that do not.
TOPICS = (2, SHORT + 1)


def warm() -> None:
    """Call the kernels on one document, in the forms in which workers, servers and models hold them."""
    x = sp.csr_array(np.array([[2.0]]))
    for topics in TOPICS:
        _sample(Corpus.of(x, np.zeros(1, np.int64), np.zeros(1, np.int64)), topics)
    _step()
    for dtype in (np.int32, np.float64):
        model = LDATopics(np.ones((1, 2), dtype), np.ones(2), 0.1)
        model.perplexity(x)
        model.logLikelihood(x)


def _sample(corpus: Corpus, topics: int) -> None:
    prior, key = Prior(np.ones(topics), 0.1, 1), key_of(0, 0)
    given = Assignments.random(corpus, topics, key)
    before = given.topics.copy()
    counts = np.full((1, topics), 2, np.int32)
    given.sample(0, 1, counts, counts[0].astype(np.int64), prior, key)
    given.changed(0, 1, before)
    given.listed(0, 1)
    given.likelihood(prior)


def _step() -> None:
    for dtype in (np.float32, np.float64):
        counts = np.zeros((1, 1), dtype)
        online_ops.begin(counts, Partition(0, 0, 1), seed=0, beta=1.0)
        online_ops.step(counts, np.zeros((1, 1), dtype), keep=1.0, scale=1.0)
        document = LocalRows(np.zeros(1, np.int64), sp.csr_array(np.ones((1, 1))))
        told_of(document, counts, 1.0, np.ones(1), np.ones(1))
    online_kernels.draw(ids_of(document), np.uint64(0), 1.0)


if __name__ == "__main__":
    warm()
