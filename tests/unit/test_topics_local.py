"""Sampling where one process has all tokens and counts: the topics of workers with servers, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from topics_training import PLAN, TOPICS, WORDS, documents, replayed

from ps2.algorithms.topics.assignments import Assignments
from ps2.algorithms.topics.corpus import Corpus, Prior, document_numbers, iteration_key
from ps2.algorithms.topics.local_sampling import LocalSampling, document_bounds
from ps2.data.rows import LocalRows
from ps2.errors import ConfigError
from tests.plans import changed

PRIOR = Prior(PLAN.alphas, PLAN.beta, WORDS)
SYNCS = ["ssp", "rotation", "average"]


def rows_of(counts):
    used = np.flatnonzero(counts.sum(axis=0))
    return LocalRows(used, sp.csr_array(counts[:, used]))


def sampled(plan, counts, threads, bounds=None):
    sampling = LocalSampling(plan, rows_of(counts), threads, bounds)
    for iteration in range(1, plan.settings.maxIter + 1):
        sampling.sample(iteration, PRIOR)
    sampling.close()
    return sampling


def by_word(sampling):
    result = np.zeros((WORDS, TOPICS), np.int32)
    result[sampling.words] = sampling.counts
    return result


def of_topics(sampling):
    """Count words by the topics of tokens."""
    result, whole = np.zeros((WORDS, TOPICS), np.int32), sampling.corpus()
    np.add.at(result, (np.repeat(whole.words, np.diff(whole.begins)), sampling.topics), 1)
    return result


def test_rotation_when_threads_take_turns_then_equals_workers():
    counts, plan = documents(), changed(PLAN, sync="rotation")
    # As ``replayed`` deals them out: every second document.
    dealt_rows = sp.csr_array(sp.vstack([counts[0::2], counts[1::2]]))
    result = sampled(plan, dealt_rows, 2, [0, 20, 40])
    np.testing.assert_array_equal(by_word(result), replayed(counts, plan, 2))


@pytest.mark.parametrize("sync", SYNCS)
def test_one_thread_when_counts_are_shared_then_equals_worker(sync):
    counts, plan = documents(), changed(PLAN, sync=sync)
    if sync == "rotation":
        expected = replayed(counts, plan, 1)
    else:
        rows = rows_of(counts)
        corpus = Corpus.from_counts(rows.x, rows.keys, document_numbers(0, len(rows)))
        tokens = Assignments.random(corpus, TOPICS, iteration_key(plan.seed, 0))
        expected = np.zeros((WORDS, TOPICS), np.int32)
        words = np.repeat(corpus.words, np.diff(corpus.begins))
        np.add.at(expected, (words, tokens.topics), 1)
        totals = expected.sum(axis=0).astype(np.int64)
        for iteration in range(1, plan.settings.maxIter + 1):
            for begin, end in corpus.slices(plan.width):
                of_words = expected[corpus.words[begin:end]]
                tokens.sample(begin, end, of_words, totals, PRIOR, iteration_key(plan.seed, iteration))
                expected[corpus.words[begin:end]] = of_words
    np.testing.assert_array_equal(by_word(sampled(plan, counts, 1)), expected)


@pytest.mark.parametrize("sync", SYNCS)
def test_threads_when_they_sample_then_counts_match_topics(sync):
    result = sampled(changed(PLAN, sync=sync), documents(), 3)
    assert len(result._parts) == 3
    np.testing.assert_array_equal(by_word(result), of_topics(result))
    np.testing.assert_array_equal(by_word(result).sum(axis=1), documents().sum(axis=0))


def test_topics_when_given_to_other_threads_then_counts_match():
    two = sampled(PLAN, documents(), 2)
    three = LocalSampling(PLAN, rows_of(documents()), 3)
    three.restore(two.topics)
    np.testing.assert_array_equal(three.topics, two.topics)
    np.testing.assert_array_equal(by_word(three), by_word(two))
    three.sample(1, PRIOR)
    np.testing.assert_array_equal(by_word(three), of_topics(three))
    three.close()


@pytest.mark.parametrize(
    ("lengths", "threads", "bounds"),
    [
        ([5, 5, 5, 5], 2, [0, 2, 4]),
        ([9, 1, 1, 1], 2, [0, 1, 4]),
        ([1, 1, 9], 3, [0, 1, 2, 3]),
        ([0, 0, 0], 2, [0, 1, 3]),
        ([3], 4, [0, 1]),
    ],
)
def test_documents_when_divided_then_each_thread_has_some(lengths, threads, bounds):
    assert document_bounds(np.array(lengths), threads) == bounds


def test_local_when_turns_end_by_time_then_error():
    with pytest.raises(ConfigError, match="budgetS: turns of one worker that has all counts do not end by time"):
        changed(PLAN, is_local=True, sync="rotation", budgetS=0.1)
