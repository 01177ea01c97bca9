"""What is compiled ahead is all that training of vectors takes."""

from __future__ import annotations

from itertools import product

import numpy as np
from compiled_kernels import compiled
from embedding_training import make_plan

from ps2.algorithms.embeddings import sampling_kernels, training_kernels, warm
from ps2.algorithms.embeddings.sampling import Sampler
from ps2.algorithms.embeddings.worker import RowNumbering

MODULES = (sampling_kernels, training_kernels)


def test_training_when_warm_then_compiles_nothing():
    warm.warm()
    before = compiled(MODULES)
    tokens, offsets = np.arange(20, dtype=np.int32) % 9, np.arange(0, 21, 4)
    for architecture, sample, threads in product(("skipgram", "cbow", "edges"), (0.0, 0.1), (1, 2)):
        params = {} if architecture == "edges" else {"sample": sample}
        plan = make_plan(9, 20, vectorSize=10, architecture=architecture, **params)
        draws = Sampler.from_frequencies(plan, np.bincount(tokens, minlength=9)).sample(
            (tokens, offsets), np.uint64(2**63 + 1)
        )
        vectors, contexts = np.zeros((2, 9, 10), np.float32)
        draws.train(vectors, contexts, 0.1, threads)
        for piece in draws.minibatches(7):
            numbered, words = RowNumbering(plan).renumber(piece)
            numbered.train(vectors[words[0]], contexts[words[1]], 0.1)
    assert compiled(MODULES) == before
