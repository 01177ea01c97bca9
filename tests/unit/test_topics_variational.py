"""Online variational Bayes: its maths, against SciPy's functions and pyspark.ml's algorithm in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import polygamma, psi
from scipy.stats import gamma as gamma_distribution
from scipy.stats import kstest

from ps2.algorithms.topics import online_kernels as kernels
from ps2.algorithms.topics.online import alpha_after, document_ids
from ps2.algorithms.topics.variational import ops
from ps2.data.rows import LocalRows
from ps2.matrix.partition import Partition
from ps2.ops.guards import readable
from tests.variational import expectation, inferred

WORDS, TOPICS = 60, 12


def documents(count=20, seed=0):
    """Counts of words, shape (documents, words)."""
    rng = np.random.default_rng(seed)
    counts = rng.poisson(0.4, (count, WORDS)).astype(float)
    counts[:, 0] += 1
    return counts


def some_weights(seed=0):
    """exp(E[log beta]) of topics that have learnt something."""
    rng = np.random.default_rng(seed)
    lam = rng.gamma(0.3, 10, (WORDS, TOPICS)) + 0.01
    return np.exp(expectation(lam.T)).T


def infer(counts, weights, alpha):
    x = sp.csr_array(counts)
    gammas, stats, shares = np.zeros((len(counts), TOPICS)), np.zeros(weights.shape), np.zeros(TOPICS)
    entries = readable(x.indptr), readable(x.indices), readable(x.data)
    bound = kernels.infer(
        *entries, readable(weights), readable(alpha), readable(np.empty(0, np.uint64)), gammas, stats, shares, 0.0
    )
    return gammas, stats * weights, bound, shares


# -- functions ---------------------------------------------------------------------------------------------------------


def test_digamma_when_numbers_are_of_any_size_then_it_is_scipys():
    x = np.concatenate([np.geomspace(1e-6, 1e9, 4000), np.linspace(0.5, 20, 4000)])
    result = np.array([kernels.digamma(each) for each in x])
    np.testing.assert_allclose(result, psi(x), rtol=1e-12, atol=1e-12)


def test_exp_digamma_when_of_any_size_then_error_below_1e_8():
    x = np.concatenate([np.geomspace(0.002, 1e9, 4000), np.linspace(0.01, 20, 8000)])
    result = np.array([kernels.exp_digamma(each) for each in x])
    np.testing.assert_allclose(result, np.exp(psi(x)), rtol=1e-8)


def test_exp_digamma_when_number_is_tiny_then_is_nearly_0():
    assert 0.0 <= kernels.exp_digamma(1e-300) < 1e-290


def test_weigh_when_lambda_is_given_then_returns_expectations():
    lam = np.random.default_rng(0).gamma(0.5, 2, (WORDS, TOPICS)) + 0.05
    weights = np.empty(lam.shape)
    kernels.weigh(readable(lam - 0.05), 0.05, readable(lam.sum(axis=0)), weights)
    np.testing.assert_allclose(weights, np.exp(expectation(lam.T)).T, rtol=2e-8)


# -- documents ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.001, 0.02, 0.1, 0.5, 5.0])
def test_infer_when_alpha_is_any_then_matches_pyspark(alpha):
    counts, weights, alphas = documents(), some_weights(), alpha * np.linspace(0.5, 1.5, TOPICS)
    gammas, stats, bound, shares = infer(counts, weights, alphas)
    expected = inferred(counts, weights, alphas)
    np.testing.assert_allclose(gammas, expected[0], atol=1e-7)
    np.testing.assert_allclose(stats, expected[1], atol=1e-7)
    np.testing.assert_allclose(bound, expected[2], rtol=1e-9)
    np.testing.assert_allclose(shares, expectation(expected[0]).sum(axis=0), rtol=1e-7)


def test_infer_when_all_are_done_then_statistics_sum_to_tokens():
    counts = documents()
    assert infer(counts, some_weights(), np.full(TOPICS, 0.01))[1].sum() == pytest.approx(counts.sum())


def test_infer_when_word_is_in_no_topic_then_others_ignore_it():
    counts, weights, alpha = documents(1), some_weights(), np.full(TOPICS, 0.1)
    weights[0] = 0.0
    gammas, _, _, _ = infer(counts, weights, alpha)
    without = counts.copy()
    without[0, 0] = 0.0
    np.testing.assert_allclose(gammas, infer(without, weights, alpha)[0], atol=1e-9)


def test_infer_when_document_regains_topic_then_finds_it():
    """A word of one topic only: that has to be found, whatever the document's other words say of it before."""
    weights, alpha = np.full((WORDS, TOPICS), 1e-40), np.full(TOPICS, 0.01)
    weights[1:, 0] = 1.0
    weights[0, 1] = 1e-9
    counts = np.zeros((1, WORDS))
    counts[0, :20] = [1, *[30] * 19]
    gammas, _, _, _ = infer(counts, weights, alpha)
    np.testing.assert_allclose(gammas, inferred(counts, weights, alpha)[0], atol=1e-9)


# -- batches -----------------------------------------------------------------------------------------------------------


