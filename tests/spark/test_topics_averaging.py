"""Online variational Bayes by model averaging: workers and servers make the averages that NumPy makes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from faults import processes
from topics_training import TOPICS, WORDS, dealt, documents

from ps2 import PS2Context
from ps2.algorithms.topics import online_kernels
from ps2.algorithms.topics.averaging import check_room
from ps2.algorithms.topics.corpus import key_of
from ps2.algorithms.topics.evidence import alpha_after, ids_of
from ps2.algorithms.topics.online import train_online
from ps2.algorithms.topics.options import OnlineOptions
from ps2.algorithms.topics.variational import ops as online_ops
from ps2.data.rows import LocalRows
from ps2.errors import LimitError
from ps2.matrix.partition import Partition
from tests.variational import expectation, inferred

RECIPE = OnlineOptions(
    TOPICS,
    WORDS,
    iterations=6,
    alpha=(0.2,),
    beta=0.05,
    offset=2.0,
    fraction=0.3,
    sync="average",
    local_batches=3,
    seed=3,
)
# Lambda is float32 on the servers.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def ps(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=str(folder), checkpointEverySteps=3) as ps:
        yield ps


def averaged(shards, recipe=RECIPE):
    """Return counts and alpha; each worker has a shard of documents, an array of counts."""
    held = np.zeros((WORDS, TOPICS), np.float32)
    online_ops.begin(held, Partition(0, 0, WORDS), seed=recipe.seed, beta=recipe.beta)
    lam, alpha = held.astype(float) + recipe.beta, recipe.alphas
    shards = [shard[np.diff(shard.indptr) > 0] for shard in shards]
    total = sum(shard.shape[0] for shard in shards)
    for iteration in range(recipe.iterations):
        models = [stepped(shard, lam, alpha, iteration, total, recipe) for shard in shards]
        shares = [shard.shape[0] / total for shard in shards]
        lam = sum(share * model for share, (model, _) in zip(shares, models, strict=True))
        alpha = sum(share * one for share, (_, one) in zip(shares, models, strict=True))
    return lam - recipe.beta, alpha


def stepped(shard, lam, alpha, iteration, total, recipe):
    ids = ids_of(LocalRows(np.arange(WORDS), shard))
    for step in range(iteration * recipe.local_batches, (iteration + 1) * recipe.local_batches):
        key = key_of(recipe.seed, step)
        drawn = online_kernels.draw(ids, key, recipe.fraction)
        some = shard.toarray()[drawn]
        if not len(some):
            continue
        begun = np.empty((len(some), TOPICS))
        for seed, gamma in zip(ids[drawn] + key, begun, strict=True):
            online_kernels.begin_gamma(seed, gamma)
        gammas, stats, _ = inferred(some, np.exp(expectation(lam.T)).T, alpha, begun)
        rho = recipe.weight(step + 1)
        lam = (1 - rho) * lam + rho * (recipe.beta + total / len(some) * stats)
        alpha = alpha_after(alpha, expectation(gammas).sum(axis=0), len(some), rho)
    return lam, alpha


@pytest.fixture(scope="module")
def alone():
    return averaged([documents()])


def trained(ps, spark, recipe=RECIPE, workers=1, on_step=lambda step: None):
    return train_online(ps, dealt(spark, documents(), workers), recipe, on_step)


def assert_same(found, expected):
    np.testing.assert_allclose(found.counts, expected[0], **CLOSE)
    np.testing.assert_allclose(found.alpha, expected[1], **CLOSE)


def test_averaging_when_worker_is_alone_then_its_local_steps(ps, spark, alone):
    found = trained(ps, spark)
    assert_same(found, alone)
    assert found.history.steps == RECIPE.iterations


def test_averaging_when_two_workers_then_mean_of_their_lambdas(ps, spark):
    assert_same(trained(ps, spark, workers=2), averaged([documents()[rank::2] for rank in range(2)]))


def test_averaging_when_server_dies_then_rolls_back_and_same(ps, spark, alone):
    def kill(step):
        if step.number == 4 and not ps.recoveries:
            processes.kill(processes.servers_of(ps)[0])

    assert_same(trained(ps, spark, on_step=kill), alone)
    assert ps.recoveries[-1].rolledBack


def test_averaging_when_no_document_is_drawn_then_lambda_stays(ps, spark):
    found = trained(ps, spark, replace(RECIPE, fraction=1e-9, iterations=2), workers=2)
    begun = np.zeros((WORDS, TOPICS), np.float32)
    online_ops.begin(begun, Partition(0, 0, WORDS), seed=RECIPE.seed, beta=RECIPE.beta)
    np.testing.assert_allclose(found.counts, begun, rtol=1e-6)


def test_averaging_when_lambda_exceeds_memory_then_limit_error():
    with pytest.raises(LimitError, match="a worker's lambda of 1,000 words and 100 topics takes 1,200,000 bytes"):
        check_room(1000, 100, free=2_000_000)
