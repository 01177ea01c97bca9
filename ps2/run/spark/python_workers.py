"""Starts the Python workers of a local Spark early: their imports take longer than a small fit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

from ps2.run.spark.interpreter import has_program

log = logging.getLogger(__name__)

SETTING = "spark.python.daemon.module"
# It has imported what PS2's tasks need before it forks workers.
DAEMON = "ps2.run.daemon"
DESCRIPTION = "PS2 starts Spark's Python workers"


def fork_from_daemon(spark_context: Any) -> bool:
    """Let the Python workers of a local Spark be forks of PS2's daemon, unless the user has chosen another one.

    Spark's Java, which is this driver's, reads the setting before it starts a worker. It is not needed where tasks'
    interpreter chooses the daemon itself.

    Returns:
        Whether they are.
    """
    if has_program(spark_context):
        return True
    settings = spark_context._conf  # that of the running application
    if not settings.contains(SETTING):
        settings.set(SETTING, DAEMON)
    return bool(settings.get(SETTING) == DAEMON)


def start(spark_context: Any) -> threading.Thread | None:
    """Start the daemon, a worker, and what Spark SQL needs for the first use of Python, by a job of one task.

    The environment of its task must be the one that later tasks have, as Spark keeps a daemon for each.

    Returns:
        The thread that waits for the job's end; None: other jobs run, or there is no SparkSession.
    """
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None or spark_context.statusTracker().getActiveJobsIds():
        return None
    rows = session.range(0, 1, 1, 1).mapInArrow(_same, "id long")
    # From here on it is Java alone, which raises py4j's errors if the application is stopped meanwhile.
    arguments = [spark_context._jsc, rows._jdf.queryExecution()]
    thread = threading.Thread(target=_run, args=arguments, name="ps2-python-workers", daemon=True)
    thread.start()
    return thread


def _run(java_context: Any, execution: Any) -> None:
    from py4j.protocol import Py4JError

    try:
        java_context.setJobDescription(DESCRIPTION)
        try:
            execution.toRdd().count()
        finally:
            java_context.setJobDescription(None)
    except (Py4JError, OSError) as error:  # Spark was stopped; or the first task meets the fault again, and reports it
        log.debug("%s: %s", DESCRIPTION, error)


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    return batches
