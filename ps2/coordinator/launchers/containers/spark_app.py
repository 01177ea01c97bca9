"""The program of the fleet's Spark application: ``python -m ps2.coordinator.launchers.containers.spark_app``.

It runs one Spark job of one stage, with a task for each server. It reads its settings, which include the token, as a
line of JSON from stdin, and reports its state as lines of JSON on stdout. It ends when stdin is closed. The operating
system closes stdin if the process that started the program dies.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, TextIO

from ps2.coordinator.launchers.containers.hosting import TLS_VARIABLE, TOKEN_VARIABLE, host
from ps2.coordinator.launchers.containers.submission import required_settings
from ps2.logs import VARIABLE as LOG_VARIABLE
from ps2.run.spark import classic as spark
from ps2.run.spark.errors import failed_task
from ps2.run.spark.interpreter import VARIABLE as PYTHON_VARIABLE

GROUP = "ps2-fleet"
# Seconds between two reports of the application's state.
POLL_S = 0.5
# Maximum length of an error message in a report.
MAX_CHARS = 1000


def run(request: dict[str, Any], out: TextIO) -> None:
    """Start the application, and run its job until stdin is closed. ``out`` gets the reports."""
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError

    try:
        SparkContext._ensure_initialized()  # starts Java with spark-submit's arguments
    except PySparkRuntimeError:  # Java has printed the reason
        sys.exit(1)
    conf = SparkConf()
    for name, value in request["settings"].items():
        conf.set(name, value)
    conf.setAppName(request["name"])
    required = required_settings(dict(conf.getAll()), request["servers"], request["memory_bytes"])
    for name, value in required.items():
        conf.set(name, value)
    if (python := conf.get("spark.pyspark.python")) is not None:
        os.environ[PYTHON_VARIABLE] = python
    report = _Reporter(out)
    yarn = (
        YarnApplication(spark.java(), spark.jvm_conf(conf), request["tag"])
        if conf.get("spark.master") == "yarn"
        else None
    )
    if yarn is not None:
        conf.set("spark.yarn.tags", request["tag"])
    starting = _Starting(yarn)
    threading.Thread(target=_report_state, args=(report, starting), daemon=True).start()
    threading.Thread(target=_end_with_stdin, args=(starting,), daemon=True).start()
    try:
        context = starting.context = SparkContext(conf=conf)
        report(application=context.applicationId, master=context.master)
        # Pass secrets in the environment of Python workers: other users can read the settings of an application.
        context.environment[TOKEN_VARIABLE] = request["token"]
        if request["tls"] is not None:
            context.environment[TLS_VARIABLE] = json.dumps(request["tls"])
        if LOG_VARIABLE in os.environ:
            context.environment[LOG_VARIABLE] = os.environ[LOG_VARIABLE]
        launcher, generation, servers = request["launcher"], request["generation"], request["servers"]
        context.setJobGroup(GROUP, "one task for each server")

        def host_server(index: int, _: object) -> list[None]:
            host(index, launcher, generation)
            return []

        context.parallelize(range(servers), servers).mapPartitionsWithIndex(host_server).collect()
    except Py4JJavaError as error:
        report(fault=str(error.java_exception.toString())[:MAX_CHARS])
        sys.exit(1)


@dataclass
class _Starting:
    """The application while it starts. ``yarn``: None if the cluster is not YARN's; ``context``: None at first."""

    yarn: YarnApplication | None
    context: Any = None


class _Reporter:
    """Prints values as lines of JSON, but only those that have changed since the last call."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._reported: dict[str, object] = {}

    def __call__(self, **values: object) -> None:
        with self._lock:
            changed = {name: value for name, value in values.items() if self._reported.get(name) != value}
            if changed:
                self._reported.update(changed)
                print(json.dumps(changed), file=self._out, flush=True)


def _report_state(report: _Reporter, starting: _Starting) -> None:
    """Report the application's state in the cluster manager and the errors of its tasks, every ``POLL_S`` seconds."""
    from py4j.protocol import Py4JError

    while True:
        try:
            if starting.yarn is not None:
                report(manager=starting.yarn.status_text())
            if starting.context is not None:
                report(failures=_failures(starting.context))
        except (Py4JError, OSError) as error:  # the application is ending, or not submitted yet
            print(f"reading the state of the application: {error}", file=sys.stderr)
        time.sleep(POLL_S)


def _failures(context: Any) -> dict[str, tuple[int, str]]:
    """Return (number of failed task attempts, last error), by server index."""
    failures: dict[str, tuple[int, str]] = {}
    for index, message in spark.failed_tasks(context, context.statusTracker().getJobIdsForGroup(GROUP)):
        count, _ = failures.get(str(index), (0, ""))
        failures[str(index)] = count + 1, message
    return {index: (count, one_line(message)) for index, (count, message) in failures.items()}


def one_line(message: str) -> str:
    """Return the error of a failed task in one line: Python's error, else Java's without its stack trace."""
    if "Traceback" in message:
        return failed_task(Exception(message))[1]
    return " ".join(line.strip() for line in message.splitlines() if not line.startswith("\tat "))[:MAX_CHARS]


def _end_with_stdin(starting: _Starting) -> None:
    """Wait until stdin is closed; then end the application and this process."""
    from py4j.protocol import Py4JError

    while sys.stdin.readline():
        pass
    try:
        if starting.context is not None:
            starting.context.stop()
        elif starting.yarn is not None:  # the cluster manager has not started the application yet
            starting.yarn.kill()
    except (Py4JError, OSError) as error:
        print(f"ending the application: {error}", file=sys.stderr)
    spark.terminate_jvm()
    os._exit(0)


class YarnApplication:
    """One application of YARN, which is identified by its tag. Thread-safe."""

    def __init__(self, jvm: Any, conf: Any, tag: str) -> None:
        """``jvm``: py4j's view of Java's packages; ``conf``: Java's SparkConf; ``tag``: unique in the cluster."""
        self._java = jvm
        self._tag = tag
        self._client = jvm.org.apache.hadoop.yarn.client.api.YarnClient.createYarnClient()
        hadoop = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(conf)
        self._client.init(jvm.org.apache.hadoop.yarn.conf.YarnConfiguration(hadoop))
        self._client.start()

    def status_text(self) -> str:
        """Return a text with state, queue, containers and YARN's diagnostics; "" before the submission."""
        report = self._report()
        if report is None:
            return ""
        usage = report.getApplicationResourceUsageReport()
        containers = usage.getNumUsedContainers()
        text = (
            f"{report.getApplicationId()} is {report.getYarnApplicationState()} in queue {report.getQueue()}, with "
            f"{containers} container{'' if containers == 1 else 's'} ({usage.getUsedResources()}), including that of "
            "the application master"
        )
        diagnostics = (report.getDiagnostics() or "").strip().splitlines()
        return f"{text}; YARN's diagnostics: {' '.join(diagnostics)}" if diagnostics else text

    def kill(self) -> None:
        """Let YARN end the application, if it was submitted."""
        report = self._report()
        if report is not None:
            self._client.killApplication(report.getApplicationId())

    def _report(self) -> Any:
        request = self._java.org.apache.hadoop.yarn.api.protocolrecords.GetApplicationsRequest.newInstance()
        tags = self._java.java.util.HashSet()
        tags.add(self._tag)
        request.setApplicationTags(tags)
        applications = self._client.getApplications(request)
        return applications[0] if len(applications) else None


if __name__ == "__main__":
    # Java prints to file descriptor 1, too. Write the reports to a copy of stdout, and redirect descriptor 1 to stderr.
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run(json.loads(sys.stdin.readline()), reports)
