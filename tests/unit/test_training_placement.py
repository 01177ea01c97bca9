"""Where a training runs: what decides it, and by what costs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from ps2.algorithms.frame.placement import MAX_LOCAL_WEIGHTS, Cores, Request, Work, place
from ps2.algorithms.topics.plan import MAX_BYTES, SamplingPlan
from ps2.algorithms.topics.settings import LDASettings
from ps2.algorithms.trees.problem import MAX_LOCAL_VALUES
from ps2.algorithms.trees.problem import work_of as trees_work
from ps2.errors import ConfigError
from tests import plans

# 100,000 values and rows, 100 clocks.
SMALL = Work.of_clocks(1e5, weights=100, clocks=100, value_s=4e-9)
LARGE = Work.of_clocks(1e9, weights=100, clocks=100, value_s=4e-9)
TWO_CORES, CLUSTER = Cores(2, 2, 1), Cores(4, 32, 4)
TREES = plans.boosting(maxDepth=6, maxBins=256)


def table(rows, values, features):
    """Return what a survey tells of a table."""
    return SimpleNamespace(rows=rows, cost=rows + values, dim=features)


SMALL_TREES = trees_work(table(7000, 28 * 7000, 28), TREES, 100)
SPARSE_TREES = trees_work(table(11_314, 5_000_000, 1_690_000), TREES, 10)
LARGE_TREES = trees_work(table(1_500_000, 42_000_000, 28), TREES, 50)
# KOS with 100 topics.
KOS = SamplingPlan(settings=LDASettings(k=100, sync="rotation"), vocabulary=6_906)
DOCUMENTS, TOKENS = 3430, 467_714


@pytest.mark.parametrize(
    ("work", "cores", "via"),
    [
        (SMALL, TWO_CORES, "local"),
        (LARGE, TWO_CORES, "servers"),
        (SMALL_TREES, TWO_CORES, "local"),
        (SMALL_TREES, CLUSTER, "local"),
        (SPARSE_TREES, TWO_CORES, "local"),
        (LARGE_TREES, TWO_CORES, "local"),
        (LARGE_TREES, CLUSTER, "servers"),
    ],
)
def test_place_when_auto_then_takes_the_faster(work, cores, via):
    seconds = work.seconds(cores)
    placement = place(work, cores, Request())
    assert (placement.via, seconds["local"] < seconds["servers"]) == (via, via == "local")
    assert placement.reason.startswith("chosen by predicted time: 'local' ")
    threads = work.local_threads if via == "local" else work.worker_threads
    assert placement.workers == (1 if via == "local" else cores.workers)
    assert placement.threads == min(threads, cores.local if via == "local" else cores.per_worker)


@pytest.mark.parametrize(
    ("request_", "work", "via", "reason"),
    [
        (Request("servers"), SMALL, "servers", "as requested"),
        (Request("servers", 1), SMALL, "servers", "as requested"),
        (Request("local"), LARGE, "local", "as requested"),
        (Request("local", 1), LARGE, "local", "as requested"),
        (Request(workers=2), SMALL, "servers", "numWorkers is 2"),
        (Request(workers=1), SMALL, "local", "chosen by predicted time: 'local' 244 ms, 'servers' 844 ms"),
        (Request(earlier_via="servers"), SMALL, "servers", "as the training began"),
        (Request(why_servers="checkpoints are made"), SMALL, "servers", "checkpoints are made"),
        (Request(), replace(SMALL, why_servers="it is too large"), "servers", "it is too large"),
        (Request(), replace(SMALL, weights=MAX_LOCAL_WEIGHTS + 1), "servers", "the model has 4,194,305 weights"),
    ],
)
def test_place_when_something_decides_then_says_what(request_, work, via, reason):
    cores = Cores(2, request_.workers or 2, 1)
    placement = place(work, cores, request_)
    assert (placement.via, placement.workers) == (via, 1 if via == "local" else cores.workers)
    assert placement.reason == reason


def test_place_when_local_and_several_workers_then_error():
    with pytest.raises(ConfigError, match="via: expected 'servers' or 'auto' for 2 workers"):
        place(SMALL, TWO_CORES, Request("local", 2))


@pytest.mark.parametrize("request_", [Request("local"), Request("local", 1, why_servers="it is too large")])
def test_place_when_local_is_impossible_then_error_says_why(request_):
    work = SMALL if request_.why_servers else replace(SMALL, why_servers="it is too large")
    with pytest.raises(ConfigError, match="via: 'local' cannot train this: it is too large"):
        place(work, TWO_CORES, request_)


def test_trees_when_values_are_too_many_then_auto_takes_servers():
    work = trees_work(table(10, MAX_LOCAL_VALUES + 1, 9), TREES, 1)
    assert place(work, TWO_CORES, Request("local")).via == "local"
    placement = place(work, TWO_CORES, Request())
    assert placement.via == "servers"
    assert placement.reason.startswith("50,000,001 stored values are more than")


@pytest.mark.parametrize(
    ("tokens", "options", "workers", "via", "reason"),
    [
        (TOKENS, KOS, 2, "local", "chosen by predicted time: 'local' 23.4 ms, 'servers' 43.8 ms"),
        (TOKENS, plans.changed(KOS, budgetS=0.1), 2, "servers", "budgetS is set"),
        (10**8, KOS, 16, "servers", "one worker would take"),
        (5 * 10**7, KOS, 16, "servers", "chosen by predicted time"),
    ],
)
def test_topics_when_costs_are_known_then_takes_the_faster(tokens, options, workers, via, reason):
    placement = place(replace(options, tokens=tokens).work(DOCUMENTS, 0.0), Cores(2, workers, 1), Request())
    assert (placement.via, placement.workers) == (via, 1 if via == "local" else workers)
    assert placement.reason.startswith(reason)
    needed = 4 * KOS.vocabulary * KOS.topics + 24 * tokens
    assert (needed > MAX_BYTES) == (reason == "one worker would take")


def test_topics_when_documents_are_few_then_as_many_threads():
    assert place(replace(KOS, tokens=TOKENS).work(3, 0.0), Cores(8, 1, 8), Request()).threads == 3
