"""The maximum number of task slots, by Spark's settings."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ps2.errors import SlotsError
from ps2.run.spark.backend_lookup import cores_each, count_executors, max_slots, wait_for_slots
from ps2.run.spark.classic import ClassicSpark

DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}


def spark(local=False, slots=2, executors=0, **settings):
    """An application with that many slots."""
    idle = SimpleNamespace(mkString=lambda between: between.join(["0"] * executors))
    scheduler = SimpleNamespace(runningTasksByExecutors=lambda: SimpleNamespace(values=lambda: idle))
    scala = SimpleNamespace(
        isLocal=lambda: local,
        taskScheduler=lambda: scheduler,
        maxNumConcurrentTasks=lambda profile: slots,
        resourceProfileManager=lambda: SimpleNamespace(defaultResourceProfile=lambda: None),
    )
    return ClassicSpark(SimpleNamespace(master="there", _jsc=SimpleNamespace(sc=lambda: scala), _conf=settings))


def test_count_executors_when_there_are_none_yet_then_one():
    assert count_executors(spark(local=True)) == 1
    assert count_executors(spark(executors=3)) == 3


def test_cores_each_then_slots_by_tasks_and_cores_of_a_slot():
    assert [cores_each(spark(slots=8), tasks) for tasks in (1, 3, 8, 9)] == [8, 2, 1, 1]
    assert cores_each(spark(slots=8, **{"spark.task.cpus": "2"}), 4) == 4


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, None),
        (DYNAMIC, None),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "3"}, None),
        (DYNAMIC | {"spark.dynamicAllocation.maxExecutors": "3", "spark.executor.cores": "5"}, 15),
        (
            DYNAMIC
            | {
                "spark.dynamicAllocation.maxExecutors": "3",
                "spark.executor.cores": "5",
                "spark.task.cpus": "2",
            },
            6,
        ),
    ],
)
def test_most_slots_when_settings_bound_executors_then_is_that(settings, most):
    assert max_slots(spark(**settings)) == most


def test_most_slots_when_spark_is_local_then_is_present_slots():
    assert max_slots(spark(local=True, slots=4, **DYNAMIC)) == 4


def test_wait_for_slots_when_capped_then_fails_with_numbers():
    few = spark(**DYNAMIC, **{"spark.dynamicAllocation.maxExecutors": "1", "spark.executor.cores": "2"})
    with pytest.raises(SlotsError, match=r"at most 2 task slots .*and 3 are needed"):
        wait_for_slots(few, 3, 1e6)


def test_wait_for_slots_when_allocation_is_dynamic_then_no_wait():
    wait_for_slots(spark(slots=0, **DYNAMIC), 3, 1e6)


def test_wait_for_slots_when_local_is_small_then_names_numbers():
    with pytest.raises(SlotsError, match="has 2 free task slots after 0 s, and 3 are needed"):
        wait_for_slots(spark(local=True), 3, 1e6)
