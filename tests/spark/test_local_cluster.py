"""Executors that are processes of their own, one of them killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.nightly
DIM, STEPS, LR = 30, 5, 0.1


@pytest.fixture(scope="module")
def said(run_program, tmp_path_factory):
    """What ``local_cluster_app.py`` printed."""
    app = Path(__file__).with_name("local_cluster_app.py")
    finished = run_program(sys.executable, app, tmp_path_factory.mktemp("cluster"))
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


def model():
    """The program's training in NumPy."""
    xs = np.random.default_rng(1).normal(size=(80, DIM))
    ys = (xs.sum(axis=1) > 0).astype(float)
    w, v, s = np.zeros(DIM), np.zeros(DIM), np.zeros(DIM)
    for step in range(1, STEPS + 1):
        g = sum(x.T @ (1 / (1 + np.exp(-(x @ w))) - y) for x, y in zip(np.split(xs, 4), np.split(ys, 4), strict=True))
        g = g / len(xs)
        v = 0.9 * v + 0.1 * g
        s = 0.999 * s + 0.001 * g**2
        w = w - LR / (np.sqrt(s / (1 - 0.999**step)) + 1e-8) * v / (1 - 0.9**step)
    return w


def test_training_when_on_two_executors_then_weights_match_numpy(said):
    np.testing.assert_allclose(said["weights"], model(), rtol=1e-9)


def test_cluster_when_running_then_has_two_executor_processes(said):
    assert said["executors"] == 2


def test_page_when_workers_run_then_links_to_executors_logs(said):
    assert len(set(said["logs"])) == 2
    assert all(url.startswith("http://") and url.endswith("stderr") for url in said["logs"])


def test_the_token_when_executors_use_it_then_it_is_in_no_argv(said):
    assert said["token in argv"] == []


def test_secrets_when_used_by_tasks_then_not_in_event_log(said):
    assert said["in event log"] == []


def test_a_job_when_an_executor_is_killed_then_its_sum_is_right(said):
    assert said["total"] == 6666


def test_job_when_executor_is_killed_then_task_has_run_twice(said):
    assert said["attempts"] > 4
