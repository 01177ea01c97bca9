"""Online variational Bayes on workers and servers: what pyspark.ml's algorithm gives in NumPy, wherever things lie."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from faults import processes
from topics_training import TOPICS, WORDS, dealt, documents

from ps2 import PS2Context
from ps2.algorithms.topics import online, online_kernels
from ps2.algorithms.topics.corpus import key_of
from ps2.algorithms.topics.evidence import alpha_after, ids_of
from ps2.algorithms.topics.online import train_online
from ps2.algorithms.topics.options import OnlineOptions
from ps2.algorithms.topics.variational import ops as online_ops
from ps2.data.rows import LocalRows
from ps2.matrix.partition import Partition
from tests.variational import expectation, inferred

RECIPE = OnlineOptions(TOPICS, WORDS, iterations=6, alpha=(0.2,), beta=0.05, offset=2.0, fraction=0.5, seed=3)
# Lambda is float32 on the servers.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(scope="module")
def ps(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=str(folder), checkpointEverySteps=3) as ps:
        yield ps


@pytest.fixture(scope="module")
def expected():
    """Counts and alpha after the recipe's iterations, and the bound of each batch."""
    counts, recipe = documents(), RECIPE
    ids = ids_of(LocalRows(np.arange(WORDS), counts))
    filled = np.diff(counts.indptr) > 0
    held, alpha, bounds = np.zeros((WORDS, TOPICS), np.float32), recipe.alphas, []
    online_ops.begin(held, Partition(0, 0, WORDS), seed=recipe.seed, beta=recipe.beta)
    lam = held.astype(float) + recipe.beta
    for iteration in range(recipe.iterations):
        drawn = online_kernels.draw(ids, key_of(recipe.seed, iteration), recipe.fraction) & filled
        some = counts.toarray()[drawn]
        begun = np.empty((len(some), TOPICS))
        for seed, gamma in zip(ids[drawn] + key_of(recipe.seed, iteration), begun, strict=True):
            online_kernels.begin_gamma(seed, gamma)
        gammas, stats, bound = inferred(some, np.exp(expectation(lam.T)).T, alpha, begun)
        bounds.append(-bound / some.sum())
        rho = (recipe.offset + iteration + 1) ** -recipe.decay
        lam = (1 - rho) * lam + rho * (recipe.beta + filled.sum() / len(some) * stats)
        alpha = alpha_after(alpha, expectation(gammas).sum(axis=0), len(some), rho)
    return lam - recipe.beta, alpha, bounds


def trained(ps, spark, recipe=RECIPE, workers=2, on_step=lambda step: None):
    return train_online(ps, dealt(spark, documents(), workers), recipe, on_step)


def assert_same(found, expected):
    np.testing.assert_allclose(found.counts, expected[0], **CLOSE)
    np.testing.assert_allclose(found.alpha, expected[1], **CLOSE)
    np.testing.assert_allclose(found.history.objective, expected[2], **CLOSE)


@pytest.mark.parametrize("workers", [1, 2])
def test_online_when_documents_move_then_topics_match_algorithm(ps, spark, expected, workers):
    assert_same(trained(ps, spark, workers=workers), expected)


def test_online_when_weights_exceed_worker_then_splits_documents(ps, spark, expected, monkeypatch):
    monkeypatch.setattr(online, "ROOM_BYTES", 8 * TOPICS * 20)
    assert_same(trained(ps, spark), expected)


class DyingWorker:
    """A worker that is killed (-9) when it has sent its part of a clock, before that clock counts; once."""

    def __init__(self, worker, path):
        self._worker, self._path = worker, path

    def report(self, value):
        self._worker.report(value)

    def clocks(self, n):
        for clock in self._worker.clocks(n):
            yield clock
            if self._worker.rank == 1 and clock == 3 and not os.path.exists(self._path):
                Path(self._path).touch()
                os.kill(os.getpid(), signal.SIGKILL)


class DyingProgram(online.OnlineProgram):
    path = ""

    def __call__(self, worker, reading):
        super().__call__(DyingWorker(worker, self.path), reading)


def test_online_when_worker_is_killed_then_its_adds_count_once(ps, spark, by_value, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(DyingProgram, "path", str(tmp_path / "died"))
    monkeypatch.setattr(online, "OnlineProgram", DyingProgram)
    assert_same(trained(ps, spark), expected)
    assert (tmp_path / "died").exists()


def test_online_when_server_dies_then_rolls_back_and_continues(ps, spark, expected):
    def kill(step):
        if step.number == 4 and not ps.recoveries:
            processes.kill(processes.servers_of(ps)[0])

    assert_same(trained(ps, spark, on_step=kill), expected)
    assert ps.recoveries[-1].rolledBack


def test_online_when_batch_is_all_documents_then_bound_improves(ps, spark):
    steps = []
    recipe = replace(RECIPE, fraction=1.0, iterations=10)
    found = trained(ps, spark, recipe, on_step=steps.append)
    assert len(steps) == found.history.steps == 10
    assert found.history.objective[-1] < found.history.objective[0] - 0.1
    assert found.counts.sum() + WORDS * TOPICS * recipe.beta > documents().sum() * 0.9
    assert {step.metrics["tokens_per_s"] > 0 for step in steps} == {True}


def test_online_when_a_batch_has_no_document_then_lambda_stays(ps, spark):
    found = trained(ps, spark, replace(RECIPE, fraction=1e-9, iterations=2))
    begun = np.zeros((WORDS, TOPICS), np.float32)
    online_ops.begin(begun, Partition(0, 0, WORDS), seed=RECIPE.seed, beta=RECIPE.beta)
    np.testing.assert_array_equal(found.counts, begun)
    assert np.isnan(found.history.objective).all()
