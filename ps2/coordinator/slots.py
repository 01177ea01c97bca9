"""Free task slots: without one, a Spark job waits for ever and says so only in the driver's log."""

from __future__ import annotations

import time
from typing import Any

from ps2.errors import SlotsError
from ps2.interrupts import sleep

POLL_S = 0.2


def wait_for_slots(spark_context: Any, wanted: int, timeout_s: float) -> None:
    """Wait until Spark has ``wanted`` free task slots, or raise SlotsError with both numbers.

    At once, if there will never be so many. With dynamic allocation Spark gets its executors only when a job asks for
    them: then there is nothing to wait for.
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
    """Return how many tasks Spark could run at once, less those that run now."""
    # The scheduler's own count: that of the public status tracker may be many seconds old.
    running = spark_context._jsc.sc().taskScheduler().runningTasksByExecutors().values().mkString(" ")
    return total_slots(spark_context) - sum(map(int, running.split()))


def total_slots(spark_context: Any) -> int:
    """Return how many tasks Spark could run at once."""
    scala_context = spark_context._jsc.sc()
    return int(scala_context.maxNumConcurrentTasks(scala_context.resourceProfileManager().defaultResourceProfile()))


def count_executors(spark_context: Any) -> int:
    """Return how many processes run Spark's tasks now: one, where Spark is local."""
    return max(1, int(spark_context._jsc.sc().taskScheduler().runningTasksByExecutors().size()))


def cores_each(spark_context: Any, tasks: int) -> int:
    """Return how many cores each of some tasks has that run alone."""
    return max(1, total_slots(spark_context) // tasks) * int(spark_context.getConf().get("spark.task.cpus", "1"))


def most_slots(spark_context: Any) -> int | None:
    """Return how many slots there can ever be; None if that is not known."""
    if spark_context._jsc.sc().isLocal():
        return total_slots(spark_context)
    conf = spark_context.getConf()
    executors, cores = conf.get("spark.dynamicAllocation.maxExecutors"), conf.get("spark.executor.cores")
    if not is_dynamic(spark_context) or executors is None or cores is None:
        return None
    return int(executors) * (int(cores) // int(conf.get("spark.task.cpus", "1")))


def is_dynamic(spark_context: Any) -> bool:
    """Tell whether Spark takes and gives up executors as its jobs need them."""
    wanted = spark_context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
    return wanted and not spark_context._jsc.sc().isLocal()
