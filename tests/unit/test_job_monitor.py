"""A run's monitor asks Spark where workers' executors keep their logs until Spark knows it, ever more rarely."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ps2.run import job_monitor
from ps2.run.job_monitor import WorkerTasks

URLS = {0: "http://one/stderr", 1: "http://two/stderr"}


class Spark:
    """Knows the logs of a run's workers only from a certain question on."""

    is_local = False

    def __init__(self, late):
        self.late, self.questions = late, 0

    def check_alive(self): ...

    def log_urls(self, tag):
        self.questions += 1
        return dict(URLS) if self.questions > self.late else {}


def checked(monkeypatch, late, checks):
    monkeypatch.setattr(job_monitor, "CHECK_INTERVAL_S", -1.0)
    run = SimpleNamespace(attempts_lost={}, absent=list, workers=2, log_urls={}, failures=[])
    spark = Spark(late)
    tasks = WorkerTasks(spark, "tag", run)
    for _ in range(checks):
        tasks.check()
    return spark, run, tasks


@pytest.mark.parametrize(("late", "questions"), [(0, 1), (1, 2), (7, 8), (100, 10)])
def test_logs_when_spark_knows_them_late_then_it_is_asked_rarely(monkeypatch, late, questions):
    spark, run, _ = checked(monkeypatch, late, 1000)
    assert spark.questions == questions
    assert run.log_urls == (URLS if late < questions else {})


def test_logs_when_a_worker_starts_again_then_are_asked_anew(monkeypatch):
    spark, run, tasks = checked(monkeypatch, 0, 9)
    run.attempts_lost[1] = 1
    tasks.check()
    assert spark.questions == 2
