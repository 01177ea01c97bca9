"""Spark's own reasons to run a task twice, on a cluster: copies of slow tasks, stages whose files are lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port

APP_TIMEOUT_S = 300
pytestmark = pytest.mark.timeout(APP_TIMEOUT_S + 60)


@pytest.fixture(scope="module")
def said(environment, tmp_path_factory):
    """What ``exactly_once_app.py`` printed."""
    app = Path(__file__).with_name("exactly_once_app.py")
    done = subprocess.run(
        [sys.executable, app, tmp_path_factory.mktemp("cluster"), str(free_port())],
        capture_output=True,
        text=True,
        timeout=APP_TIMEOUT_S,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


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
