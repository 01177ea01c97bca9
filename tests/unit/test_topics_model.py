"""Trained topics without Spark: topics of new documents, files, and what is wrong with documents."""

from __future__ import annotations

import itertools
import json
import math
import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.special import gammaln, logsumexp, psi

from ps2.algorithms.topics import inference
from ps2.algorithms.topics.inference import halves
from ps2.algorithms.topics.model import LDATopics
from ps2.errors import CheckpointCorruptError, CheckpointMissingError, InputError, ShapeError, UsageError

WORDS, TOPICS = 12, 5
ALPHA = np.array([0.1, 0.4, 0.2, 1.0, 0.05])
BETA = 0.3


@pytest.fixture
def counts():
    """Some words have no tokens, as those that training has never seen."""
    result = np.random.default_rng(3).poisson(2.0, (WORDS, TOPICS)).astype(np.int32)
    result[[4, 11]] = 0
    return result


@pytest.fixture
def x():
    """Documents, the second of them empty."""
    result = np.random.default_rng(4).poisson(0.7, (20, WORDS))
    result[1] = 0
    return sp.csr_array(result)


@pytest.fixture
def sampled(counts):
    return LDATopics(counts, ALPHA, BETA)


@pytest.fixture
def variational(counts):
    return LDATopics(counts, ALPHA, BETA, "variational")


def posterior_mean(words, chances):
    """The mean of (n_dk + alpha_k) / (n_d + sum of alpha) over all topics that tokens may have."""
    total, mean = 0.0, np.zeros(TOPICS)
    for topics in itertools.product(range(TOPICS), repeat=len(words)):
        n = np.bincount(topics, minlength=TOPICS)
        weight = np.prod(chances[words, topics]) * np.exp((gammaln(n + ALPHA) - gammaln(ALPHA)).sum())
        total += weight
        mean += weight * (n + ALPHA) / (len(words) + ALPHA.sum())
    return mean / total


def test_sampled_when_swept_often_then_shares_are_posterior_mean(sampled, monkeypatch):
    monkeypatch.setattr(inference, "AVERAGED", 40_000)
    words = np.array([0, 0, 3, 7, 8])
    document = np.bincount(words, minlength=WORDS)[None]
    expected = posterior_mean(words, sampled.chances())
    np.testing.assert_allclose(sampled.transform(document)[0], expected, atol=0.01)


def test_sampled_when_document_moves_then_topics_are_the_same(sampled, x):
    shares = sampled.transform(x)
    np.testing.assert_array_equal(sampled.transform(x[::-1].toarray())[::-1], shares)
    np.testing.assert_array_equal(sampled.transform(x[7:8].astype(np.float32))[0], shares[7])
    assert (LDATopics(sampled.counts, ALPHA, BETA, seed=1).transform(x) != shares).any()


def test_sampled_when_document_is_long_then_topics_are_the_same(sampled, monkeypatch):
    """Its cost depends on its distinct words only; the topics are those of sampling token by token."""
    times = np.array([3, 0, 9, 5, 0, 7, 1, 0, 4, 0, 2, 6])
    monkeypatch.setattr(inference, "AVERAGED", 20_000)
    expected = sampled.transform([times])[0]
    monkeypatch.setattr(inference, "MAX_TOKENS", 0)
    np.testing.assert_allclose(sampled.transform([times])[0], expected, atol=0.02)


def test_sampled_when_counts_are_billions_then_has_likely_shares(sampled):
    """With so many tokens the prior says nothing; the rows beside it have the topics that they have alone."""
    times = np.array([3, 0, 9, 5, 0, 7, 1, 0, 4, 0, 2, 6])
    rows = np.stack([times, times * 3_000_000_000, times])
    short, long, again = sampled.transform(rows)
    np.testing.assert_array_equal([short, again], [sampled.transform([times])[0]] * 2)
    result = sampled.transform([times * 2**45])[0]
    np.testing.assert_allclose(result, long, atol=0.01)
    words = sampled.chances() @ np.stack([long, np.full(TOPICS, 1 / TOPICS)], axis=1)
    better, worse = times @ np.log(words)
    assert better > worse
    assert np.isfinite(sampled.logPerplexity(rows))


def test_transform_when_documents_are_lists_or_pandas_then_same(sampled, x):
    rows = x[:3].toarray()
    for inputs in (rows.tolist(), pd.DataFrame(rows)):
        np.testing.assert_array_equal(sampled.transform(inputs), sampled.transform(rows))


def test_likelihood_when_there_is_no_word_then_it_is_an_error(sampled):
    with pytest.raises(InputError, match="needs at least one document with words"):
        sampled.logPerplexity(np.zeros((2, WORDS)))


