"""Online variational Bayes: workers and servers find what pyspark.ml's algorithm gives in NumPy, step by step."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from topics_training import TOPICS, WORDS, arrays, documents
from variational import expectation, inferred

from ps2.algorithms.topics import online, online_kernels
from ps2.algorithms.topics.corpus import iteration_key
from ps2.algorithms.topics.online import OnlineProgram, alpha_after, check_lambda, document_ids
from ps2.algorithms.topics.plan import OnlinePlan
from ps2.algorithms.topics.settings import LDASettings
from ps2.algorithms.topics.variational import ops as online_ops
from ps2.data.rows import LocalRows
from ps2.errors import LimitError
from ps2.matrix.partition import Partition
from ps2.ops.kernels import kernel
from tests.in_process import training_context
from tests.plans import changed

SETTINGS = LDASettings(
    optimizer="online",
    k=TOPICS,
    maxIter=6,
    docConcentration=[0.2],
    topicConcentration=0.05,
    optimizeDocConcentration=True,
    sync="gradient",
    learningOffset=2.0,
    subsamplingRate=0.5,
    localBatches=1,
    seed=3,
)
ONLINE = OnlinePlan(settings=SETTINGS, vocabulary=WORDS)
AVERAGE = changed(ONLINE, subsamplingRate=0.3, sync="average", localBatches=3)
# Lambda is float32 on the servers.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
# Python would warn of the overflow that its numbers are made by.
BEGIN_GAMMA = kernel(online_kernels.draw_gamma)


def counts_at_start():
    counts = np.zeros((WORDS, TOPICS), np.float32)
    online_ops.begin(counts, Partition(0, 0, WORDS), seed=ONLINE.seed, beta=ONLINE.beta)
    return counts


def stepped(shard, lam, alpha, step, total, plan):
    """Return lambda, alpha and minus the bound of a token after one more batch of a shard of all documents."""
    ids, key = document_ids(LocalRows(np.arange(WORDS), shard)), iteration_key(plan.seed, step)
    drawn = online_kernels.draw(ids, key, plan.settings.subsamplingRate)
    some = shard.toarray()[drawn]
    if not len(some):
        return lam, alpha, np.nan
    begun = np.empty((len(some), TOPICS))
    for seed, gamma in zip(ids[drawn] + key, begun, strict=True):
        BEGIN_GAMMA(seed, gamma)
    gammas, stats, bound = inferred(some, np.exp(expectation(lam.T)).T, alpha, begun)
    rho = (plan.settings.learningOffset + step + 1) ** -plan.settings.learningDecay
    lam = (1 - rho) * lam + rho * (plan.beta + total / len(some) * stats)
    return lam, alpha_after(alpha, expectation(gammas).sum(axis=0), len(some), rho), -bound / some.sum()


def reference(plan, shards=1):
    """Return counts, alpha and the bounds of batches; each worker has a shard of the documents."""
    documents_of = [documents()[rank::shards] for rank in range(shards)]
    documents_of = [shard[np.diff(shard.indptr) > 0] for shard in documents_of]
    total = sum(shard.shape[0] for shard in documents_of)
    lam, alpha, bounds = counts_at_start().astype(float) + plan.beta, plan.alphas, []
    for iteration in range(plan.settings.maxIter):
        models = []
        for shard in documents_of:
            model = lam, alpha
            for step in range(iteration * plan.settings.localBatches, (iteration + 1) * plan.settings.localBatches):
                *model, bound = stepped(shard, *model, step, total, plan)
                bounds.append(bound)
            models.append(model)
        shares = np.array([shard.shape[0] / total for shard in documents_of])
        lam, alpha = (np.tensordot(shares, each, 1) for each in zip(*models, strict=True))
    return lam - plan.beta, alpha, bounds


@pytest.fixture(scope="module")
def expected():
    return reference(ONLINE)


def trained(plan=ONLINE, workers=2, on_step=lambda step: None):
    with training_context() as ps:
        return OnlineProgram.train(ps, arrays(documents(), workers), plan, on_step)


def assert_same(found, expected):
    np.testing.assert_allclose(found.model.counts, expected[0], **CLOSE)
    np.testing.assert_allclose(found.model.alpha, expected[1], **CLOSE)


@pytest.mark.parametrize("workers", [1, 2])
def test_online_when_documents_move_then_topics_match_algorithm(expected, workers):
    result = trained(workers=workers)
    assert_same(result, expected)
    np.testing.assert_allclose(result.history.objective, expected[2], **CLOSE)


def test_online_when_weights_exceed_worker_then_splits_documents(expected, monkeypatch):
    monkeypatch.setattr(online, "MAX_PART_BYTES", 8 * TOPICS * 20)
    assert_same(trained(), expected)


def test_online_when_batch_is_all_documents_then_bound_improves():
    steps = []
    plan = changed(ONLINE, subsamplingRate=1.0, maxIter=10)
    result = trained(plan, on_step=steps.append)
    assert len(steps) == result.history.steps == 10
    assert result.history.objective[-1] < result.history.objective[0] - 0.1
    assert result.model.counts.sum() + WORDS * TOPICS * plan.beta > documents().sum() * 0.9
    assert {step.metrics["tokens_per_s"] > 0 for step in steps} == {True}


@pytest.mark.parametrize("plan", [ONLINE, AVERAGE], ids=lambda plan: plan.settings.sync)
def test_online_when_a_batch_has_no_document_then_lambda_stays(plan):
    result = trained(changed(plan, subsamplingRate=1e-9, maxIter=2))
    np.testing.assert_allclose(result.model.counts, counts_at_start(), rtol=0 if plan is ONLINE else 1e-6)
    assert np.isnan(result.history.objective).all()


def test_online_when_batches_are_empty_then_history_has_numbers():
    """One document of one token, which is in few batches, neither in the first nor in the last one."""
    one = sp.csr_array(([1.0], ([0], [2])), shape=(1, WORDS))
    ids = document_ids(LocalRows(np.arange(WORDS), one))

    def drawn(seed):
        return [bool(online_kernels.draw(ids, iteration_key(seed, step), 0.2)[0]) for step in range(12)]

    seed = next(seed for seed in range(100) if any(drawn(seed)) and not (drawn(seed)[0] or drawn(seed)[-1]))
    with training_context() as ps:
        result = OnlineProgram.train(ps, arrays(one, 1), changed(ONLINE, subsamplingRate=0.2, maxIter=12, seed=seed))
    objective, known = result.history.objective, np.flatnonzero(drawn(seed))
    assert np.isfinite(objective).all()
    assert (objective[0], objective[-1]) == (objective[known[0]], objective[known[-1]])


@pytest.mark.parametrize("workers", [1, 2])
def test_averaging_when_workers_step_then_mean_of_their_lambdas(workers):
    result = trained(AVERAGE, workers)
    assert_same(result, reference(AVERAGE, workers))
    assert result.history.steps == AVERAGE.settings.maxIter


def test_averaging_when_lambda_exceeds_memory_then_limit_error():
    with pytest.raises(LimitError, match="a worker's lambda of 1,000 words and 100 topics takes 1,200,000 bytes"):
        check_lambda(1000, 100, free=2_000_000)
