"""The sampler of topics: what it counts, and that tokens get topics with the probabilities of Gibbs sampling."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import gammaln
from scipy.stats import chisquare

from ps2.algorithms.topics.assignments import Assignments, DenseAssignments, SparseAssignments
from ps2.algorithms.topics.corpus import Corpus, Prior, iteration_key, topic_dtype

WORDS, DOCUMENTS, TOPICS = 9, 12, 70


@pytest.fixture
def counts():
    """How often words come in documents; a word and a document without any token."""
    rng = np.random.default_rng(5)
    result = rng.integers(0, 4, (DOCUMENTS, WORDS))
    result[3] = result[:, 4] = 0
    return sp.csr_array(result)


@pytest.fixture
def corpus(counts):
    return Corpus.from_counts(counts, np.arange(WORDS) * 10, np.arange(DOCUMENTS) + 100)


@pytest.fixture
def prior():
    return Prior(np.linspace(0.05, 1.5, TOPICS), 0.1, 100)


def of_words(corpus, topics, count=TOPICS):
    result = np.zeros((len(corpus.words), count), np.int32)
    np.add.at(result, (np.repeat(np.arange(len(corpus.words)), np.diff(corpus.begins)), topics), 1)
    return result


def of_documents(corpus, topics, count=TOPICS):
    result = np.zeros((len(corpus.numbers), count), np.int64)
    np.add.at(result, (corpus.documents, topics), 1)
    return result


@pytest.fixture(params=["dense", "sparse"])
def sampler(request):
    return request.param


def tallied(assignments):
    """Return how often documents have topics, as the sampler knows it."""
    if isinstance(assignments, DenseAssignments):
        assert not assignments.document_counts[:, TOPICS:].any()
        return assignments.document_counts[:, :TOPICS]
    first, length, held, often = assignments.document_counts
    result = np.zeros((len(length), TOPICS), np.int64)
    for document, count in enumerate(length):
        some = slice(first[document], first[document] + count)
        result[document, held[some]] = often[some]
    return result


def test_corpus_when_documents_are_split_then_has_each_token(counts, corpus):
    assert corpus.words.tolist() == [0, 10, 20, 30, 50, 60, 70, 80]
    result = np.zeros((DOCUMENTS, WORDS), np.int64)
    np.add.at(result, (corpus.documents, np.repeat(corpus.words // 10, np.diff(corpus.begins))), 1)
    np.testing.assert_array_equal(result, counts.toarray())
    np.testing.assert_array_equal(corpus.lengths, counts.sum(axis=1))


def test_sampling_when_done_then_counts_match_topics(corpus, prior, sampler):
    inputs = Assignments.random(corpus, TOPICS, iteration_key(1, 0), sampler)
    counts, totals = of_words(corpus, inputs.topics), np.bincount(inputs.topics, minlength=TOPICS)
    for iteration in range(1, 4):
        before = inputs.topics.copy()
        for begin, end in corpus.slices(3):
            inputs.sample(begin, end, counts[begin:end], totals, prior, iteration_key(1, iteration))
        assert (before != inputs.topics).any()
        np.testing.assert_array_equal(counts, of_words(corpus, inputs.topics))
        np.testing.assert_array_equal(totals, counts.sum(axis=0))
        np.testing.assert_array_equal(tallied(inputs), of_documents(corpus, inputs.topics))


def test_sampling_when_repeated_then_topic_frequencies_are_exact(corpus, prior, sampler):
    rng = np.random.default_rng(0)
    few, draws = 5, 20_000
    prior = Prior(np.array([0.1, 0.4, 0.2, 2.0, 0.05]), prior.beta, prior.vocabulary)
    topics = rng.integers(0, few, corpus.size)
    word = int(np.argmax(np.diff(corpus.begins)))
    token = int(corpus.begins[word])  # the first one: all others have the topics that they are given
    counts, totals = of_words(corpus, topics, few), np.bincount(topics, minlength=few)
    rest = np.arange(corpus.size) != token
    document = corpus.documents[token]
    n_dk = np.bincount(topics[rest & (corpus.documents == document)], minlength=few)
    n_wk, n_k = counts[word] - (np.arange(few) == topics[token]), totals - (np.arange(few) == topics[token])
    expected = (n_dk + prior.alpha) * (n_wk + prior.beta) / (n_k + prior.beta * prior.vocabulary)
    result = np.zeros(few)
    for key in range(draws):
        inputs = Assignments.of(corpus, few, topics, sampler)
        inputs.sample(word, word + 1, counts[word : word + 1].copy(), totals.copy(), prior, np.uint64(key))
        result[inputs.topics[token]] += 1
    assert chisquare(result, expected / expected.sum() * draws).pvalue > 0.001


def test_random_topics_when_documents_move_then_are_the_same(counts, corpus):
    whole = Assignments.random(corpus, TOPICS, iteration_key(3, 0))
    parts = []
    for some in (np.arange(0, DOCUMENTS, 2), np.arange(1, DOCUMENTS, 2)):
        part = Corpus.from_counts(counts[some], np.arange(WORDS) * 10, some + 100)
        parts.append(of_words(part, Assignments.random(part, TOPICS, iteration_key(3, 0)).topics))
    np.testing.assert_array_equal(sum(parts), of_words(corpus, whole.topics))


def test_changes_when_topics_were_others_then_are_the_difference(corpus):
    rng = np.random.default_rng(1)
    before, after = (rng.integers(0, TOPICS, corpus.size).astype(np.uint16) for _ in range(2))
    after[::3] = before[::3]
    inputs = Assignments.of(corpus, TOPICS, after)
    begin, end = 2, 7
    changes = inputs.changes_since(begin, end, before[corpus.begins[begin] : corpus.begins[end]])
    result = np.zeros((end - begin, TOPICS), np.int32)
    np.add.at(result, (np.repeat(np.arange(end - begin), changes.sizes), changes.topics), changes.deltas)
    np.testing.assert_array_equal(result, (of_words(corpus, after) - of_words(corpus, before))[begin:end])
    assert (changes.deltas != 0).all()


def test_likelihood_when_from_tallies_then_equals_full_counts(corpus, prior, sampler):
    inputs = Assignments.random(corpus, TOPICS, iteration_key(7, 0), sampler)
    n_dk, alpha = of_documents(corpus, inputs.topics), prior.alpha
    expected = (gammaln(n_dk + alpha) - gammaln(alpha)).sum()
    expected += (gammaln(alpha.sum()) - gammaln(corpus.lengths + alpha.sum())).sum()
    assert inputs.likelihood(prior) == pytest.approx(expected)


def test_topics_when_they_are_many_then_are_held_in_32_bits():
    assert topic_dtype(65_536) == np.uint16
    assert topic_dtype(65_537) == np.int32


def test_counts_of_counts_when_some_are_large_then_cover_all(sampler):
    rng = np.random.default_rng(2)
    corpus = Corpus.from_counts(sp.csr_array(rng.integers(0, 90, (7, WORDS))), np.arange(WORDS), np.arange(7))
    inputs = Assignments.of(corpus, 3, rng.choice(3, corpus.size, p=[0.1, 0.3, 0.6]), sampler)
    n_dk = of_documents(corpus, inputs.topics, 3)
    result = {(k, n): times for k, n, times in zip(*inputs.counts_of_counts(), strict=True)}
    assert result == {(k, n): (n_dk[:, k] == n).sum() for k in range(3) for n in np.unique(n_dk[:, k]) if n}
    assert n_dk.max() > 64


@pytest.mark.parametrize(
    ("topics", "tokens", "kind"), [(8, 4, DenseAssignments), (8, 3, SparseAssignments), (300, 600, SparseAssignments)]
)
def test_sampler_when_chosen_then_rows_are_near_list_size(topics, tokens, kind):
    corpus = Corpus.from_counts(sp.csr_array(np.full((2, 1), tokens)), np.arange(1), np.arange(2))
    assert isinstance(Assignments.random(corpus, topics, iteration_key(0, 0)), kind)
