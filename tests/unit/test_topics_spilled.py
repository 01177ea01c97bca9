"""Topics of documents in files are those of documents in memory, bit for bit."""

from __future__ import annotations

import pytest
from topics_training import PLAN, SETTINGS, WORDS, arrays, documents

from ps2.algorithms.frame.settings import with_values
from ps2.algorithms.topics import corpus
from ps2.algorithms.topics.online import OnlineProgram
from ps2.algorithms.topics.plan import OnlinePlan, TopicsPlan
from ps2.algorithms.topics.sampling import SamplingProgram
from ps2.data.spilling import Spill
from tests.in_process import training_context
from tests.plans import changed

SMALL, LARGE = 1 << 8, 1 << 30
ONLINE = OnlinePlan(settings=with_values(SETTINGS, optimizer="online", sync="gradient"), vocabulary=WORDS)


@pytest.fixture(params=[SMALL, LARGE], ids=["batches in files", "batches in memory"])
def limit_bytes(request):
    return request.param


def fit(program, plan, mode, limit_bytes, monkeypatch, workers=2):
    """Return the counts, alpha and the objectives of a training."""
    monkeypatch.setattr(TopicsPlan, "spilling", property(lambda plan: Spill(plan.settings.spill, limit_bytes, 512)))
    is_sampling = program is SamplingProgram
    facts = {"workers": workers, "tokens": int(documents().sum())} if is_sampling else {}
    with training_context(2) as ps:
        result = program.train(ps, arrays(documents(), workers), changed(plan, spill=mode, **facts))
    assert len(result.history.spilled) == (workers if mode == "always" else 0)
    return result.model.counts.tolist(), result.model.alpha.tolist(), result.history.objective


@pytest.mark.parametrize("rate", [0.4, 1.0])
@pytest.mark.parametrize("sync", ["gradient", "average"])
def test_online_when_documents_are_in_files_then_same_topics(monkeypatch, limit_bytes, sync, rate):
    batches = {"localBatches": 3} if sync == "average" else {}
    plan = changed(ONLINE, sync=sync, subsamplingRate=rate, optimizeDocConcentration=True, **batches)
    expected = fit(OnlineProgram, plan, "never", limit_bytes, monkeypatch)
    assert fit(OnlineProgram, plan, "always", limit_bytes, monkeypatch) == expected


@pytest.mark.parametrize("sampler", ["dense", "sparse"])
@pytest.mark.parametrize("sync", ["ssp", "rotation", "average"])
def test_cgs_when_documents_are_in_files_then_same_topics(monkeypatch, sync, sampler):
    plan = changed(PLAN, sync=sync, sampler=sampler, optimizeDocConcentration=True)
    expected = fit(SamplingProgram, plan, "never", LARGE, monkeypatch)
    monkeypatch.setattr(corpus, "SLICE_TOKENS", 100)
    assert fit(SamplingProgram, plan, "always", LARGE, monkeypatch) == expected


@pytest.mark.parametrize("limit_bytes", [SMALL, LARGE])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("sampler", ["dense", "sparse"])
def test_local_cgs_when_documents_are_in_a_file_then_same(monkeypatch, sampler, threads, limit_bytes):
    plan = changed(PLAN, sampler=sampler, is_local=True, threads=threads)
    expected = fit(SamplingProgram, plan, "never", limit_bytes, monkeypatch, workers=1)
    monkeypatch.setattr(corpus, "SLICE_TOKENS", 100)
    assert fit(SamplingProgram, plan, "always", limit_bytes, monkeypatch, workers=1) == expected
