"""Params of LDA: what they refuse, and the plan that they make."""

from __future__ import annotations

import pytest
from pyspark.ml import clustering

from ps2.algorithms import LDA, LDAModel
from ps2.algorithms.topics.plan import OnlinePlan, SamplingPlan
from ps2.algorithms.topics.settings import resolved_inference
from ps2.errors import ConfigError, LimitError
from tests.plans import changed


def plan(**params):
    lda = LDA(**params)
    lda._check()
    return lda._plan()


def test_plan_when_nothing_is_set_then_is_what_samplers_have():
    created = plan()
    settings = created.settings
    assert isinstance(created, SamplingPlan)
    assert (created.topics, settings.maxIter, set(created.alphas), created.beta) == (10, 100, {0.1}, 0.01)
    assert (settings.sync, settings.staleness, settings.budgetS, created.save_interval) == ("ssp", 1, None, 10)
    assert not settings.optimizeDocConcentration


def test_plan_when_online_then_is_what_pyspark_has():
    created = plan(optimizer="online", k=4)
    settings = created.settings
    assert isinstance(created, OnlinePlan)
    assert (settings.maxIter, set(created.alphas), created.beta) == (20, {0.25}, 0.25)
    assert settings.optimizeDocConcentration
    assert (settings.learningOffset, settings.learningDecay, settings.subsamplingRate) == (1024.0, 0.51, 0.05)


def test_plan_when_em_then_concentrations_are_pysparks_less_1(caplog):
    created = plan(optimizer="EM", k=4)
    assert isinstance(created, SamplingPlan)
    assert (created.settings.maxIter, set(created.alphas), created.beta) == (20, {12.5}, pytest.approx(0.1))
    assert plan(optimizer="em", k=2, docConcentration=[1.5, 3.0]).alphas.tolist() == [0.5, 2.0]
    assert "topics are found by collapsed Gibbs sampling" in caplog.text


def test_models_then_are_instances_of_pyspark_local_lda():
    assert issubclass(LDAModel, clustering.LocalLDAModel)
    assert not issubclass(LDAModel, clustering.DistributedLDAModel)


def test_plan_when_params_are_set_then_has_them():
    created = plan(
        k=2, docConcentration=[1, 2], topicConcentration=0.5, sync="rotation", budgetS=2, checkpointInterval=-1
    )
    settings = created.settings
    assert (created.alphas.tolist(), created.beta, settings.sync) == ([1, 2], 0.5, "rotation")
    assert (settings.budgetS, created.save_interval) == (2.0, 0)
    assert set(plan(docConcentration=3).alphas) == {3.0}
    assert plan(seed=-5).seed == 2**63 - 5


@pytest.mark.parametrize("optimizer", ["cgs", "online"])
def test_topics_when_the_driver_cannot_hold_them_then_k_is_named(optimizer):
    large = changed(plan(optimizer=optimizer, k=2 * 10**9), vocabulary=1)
    with pytest.raises(
        LimitError, match=r"k=2,000,000,000: so many topics of 1 words take [0-9,]+ bytes, and the driver"
    ):
        large.check_memory(16 << 30)
    changed(large, k=1000).check_memory(16 << 30)


@pytest.mark.parametrize(
    ("optimizer", "inference", "expected"),
    [("cgs", "auto", "sampled"), ("online", "auto", "variational"), ("cgs", "variational", "variational")],
)
def test_inference_when_auto_then_is_as_topics_are_found(optimizer, inference, expected):
    lda = LDA(optimizer=optimizer, inference=inference)
    assert resolved_inference(lda.getInference(), lda.getOptimizer()) == expected


def test_defaults_when_optimizers_differ_then_are_each_ones_own():
    defaults = [(lda.getMaxIter(), lda.getOptimizeDocConcentration()) for lda in (LDA(), LDA(optimizer="online"))]
    assert defaults == [(100, False), (20, True)]
    lda = LDA()
    assert lda.copy({lda.optimizer: "online"}).getMaxIter() == 20
    assert LDA(optimizer="online", maxIter=7).setOptimizer("cgs").getMaxIter() == 7


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"k": 0}, r"k: expected a number in \[1, 2147483647\], got 0"),
        ({"optimizer": "vb"}, "optimizer: expected one of cgs, online, em, got 'vb'"),
        ({"optimizer": "em", "topicConcentration": 1.0}, "topicConcentration: expected numbers above 1 with optimizer"),
        ({"docConcentration": [0.1, 0.2]}, "docConcentration: expected one number, or one for each of 5 topics, got 2"),
        ({"docConcentration": [-0.1]}, "docConcentration: expected finite positive numbers"),
        ({"topicConcentration": 0.0}, "topicConcentration: expected a finite positive number"),
        ({"topicConcentration": 1e306}, "topicConcentration: expected .* 1e\\+100 at most, got 1e\\+306"),
        ({"docConcentration": 1e306}, "docConcentration: expected .* 1e\\+100 at most"),
        ({"sync": "bsp"}, "sync: expected one of ssp, rotation, average, gradient, got 'bsp'"),
        ({"sync": "gradient"}, "sync: expected one of ssp, rotation, average with optimizer 'cgs', got 'gradient'"),
        ({"optimizer": "online", "sync": "ssp"}, "sync: expected one of gradient, average with optimizer 'online'"),
        ({"optimizer": "online", "subsamplingRate": 0.0}, r"subsamplingRate: expected a number in \(0, 1\], got 0.0"),
        ({"optimizer": "online", "localBatches": 2}, "localBatches: only optimizer 'online' with sync 'average'"),
        ({"optimizer": "online", "sync": "average", "localBatches": 0}, "localBatches: expected at least 1, got 0"),
        ({"via": "local", "numWorkers": 2}, "via: expected 'servers' or 'auto' for 2 workers"),
        ({"via": "local", "optimizer": "online"}, "via: optimizer 'online' steps on the servers, and 'local' is for"),
        ({"via": "local", "budgetS": 0.1}, "budgetS: turns of one worker that has all counts do not end by time"),
        ({"inference": "em"}, "inference: expected one of auto, sampled, variational, got 'em'"),
        ({"checkpointInterval": 0}, "checkpointInterval: expected -1 or a number from 1 on, got 0"),
    ],
)
def test_plan_when_params_cannot_be_then_the_error_names_one(params, message):
    with pytest.raises(ConfigError, match=message):
        plan(**{"k": 5, **params})
