"""What is compiled ahead is all that topics of new documents take."""

from __future__ import annotations

import inspect

import numpy as np
import scipy.sparse as sp

from ps2.algorithms.topics import inference_kernels, online_kernels, sampling_kernels, warm
from ps2.algorithms.topics.corpus import Assignments, Corpus, Prior, key_of
from ps2.algorithms.topics.model import LDATopics

MODULES = (inference_kernels, online_kernels, sampling_kernels)


def compiled():
    return {
        f"{module.__name__}.{name}": len(member.signatures)
        for module in MODULES
        for name, member in inspect.getmembers(module)
        if hasattr(member, "signatures")
    }


def test_training_and_inference_when_warm_then_compile_nothing():
    warm.warm()
    before = compiled()
    x = sp.csr_array(np.random.default_rng(0).poisson(1.0, (30, 9)))
    corpus, prior = Corpus.of(x, np.arange(9), np.arange(30)), Prior(np.ones(40), 0.1, 9)
    given = Assignments.random(corpus, 40, key_of(1, 0))
    counts = np.zeros((len(corpus.words), 40), np.int32)
    np.add.at(counts, (np.repeat(np.arange(len(counts)), np.diff(corpus.begins)), given.topics), 1)
    given.sample(2, 4, counts[2:4], counts.sum(axis=0), prior, key_of(1, 1))
    for dtype in (np.int32, np.float64):
        for how in ("sampled", "variational"):
            model = LDATopics(counts.astype(dtype), prior.alpha, 0.1, how)
            model.perplexity(x.astype(np.float32))
            model.logLikelihood(x.toarray())
    assert compiled() == before
