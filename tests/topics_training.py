"""A small corpus to find topics in, dealt out to workers, and what is known of what was found."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from pyspark.ml.linalg import Vectors
from scipy.special import gammaln

from ps2.algorithms.topics.problem import Fitted, Recipe
from ps2.algorithms.topics.trainer import train
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Table

WORDS, DOCUMENTS, TOPICS = 60, 40, 5
RECIPE = Recipe(TOPICS, WORDS, iterations=6, alpha=(0.1,), beta=0.05, slice_words=16, seed=3)


def documents(seed: int = 0) -> sp.csr_array:
    """Counts of words: each document has some of TOPICS groups of words; a word is in none, and a document is empty."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(WORDS, 0.1), TOPICS)
    mixed = rng.dirichlet(np.full(TOPICS, 0.3), DOCUMENTS)
    counts = np.stack([rng.multinomial(rng.integers(20, 60), share @ topics) for share in mixed])
    counts[:, 7], counts[11] = 0, 0
    return sp.csr_array(counts)


def dealt(spark: Any, counts: sp.csr_array, workers: int) -> Table:
    """Documents dealt out to workers by turns."""
    rows = [(Vectors.sparse(WORDS, counts.indices[some], counts.data[some]),) for some in _rows(counts)]
    parts = spark.sparkContext.parallelize([rows[w::workers] for w in range(workers)], workers)
    return Table(spark.createDataFrame(parts.flatMap(list), ["features"]), ColumnNames(label=None), workers)


def _rows(counts: sp.csr_array) -> Any:
    return (slice(*bounds) for bounds in pairwise(counts.indptr.tolist()))


def trained(ps: Any, spark: Any, recipe: Recipe = RECIPE, workers: int = 2, on_step: Any = lambda step: None) -> Fitted:
    """Train on the corpus."""
    counts = documents()
    return train(ps, dealt(spark, counts, workers), recipe, int(counts.sum()), on_step)


def words_likelihood(counts: Any, beta: float) -> float:
    """log p(w | z): Griffiths and Steyvers (2004), equation 2."""
    vocabulary, totals = len(counts), counts.sum(axis=0)
    of_topics = gammaln(vocabulary * beta) - gammaln(totals + vocabulary * beta)
    return float(of_topics.sum() + (gammaln(counts + beta) - gammaln(beta)).sum())