@pytest.mark.parametrize("how", ["sampled", "variational"])
def test_transform_when_documents_are_empty_then_has_prior(counts, x, how):
    shares = LDATopics(counts, ALPHA, BETA, how).transform(x)
    np.testing.assert_allclose(shares[1], ALPHA / ALPHA.sum())
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert (shares > 0).all()


@pytest.mark.parametrize("how", ["sampled", "variational"])
def test_transform_when_there_is_one_topic_then_all_is_of_it(counts, x, how):
    assert (LDATopics(counts[:, :1], [0.1], BETA, how).transform(x) == 1.0).all()


def test_sampled_when_topics_exceed_16_bits_then_finds_last_one():
    counts = np.zeros((3, 66_000), np.int32)
    counts[2] = 1_000
    counts[0, 65_999] = counts[1, 3] = 9_000
    shares = LDATopics(counts, np.full(66_000, 1e-6), 1e-6).transform(np.array([[50, 0, 0], [0, 50, 0]]))
    assert shares.argmax(axis=1).tolist() == [65_999, 3]
    assert shares.max(axis=1).min() > 0.99


def gamma_of(document, lam):
    """Hoffman et al., Algorithm 2, as pyspark.ml's but for where gamma begins."""
    weights = np.exp(psi(lam) - psi(lam.sum(axis=0)))
    gamma, change = np.ones(TOPICS), 1.0
    while change > 1e-3:
        before = gamma
        theta = np.exp(psi(gamma) - psi(gamma.sum()))
        gamma = ALPHA + theta * (weights.T @ (document / (weights @ theta + 1e-100)))
        change = np.abs(gamma - before).mean()
    return gamma


def test_variational_when_compared_with_numpy_then_shares_match(variational, counts, x):
    gammas = np.array([gamma_of(document, counts + BETA) for document in x.toarray()])
    np.testing.assert_allclose(variational.transform(x), gammas / gammas.sum(axis=1, keepdims=True), atol=2e-3)


def test_likelihood_when_compared_with_numpy_then_bound_matches(variational, sampled, counts, x):
    lam, bound = counts + BETA, 0.0
    log_weights = psi(lam) - psi(lam.sum(axis=0))
    for document in x.toarray():
        if not document.sum():
            continue
        gamma = gamma_of(document, lam)
        log_theta = psi(gamma) - psi(gamma.sum())
        bound += document @ logsumexp(log_theta + log_weights, axis=1) + (ALPHA - gamma) @ log_theta
        bound += (gammaln(gamma) - gammaln(ALPHA)).sum() + gammaln(ALPHA.sum()) - gammaln(gamma.sum())
    bound += ((BETA - lam) * log_weights + gammaln(lam) - gammaln(BETA)).sum()
    bound += (gammaln(WORDS * BETA) - gammaln(lam.sum(axis=0))).sum()
    assert variational.logLikelihood(x) == pytest.approx(bound, rel=1e-4)
    assert sampled.logPerplexity(x) == pytest.approx(-bound / x.sum(), rel=1e-4)


def test_variational_when_words_come_in_parts_then_shares_match(variational, counts, x, monkeypatch):
    shares = variational.transform(x)
    monkeypatch.setattr(inference, "MAX_WEIGHTS", 8 * TOPICS)
    again = LDATopics(counts, ALPHA, BETA, "variational")
    np.testing.assert_allclose(again.transform(x), shares, rtol=1e-9)


def test_perplexity_then_first_half_topics_score_second_half(variational, x):
    first, second = halves(x.astype(np.float64), 5)
    chances = variational.transform(first) @ variational.chances().T
    expected = math.exp(-second.multiply(np.log(chances)).sum() / second.sum())
    assert variational.perplexity(x, seed=5) == pytest.approx(expected)


def test_halves_when_split_then_have_equal_tokens_per_document(x):
    first, second = halves(x.astype(np.float64), 0)
    np.testing.assert_array_equal((first + second).toarray(), x.toarray())
    more = first.sum(axis=1) - second.sum(axis=1)
    np.testing.assert_array_equal(more, x.sum(axis=1) % 2)
    assert (first.toarray() != halves(x.astype(np.float64), 1)[0].toarray()).any()


def test_describe_when_words_tie_then_lists_first_ones():
    topics = LDATopics(np.array([[0, 4], [3, 4], [3, 0], [9, 4]]), [1.0, 1.0], 0.5)
    assert [words.tolist() for words, _ in topics.describeTopics(3)] == [[3, 1, 2], [0, 1, 3]]
    np.testing.assert_allclose(topics.describeTopics(1)[0][1], [9.5 / 17])
    assert len(topics.describeTopics(99)[0][0]) == 4
    assert [words for words, _ in topics.describeTopics(2, ["a", "b", "c", "d"])] == [["d", "b"], ["a", "b"]]
    with pytest.raises(ShapeError, match="vocabulary: expected 4 words, got 2"):
        topics.describeTopics(2, ["a", "b"])


