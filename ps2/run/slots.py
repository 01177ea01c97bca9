"""Task slots. A Spark job without a free slot waits forever; only the driver's log says so."""

from __future__ import annotations

import time
from typing import Any

from ps2.errors import SlotsError
from ps2.interrupts import sleep
from ps2.run.spark import is_local, running_tasks, setting, total_slots

POLL_S = 0.2


def wait_for_slots(spark_context: Any, wanted: int, timeout_s: float) -> None:
    """Wait until Spark has ``wanted`` free task slots, or raise SlotsError with both numbers.

    Raise at once if Spark can never have that many. With dynamic allocation Spark gets executors when a job asks for
    them, so this function does not wait.
    """
    most = most_slots(spark_context)
    if most is not None and most < wanted and is_dynamic(spark_context):
        raise SlotsError(
            f"Spark at {spark_context.master} has at most {most} task slots (spark.dynamicAllocation.maxExecutors), "
            f"and {wanted} are needed"
        )
    if is_dynamic(spark_context):
        return
    began_s = time.monotonic()
    while (free := free_slots(spark_context)) < wanted:
        waited_s = time.monotonic() - began_s
        if waited_s > timeout_s or (most is not None and most < wanted):
            raise SlotsError(
                f"Spark at {spark_context.master} has {max(free, 0)} free task slots after {waited_s:.0f} s, and "
                f"{wanted} are needed; give the application more cores, or end what runs there"
            )
        sleep(POLL_S)


def free_slots(spark_context: Any) -> int:
    """Return how many more tasks Spark can start now."""
    return total_slots(spark_context) - sum(running_tasks(spark_context))


def count_executors(spark_context: Any) -> int:
    """Return how many processes run Spark's tasks now. In local mode that is one."""
    return max(1, len(running_tasks(spark_context)))


def cores_each(spark_context: Any, tasks: int) -> int:
    """Return how many cores each task has if ``tasks`` tasks share the cluster."""
    return max(1, total_slots(spark_context) // tasks) * int(setting(spark_context, "spark.task.cpus", "1"))


def cores_of_one(spark_context: Any) -> int:
    """Return how many cores the process has that one task runs in, if no other task runs there."""
    if is_local(spark_context):
        return total_slots(spark_context) * int(setting(spark_context, "spark.task.cpus", "1"))
    return int(setting(spark_context, "spark.executor.cores", "1"))


def most_slots(spark_context: Any) -> int | None:
    """Return how many slots Spark can ever have; None if that is unknown."""
    if is_local(spark_context):
        return total_slots(spark_context)
    executors = setting(spark_context, "spark.dynamicAllocation.maxExecutors")
    cores = setting(spark_context, "spark.executor.cores")
    if not is_dynamic(spark_context) or executors is None or cores is None:
        return None
    return int(executors) * (int(cores) // int(setting(spark_context, "spark.task.cpus", "1")))


def is_dynamic(spark_context: Any) -> bool:
    """Return whether Spark allocates executors dynamically."""
    if is_local(spark_context):
        return False
    return setting(spark_context, "spark.dynamicAllocation.enabled", "false") == "true"