def test_batch_when_documents_move_then_draws_the_same():
    counts = documents(400)
    whole = LocalRows(np.arange(WORDS), sp.csr_array(counts))
    ids = document_ids(whole)
    # Another order, other rows beside, fewer keys, entries from the last to the first.
    some = np.random.default_rng(1).permutation(400)[:300]
    part = whole.take(some)
    turned = sp.csr_array((part.x.data[::-1], part.x.indices[::-1], part.x.nnz - part.x.indptr[::-1]), part.x.shape)
    np.testing.assert_array_equal(document_ids(part), ids[some])
    np.testing.assert_array_equal(document_ids(LocalRows(part.keys, turned)), ids[some][::-1])


def test_batch_when_iterations_continue_then_draws_anew():
    ids = document_ids(LocalRows(np.arange(WORDS), sp.csr_array(documents(4000))))
    first, second = (kernels.draw(ids, np.uint64(key), 0.25) for key in (1, 2))
    assert abs(first.mean() - 0.25) < 0.03
    assert abs((first & second).mean() - 0.0625) < 0.02


def test_batch_when_it_is_of_all_then_all_are_drawn():
    ids = document_ids(LocalRows(np.arange(WORDS), sp.csr_array(documents())))
    assert kernels.draw(ids, np.uint64(1), 1.0).all()


# -- alpha -------------------------------------------------------------------------------------------------------------


def test_alpha_when_steps_are_taken_then_reaches_most_likely():
    true = np.array([0.2, 0.5, 2.0])
    shares = np.log(np.random.default_rng(0).dirichlet(true, 3000)).sum(axis=0)
    alpha = np.ones(3)
    for _ in range(500):
        alpha = alpha_after(alpha, shares, 3000, 0.1)
    np.testing.assert_allclose(psi(alpha) - psi(alpha.sum()), shares / 3000, atol=1e-8)


def test_alpha_when_one_step_is_taken_then_it_is_newtons():
    alpha, shares, n, weight = np.array([0.3, 0.6, 1.2]), np.array([-5.0, -4.0, -2.0]), 2.0, 0.1
    gradient = n * (psi(alpha.sum()) - psi(alpha)) + shares
    hessian = n * polygamma(1, alpha.sum()) - np.diag(n * polygamma(1, alpha))
    expected = alpha - weight * np.linalg.solve(hessian, gradient)
    np.testing.assert_allclose(alpha_after(alpha, shares, n, weight), expected)


def test_alpha_when_a_step_would_leave_0_behind_then_it_stays():
    alpha = np.array([0.01, 1.0])
    np.testing.assert_array_equal(alpha_after(alpha, np.array([-1e6, -1.0]), 1.0, 1.0), alpha)


# -- on the servers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_begin_when_lambda_is_drawn_then_it_is_gamma(dtype):
    m = np.zeros((200, 50), dtype)
    totals = ops.begin(m, Partition(0, 0, 200), seed=3, beta=0.1)
    assert kstest((m + 0.1).reshape(-1), gamma_distribution(100, scale=0.01).cdf).pvalue > 0.01
    np.testing.assert_allclose(totals, m.sum(axis=0, dtype=float))


def test_begin_when_words_are_recut_then_lambda_is_the_same():
    whole, part = np.zeros((700, 5)), np.zeros((300, 5))
    ops.begin(whole, Partition(0, 0, 700), seed=3, beta=0.1)
    ops.begin(part, Partition(1, 400, 700), seed=3, beta=0.1)
    np.testing.assert_array_equal(whole[400:], part)


def test_begin_when_the_seed_is_another_then_so_is_lambda():
    first, second = np.zeros((10, 5)), np.zeros((10, 5))
    ops.begin(first, Partition(0, 0, 10), seed=3, beta=0.1)
    ops.begin(second, Partition(0, 0, 10), seed=-4, beta=0.1)
    assert not (first == second).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_step_when_taken_then_lambda_moves_and_statistics_are_0(dtype):
    rng = np.random.default_rng(0)
    m, stats = rng.random((600, 7)).astype(dtype), rng.random((600, 7)).astype(dtype)
    expected = 0.9 * m + 2.5 * stats
    totals = ops.step(m, stats, keep=0.9, scale=2.5)
    np.testing.assert_allclose(m, expected, rtol=1e-6)
    np.testing.assert_allclose(totals, expected.sum(axis=0), rtol=1e-6)
    assert not stats.any()


def test_inference_when_seeded_then_random_start_is_reproducible():
    weights, alpha = readable(np.ones((WORDS, TOPICS))), readable(np.full(TOPICS, 0.01))
    documents = sp.csr_array(np.ones((3, WORDS)))
    entries = readable(documents.indptr), readable(documents.indices), readable(documents.data)
    gammas = np.empty((3, TOPICS))
    seeds = readable(np.array([7, 7, 8], np.uint64))
    kernels.infer(*entries, weights, alpha, seeds, gammas, np.zeros((WORDS, TOPICS)), np.zeros(TOPICS), 0.0)
    # All topics are alike, so where a document began is all that sets its topics apart.
    np.testing.assert_array_equal(gammas[0], gammas[1])
    assert (gammas[0] != gammas[2]).any()
    assert gammas[0].std() > 0.01
