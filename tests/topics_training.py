"""A small corpus to find topics in, dealt out to workers, and what is known of what was found."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
from pyspark.ml.linalg import Vectors
from scipy.special import gammaln
from training import schema_of

from ps2.algorithms.topics.assignments import Assignments
from ps2.algorithms.topics.corpus import Corpus, Prior, corpus_hash, document_numbers, iteration_key
from ps2.algorithms.topics.plan import SamplingPlan
from ps2.algorithms.topics.settings import LDASettings
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.table import Table, deal_by_cost
from ps2.run.rotation import schedule
from tests.in_process import ArrayTable

WORDS, DOCUMENTS, TOPICS = 60, 40, 5
SETTINGS = LDASettings(
    k=TOPICS, maxIter=6, docConcentration=[0.1], topicConcentration=0.05, seed=3, checkpointInterval=2
)
PLAN = SamplingPlan(settings=SETTINGS, vocabulary=WORDS, slice_words=16, check=True)


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
    frame = spark.createDataFrame(parts.flatMap(list), schema_of({"features": rows[0][0]}), verifySchema=False)
    return Table(frame, ColumnNames(label=None), workers)


def arrays(counts: sp.csr_array, workers: int) -> Table:
    """The same in this process."""
    return ArrayTable.of(counts, workers=workers, columns=ColumnNames(label=None))


def _rows(counts: sp.csr_array) -> Any:
    return (slice(*bounds) for bounds in pairwise(counts.indptr.tolist()))


def words_likelihood(counts: Any, beta: float) -> float:
    """log p(w | z): Griffiths and Steyvers (2004), equation 2."""
    vocabulary, totals = len(counts), counts.sum(axis=0)
    of_topics = gammaln(vocabulary * beta) - gammaln(totals + vocabulary * beta)
    return float(of_topics.sum() + (gammaln(counts + beta) - gammaln(beta)).sum())


def replayed(counts: sp.csr_array, plan: SamplingPlan, workers: int) -> Any:
    """Rotate in one process, turn by turn and rank by rank, with arrays for servers; return the counts of words."""
    ring = plan.ring(workers)
    blocks = deal_by_cost(np.asarray(counts.sum(axis=0)).astype(np.int64), ring.blocks)
    result, totals, before = np.zeros((WORDS, plan.topics), np.int32), [], []
    for corpus in corpora(counts, workers, blocks):
        tokens = Assignments.random(corpus, plan.topics, iteration_key(plan.seed, 0))
        _add(result, tokens.changes_since(0, len(corpus.words)))
        before.append(tokens)
        totals.append([np.bincount(tokens.topics, minlength=plan.topics)] * 2)
    prior = Prior(plan.alphas, plan.beta, WORDS)
    for rotation in range(plan.settings.maxIter):
        for turn in schedule(plan.seed, rotation, workers, ring.blocks, ring.slices):
            now = [list(of_worker) for of_worker in totals]
            for rank, block in enumerate(turn):
                tokens, corpus = before[rank], before[rank].corpus
                positions = np.flatnonzero(blocks[corpus.words] == block)
                begin, end = int(positions[0]), int(positions[-1]) + 1
                # What all others had two turns ago, and what it has itself.
                known = sum(now[other][0] for other in range(workers) if other != rank) + now[rank][1]
                old = tokens.topics[corpus.begins[begin] : corpus.begins[end]].copy()
                of_words = result[corpus.words[begin:end]]
                tokens.sample(begin, end, of_words, known, prior, iteration_key(plan.seed, rotation + 1))
                _add(result, tokens.changes_since(begin, end, old))
                totals[rank] = [now[rank][1], np.bincount(tokens.topics, minlength=plan.topics)]
    return result


def corpora(counts: sp.csr_array, workers: int, blocks: Any = None) -> Iterator[Corpus]:
    """Yield what each worker has, word by word, or block by block."""
    for rank in range(workers):
        part = counts[rank::workers].toarray()
        used = np.flatnonzero(part.sum(axis=0))
        order = None if blocks is None else np.argsort(blocks[used], kind="stable")
        yield Corpus.from_counts(sp.csr_array(part[:, used]), used, document_numbers(rank, len(part)), order)


def saved_counts(fleet: Any, plan: SamplingPlan, workers: int) -> Any:
    """Return the counts of words by the topics that workers saved last."""
    counts, result, blocks = documents(), np.zeros((WORDS, plan.topics), np.int32), None
    if fleet.frequencies is not None:
        blocks = deal_by_cost(fleet.frequencies.pull(), plan.ring(workers).blocks)
    for rank, corpus in enumerate(corpora(counts, workers, blocks)):
        topics = fleet.saved.load(rank, corpus_hash(corpus), corpus.size)
        np.add.at(result, (np.repeat(corpus.words, np.diff(corpus.begins)), topics), 1)
    return result


def _add(found: Any, changes: Any) -> None:
    np.add.at(found, (np.repeat(changes.words, changes.sizes), changes.topics), changes.deltas)
