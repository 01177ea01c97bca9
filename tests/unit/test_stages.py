"""A stage is taken for over when no job can run it any more, and never before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps2.coordinator.stages import UNKNOWN_STAGES, FinishedStages, SparkJob, Stages


class SparkTells:
    """Jobs by number, as the status tracker tells of them."""

    def __init__(self):
        self.jobs = {}

    def starts(self, number, *stages):
        self.jobs[number] = SparkJob(frozenset(stages), running=True)

    def ends(self, number):
        self.jobs[number] = SparkJob(self.jobs[number].stages, running=False)

    def poll(self, stages):
        return stages.poll(self.jobs.get, lambda: [number for number, job in self.jobs.items() if job.running])


@pytest.fixture
def spark():
    return SparkTells()


@pytest.fixture
def stages():
    return Stages()


def test_look_when_there_is_no_job_then_nothing_is_over(spark, stages):
    assert spark.poll(stages) == FinishedStages(0)


def test_look_when_a_job_runs_then_its_stages_are_live(spark, stages):
    spark.starts(0, 0, 1)
    assert spark.poll(stages) == FinishedStages(2, frozenset({0, 1}))


def test_look_when_a_job_has_ended_then_its_stages_are_over(spark, stages):
    spark.starts(0, 0, 1)
    spark.poll(stages)
    spark.ends(0)
    assert spark.poll(stages) == FinishedStages(2)


def test_look_when_job_came_and_went_then_its_stages_are_over(spark, stages):
    spark.starts(0, 0)
    spark.ends(0)
    assert spark.poll(stages) == FinishedStages(1)


def test_look_when_jobs_share_stage_then_lives_until_both_end(spark, stages):
    spark.starts(0, 0, 1)
    spark.starts(1, 0, 2)
    spark.ends(0)
    assert spark.poll(stages) == FinishedStages(3, frozenset({0, 2}))
    spark.ends(1)
    assert spark.poll(stages) == FinishedStages(3)


def test_look_when_unseen_job_shares_stage_then_it_stays_live(spark, stages):
    """The other was planned before the first had ended, perhaps while we were asking."""
    spark.starts(0, 0)
    spark.poll(stages)

    def ask(number):
        if number == 0:
            spark.starts(1, 0, 1)
            spark.ends(0)
        return spark.jobs.get(number)

    assert stages.poll(ask, list) == FinishedStages(2, frozenset({0, 1}))


def test_look_when_spark_forgot_running_job_then_stages_are_over(spark, stages):
    """It forgets those that have ended."""
    spark.starts(0, 0)
    spark.poll(stages)
    spark.jobs.clear()
    assert spark.poll(stages) == FinishedStages(1)


def test_look_when_there_is_gap_then_stages_in_it_count_as_live(spark, stages):
    """Spark drops events when it is too busy: a job that it has not told of may run."""
    spark.starts(0, 0)
    spark.ends(0)
    spark.poll(stages)
    spark.starts(5, 7)
    assert spark.poll(stages) == FinishedStages(8, frozenset(range(1, 8)))
    spark.ends(5)
    spark.starts(6, 3, 8)
    assert spark.poll(stages) == FinishedStages(9, frozenset({1, 2, 3, 4, 5, 6, 8}))


def test_look_when_gap_is_huge_then_keeps_only_some_stages(spark, stages):
    spark.starts(0, 0)
    spark.starts(1, 10**6)
    assert len(spark.poll(stages).live) <= UNKNOWN_STAGES + 2


def test_look_when_first_jobs_are_forgotten_then_begins_later(spark):
    spark.starts(700, 900)
    spark.ends(700)
    spark.starts(701, 901)
    assert spark.poll(Stages(700)) == FinishedStages(902, frozenset({901}))


@given(st.lists(st.tuples(st.sampled_from(["start", "share", "end", "poll"]), st.integers(0, 5)), max_size=60))
def test_look_when_jobs_come_and_go_then_over_stays_over(events):
    """Spark's own rules: new stages count up; a job may share stages with jobs that run."""
    spark, stages, over, next_stage = SparkTells(), Stages(), FinishedStages(), 0
    for event, which in events:
        running = [number for number, job in spark.jobs.items() if job.running]
        if event == "end" and running:
            spark.ends(running[which % len(running)])
        elif event in ("start", "share"):
            shared = spark.jobs[running[which % len(running)]].stages if event == "share" and running else ()
            new = range(next_stage, next_stage + 1 + which % 3)
            next_stage = new.stop
            spark.starts(len(spark.jobs), *shared, *new)
        elif event == "poll":
            over = spark.poll(stages)
        needed = {stage for job in spark.jobs.values() if job.running for stage in job.stages}
        assert all(stage >= over.below or stage in over.live for stage in needed)
    for number in spark.jobs:
        spark.ends(number)
    assert spark.poll(stages) == FinishedStages(next_stage)
