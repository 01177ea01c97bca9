"""What is compiled ahead is all that sampling takes, and topics of new documents."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from compiled_kernels import compiled

from ps2.algorithms.topics import (
    dense_kernels,
    inference_kernels,
    online_kernels,
    ops,
    sampling_kernels,
    sparse_kernels,
    warm,
)
from ps2.algorithms.topics.assignments import Assignments
from ps2.algorithms.topics.corpus import Corpus, Prior, iteration_key
from ps2.algorithms.topics.model import LDATopics
from ps2.algorithms.training import table

MODULES = (table, ops, dense_kernels, inference_kernels, online_kernels, sampling_kernels, sparse_kernels)


def test_training_and_inference_when_warm_then_compile_nothing():
    warm.warm()
    before = compiled(MODULES)
    x = sp.csr_array(np.random.default_rng(0).poisson(1.0, (30, 9)))
    corpus, prior = Corpus.from_counts(x, np.arange(9), np.arange(30)), Prior(np.ones(40), 0.1, 9)
    inputs = Assignments.random(corpus, 40, iteration_key(1, 0))
    counts = np.zeros((len(corpus.words), 40), np.int32)
    np.add.at(counts, (np.repeat(np.arange(len(counts)), np.diff(corpus.begins)), inputs.topics), 1)
    inputs.sample(2, 4, counts[2:4], counts.sum(axis=0), prior, iteration_key(1, 1))
    for dtype in (np.int32, np.float64):
        for how in ("sampled", "variational"):
            model = LDATopics(counts.astype(dtype), prior.alpha, 0.1, how)
            model.perplexity(x.astype(np.float32))
            model.logLikelihood(x.toarray())
    assert compiled(MODULES) == before


@pytest.mark.parametrize("sampler", ["dense", "sparse"])
@pytest.mark.parametrize("topics", [3, 70_000])
def test_sampling_when_warm_then_compiles_nothing(topics, sampler):
    warm.warm()
    before = compiled(MODULES)
    counts = sp.csr_array(np.random.default_rng(0).integers(0, 3, (5, 4)).astype(float))
    corpus = Corpus.from_counts(counts, np.arange(4), np.arange(5), np.array([2, 3, 0, 1]))
    assignments = Assignments.random(corpus, topics, iteration_key(1, 0), sampler)
    held, totals = np.zeros((4, topics), np.int32), np.bincount(assignments.topics, minlength=topics)
    for begin, end in corpus.slices(2):
        listed = assignments.changes_since(begin, end)
        np.add.at(held, (np.repeat(listed.words, listed.sizes), listed.topics), listed.deltas)
        old = assignments.topics[corpus.begins[begin] : corpus.begins[end]].copy()
        of_words = held[corpus.words[begin:end]]
        assignments.sample(begin, end, of_words, totals, Prior(np.full(topics, 0.1), 0.1, 4), iteration_key(1, 1))
        assignments.changes_since(begin, end, old)
    ops.look(held, np.array([0.1]))
    assignments.counts_of_counts()
    table.deal_by_cost(np.arange(9), 3)
    assert compiled(MODULES) == before