@pytest.mark.parametrize("dtype", [np.int32, np.float64])
def test_topics_when_saved_and_loaded_then_they_are_the_same(counts, dtype, tmp_path):
    topics = LDATopics(counts.astype(dtype), ALPHA, BETA, "variational", seed=7)
    topics.save(str(tmp_path / "model"))
    result = LDATopics.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(result.counts, topics.counts)
    np.testing.assert_array_equal(result.alpha, ALPHA)
    assert (result.counts.dtype, result.beta, result.inference, result.seed) == (dtype, BETA, "variational", 7)
    with pytest.raises(UsageError, match="there is something already"):
        topics.save(str(tmp_path / "model"))


def test_topics_when_a_file_has_changed_then_it_is_an_error(sampled, tmp_path):
    with pytest.raises(CheckpointMissingError, match="no folder metadata"):
        LDATopics.load(str(tmp_path))
    sampled.save(str(tmp_path / "model"))
    (tmp_path / "model" / "counts.npy").write_bytes(b"")
    with pytest.raises(CheckpointCorruptError, match=r"counts\.npy: its checksum"):
        LDATopics.load(str(tmp_path / "model"))


@pytest.mark.parametrize(("change", "error"), [({"format": "x"}, UsageError), ({"beta": None}, CheckpointCorruptError)])
def test_topics_when_metadata_are_others_then_it_is_an_error(sampled, tmp_path, change, error):
    sampled.save(str(tmp_path / "model"))
    path = tmp_path / "model" / "metadata" / "part-00000"
    metadata = json.loads(path.read_text())
    metadata["ps2"].update(change)
    path.write_text(json.dumps(metadata))
    with pytest.raises(error):
        LDATopics.load(str(tmp_path / "model"))


def test_topics_when_pickled_then_documents_have_the_same_shares(sampled, x):
    shares = sampled.transform(x)
    again = pickle.dumps(sampled)
    assert len(again) < sampled.counts.nbytes + 1000
    np.testing.assert_array_equal(pickle.loads(again).transform(x), shares)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (np.zeros((2, 3)), ShapeError, r"expected shape \(n, 12\) of counts, got \(2, 3\)"),
        (np.zeros(12), ShapeError, r"expected shape \(n, 12\)"),
        ([[1], [1, 2]], ShapeError, "got a value that is not an array"),
        (np.full((2, 12), "a"), UsageError, "x: expected counts, got <U1"),
        (np.eye(3, 12) / 2, InputError, "x: 3 of 3 documents hold values that are no counts, such as 0.5 in row 0"),
        (-np.eye(3, 12)[1:], InputError, "x: 2 of 2 documents hold values that are no counts, such as -1 in row 0"),
        (np.diag([1.0, np.nan])[:, [0, 1] * 6], InputError, "x: 1 of 2 documents .* such as nan in row 1"),
    ],
)
def test_transform_when_documents_have_no_counts_then_names_one(sampled, bad, error, message):
    with pytest.raises(error, match=message):
        sampled.transform(bad)


def test_perplexity_when_no_document_has_two_tokens_then_raises(sampled):
    with pytest.raises(InputError, match="at least one document of two tokens"):
        sampled.perplexity(np.eye(3, 12))


def test_topics_when_printed_then_are_a_line(sampled):
    assert repr(sampled) == "LDATopics(topics=5, words=12, inference='sampled')"


def test_topics_when_alpha_is_not_one_per_topic_then_raises(counts):
    with pytest.raises(ShapeError, match=r"one for each topic of counts of shape \(12, 5\), got \(2,\)"):
        LDATopics(counts, [1.0, 1.0], BETA)


def test_vis_when_asked_for_then_five_arrays_fit_each_other(sampled, x):
    result = sampled.toPyLDAvis(x)
    assert result["topic_term_dists"].shape == (TOPICS, WORDS)
    np.testing.assert_allclose(result["topic_term_dists"].sum(axis=1), 1.0)
    np.testing.assert_array_equal(result["doc_topic_dists"], np.delete(sampled.transform(x), 1, axis=0))
    np.testing.assert_array_equal(result["doc_lengths"], np.delete(x.sum(axis=1), 1))
    np.testing.assert_array_equal(result["term_frequency"], x.sum(axis=0))
    assert result["vocab"] == [str(word) for word in range(WORDS)]
    with pytest.raises(ShapeError, match="vocabulary: expected 12 words, got 1"):
        sampled.toPyLDAvis(x, ["a"])
