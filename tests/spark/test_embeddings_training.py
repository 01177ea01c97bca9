"""Vectors learned by workers and servers, wherever they are computed; workers that die meanwhile."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import embedding_training
import numpy as np
import pytest
from embedding_training import COUNT, LENGTH, RECIPE, WORDS, margin, read, read_pairs, trained
from pyspark import cloudpickle

from ps2.errors import LimitError, PS2Error

TOKENS = COUNT * LENGTH


@pytest.fixture(scope="module", autouse=True)
def helpers_by_value(by_value):
    cloudpickle.register_pickle_by_value(embedding_training)
    yield
    cloudpickle.unregister_pickle_by_value(embedding_training)


@pytest.mark.parametrize("via", ["local", "rows", "servers"])
def test_training_when_done_then_community_words_are_near(ps, via):
    steps = []
    found = trained(ps, replace(RECIPE, via=via), on_step=steps.append)
    assert found.vectors.shape == found.contexts.shape == (WORDS, RECIPE.size)
    assert margin(found) > 0.5
    losses = found.history.objective
    assert losses[-1] < losses[0]
    # Of 4.2 to begin with; on servers a little more, as several batches are on their way there.
    assert losses[-1] == pytest.approx(2.35, abs=0.3)
    assert [step.number for step in steps] == [1, 2, 3]
    assert steps[-1].metrics["step_size"] == pytest.approx(1e-4 * RECIPE.step_size)
    assert via in found.history.reason


class DyingRead:
    """Reads for a worker that is killed (-9) when it asks for its sentences of the second epoch; once."""

    def __init__(self, path):
        self._path = path

    def __call__(self, worker, rows):
        kept = read(worker, rows)
        path, rank = self._path, worker.rank

        class Dying:
            tokens = kept.tokens

            def batches(self, epoch):
                if rank == 1 and epoch == 1 and not os.path.exists(path):
                    Path(path).touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return kept.batches(epoch)

        return Dying()


@pytest.mark.parametrize("via", ["local", "rows", "servers"])
def test_training_when_a_worker_is_killed_then_it_goes_on(ps, tmp_path, via):
    found = trained(ps, replace(RECIPE, via=via), read=DyingRead(str(tmp_path / "died")))
    assert (tmp_path / "died").exists()
    assert margin(found) > 0.5
    assert found.history.steps == RECIPE.epochs


@pytest.mark.parametrize("via", ["local", "rows", "servers"])
def test_training_when_the_step_size_is_absurd_then_it_says_so(ps, via):
    with pytest.raises(PS2Error, match="the training has diverged; a smaller stepSize than 1e\\+38 may help"):
        trained(ps, replace(RECIPE, via=via, step_size=1e38))


def test_training_when_tables_do_not_fit_then_names_needed_size(ps):
    with pytest.raises(
        LimitError,
        match=r"vectorSize=10,000: vectors of 2,000,000,000 words take 160,000,000,000,000 bytes in 2 tables",
    ):
        trained(ps, replace(RECIPE, vocabulary=2 * 10**9, size=10_000))


def test_training_when_first_order_then_contexts_are_vectors(ps):
    found = trained(ps, replace(RECIPE, architecture="edges", order=1, total=TOKENS // 2), read=read_pairs)
    assert found.contexts is None
    assert np.isfinite(found.vectors).all()
    assert margin(found) > 0.5


def test_training_when_method_is_auto_then_says_choice_and_why(ps):
    found = trained(ps, replace(RECIPE, via="auto", epochs=1))
    assert re.search(r"by '(local|rows|servers)', chosen by predicted microseconds per token", found.history.reason)
    assert all(name in found.history.reason for name in ("'local'", "'rows'", "'servers'"))
