"""Free task slots: without one, a Spark job waits for ever and says so only in the driver's log."""

from __future__ import annotations

import time
from typing import Any

from ps2.errors import SlotsError

POLL_S = 0.2


def wait_for_slots(spark_context: Any, wanted: int, timeout_s: float) -> None:
    """Wait until Spark has ``wanted`` free task slots, or raise SlotsError with both numbers.

    With dynamic allocation Spark gets its executors only when a job asks for them: then there is nothing to wait for.
    """
    if spark_context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        return
    deadline_s = time.monotonic() + timeout_s
    while (free := free_slots(spark_context)) < wanted:
        if time.monotonic() > deadline_s:
            raise SlotsError(
                f"Spark at {spark_context.master} has {max(free, 0)} free task slots after {timeout_s:.0f} s, and "
                f"{wanted} are needed; give the application more cores, or end what runs there"
            )
        time.sleep(POLL_S)


def free_slots(spark_context: Any) -> int:
    """Return how many tasks Spark could run at once, less those that run now."""
    scala_context = spark_context._jsc.sc()
    profile = scala_context.resourceProfileManager().defaultResourceProfile()
    # The scheduler's own count: that of the public status tracker may be many seconds old.
    running = scala_context.taskScheduler().runningTasksByExecutors().values().mkString(" ")
    return int(scala_context.maxNumConcurrentTasks(profile)) - sum(map(int, running.split()))
