"""Walks of two communities, dealt out to workers, and what is learned of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from ps2.algorithms.embeddings.plan import EmbeddingPlan, FittedEmbeddings
from ps2.algorithms.embeddings.program import Corpus, OnlyWorker, train
from ps2.algorithms.embeddings.sentences import InMemorySentences
from ps2.algorithms.embeddings.settings import LINESettings, Word2VecSettings
from tests.in_process import training_context

EACH, LENGTH, COUNT = 12, 20, 200
WORDS = 2 * EACH


def make_plan(
    vocabulary: int, total: int, *, order: int = 2, name: str = "", architecture: str = "skipgram", **params: Any
) -> EmbeddingPlan:
    """Return a plan of Word2Vec, or of LINE if the architecture is "edges"."""
    if architecture == "edges":
        params = {"maxIter": 1} | {name: value for name, value in params.items() if name != "windowSize"}
        settings: Any = LINESettings(order="first" if order == 1 else "second", **params)
    else:
        settings = Word2VecSettings(architecture=architecture, **params)
    return EmbeddingPlan(settings=settings, name=name, vocabulary=vocabulary, total=total, order=order)


RECIPE: dict[str, Any] = {"vocabulary": WORDS, "total": COUNT * LENGTH, "vectorSize": 16, "windowSize": 3}
RECIPE |= {"stepSize": 0.1, "maxIter": 3, "seed": 5, "via": "local"}
PLAN = make_plan(**RECIPE)


def sentences(seed: int = 0) -> Any:
    """int32, shape (COUNT, LENGTH): of words of one half, and now and then one of the other."""
    rng = np.random.default_rng(seed)
    half = rng.integers(0, 2, (COUNT, 1)) ^ (rng.random((COUNT, LENGTH)) < 0.03)
    return (half * EACH + rng.integers(0, EACH, (COUNT, LENGTH))).astype(np.int32)


def frequencies() -> Any:
    return np.bincount(sentences().reshape(-1), minlength=WORDS)


def read(worker: Any, rows: Any) -> InMemorySentences:
    tokens = np.concatenate([np.empty(0, np.int32), *rows])
    return InMemorySentences(tokens, np.arange(0, len(tokens) + 1, LENGTH))


def read_pairs(worker: Any, rows: Any) -> InMemorySentences:
    kept = read(worker, rows)
    return InMemorySentences(kept.words, np.arange(0, len(kept.words) + 1, 2))


def trained(
    ps: Any, plan: EmbeddingPlan = PLAN, workers: int = 2, on_step: Any = lambda step: None, read: Any = read
) -> FittedEmbeddings:
    """Train on the walks."""
    rdd = ps.sparkContext.parallelize(dealt(workers), workers)
    return train(ps, Corpus(rdd, workers, read, frequencies=frequencies()), plan, on_step)


def fitted(plan: EmbeddingPlan = PLAN, on_step: Any = lambda step: None, read: Any = read) -> FittedEmbeddings:
    """Train on the walks in this process, with two workers."""
    shards = [[walks] for walks in dealt(2)]
    corpus = Corpus(shards, 2, read, frequencies=frequencies())
    with training_context() as ps:
        return train(ps, corpus, plan, on_step, OnlyWorker(1, "Spark says how many cores a worker has"))


def dealt(workers: int) -> list[Any]:
    """The words of each worker; one has more of them than the others."""
    bounds = [0, *(COUNT // 2 + COUNT * rank // (2 * workers) for rank in range(1, workers)), COUNT]
    return [sentences()[begin:end].reshape(-1) for begin, end in pairwise(bounds)]


def margin(fitted: FittedEmbeddings) -> float:
    """Mean cosine of words of one half, less that of words of both."""
    units = fitted.vectors / np.linalg.norm(fitted.vectors, axis=1, keepdims=True)
    cosines, half = units @ units.T, np.arange(WORDS) < EACH
    same = (half[:, None] == half) & ~np.eye(WORDS, dtype=bool)
    return float(cosines[same].mean() - cosines[half[:, None] != half].mean())
