"""Sparks of a program's own: tasks that run twice on a cluster, four workers, and a cluster without workers."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

APP_TIMEOUT_S = 300
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(APP_TIMEOUT_S + 60)]


@pytest.fixture(scope="module")
def said(run_program, environment, tmp_path_factory):
    """What ``own_sparks_app.py`` printed."""
    app, folder = Path(__file__).with_name("own_sparks_app.py"), tmp_path_factory.mktemp("cluster")
    env = environment | {"SPARK_LOCAL_DIRS": str(folder / "local")}
    finished = run_program(sys.executable, app, folder, env=env, timeout_s=APP_TIMEOUT_S)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


def test_slow_task_when_spark_runs_copy_then_both_count_once(said):
    assert said["copied"] == [3 * 1111] * 4


def test_a_slow_task_when_spark_speculates_then_a_copy_has_run(said):
    assert "copy-0-1" in said["copies"]


def test_a_stage_when_it_is_retried_then_its_tasks_count_once(said):
    assert said["retried"] == [2 * 111] * 4


def test_job_when_shuffle_files_are_lost_then_stages_rerun(said):
    assert max(said["stages"][:2]) > 0


def test_second_spark_context_when_stage_ids_restart_then_counts(said):
    assert said["second"] == [2] * 4


def test_ids_when_jobs_of_two_contexts_end_then_task_ids_go(said):
    assert said["scopes"] <= 8


def test_training_when_four_workers_then_trees_are_bit_identical(said):
    assert said["trees"] == [said["trees"][0]] * 3


def test_wait_for_slots_when_no_workers_then_names_both_numbers(said):
    kind, words = said["no workers"]
    assert kind == "SlotsError"
    assert re.search(r"spark://.* has 0 free task slots after 1 s, and 1 are needed", words)


@pytest.mark.parametrize("name", ["spark stopped", "created on a stopped spark"])
def test_a_context_when_spark_is_stopped_then_it_raises_stopped(name, said):
    kind, words = said[name]
    assert kind == "StoppedError"
    assert "SparkContext was stopped" in words


def test_wait_for_slots_when_context_is_stopped_then_raises(said):
    kind, words = said["context stopped"]
    assert kind == "StoppedError"
    assert "PS2Context was stopped" in words
