"""Spark as a client of a Spark Connect server: no SparkContext, no Java process, and no RDD.

What a SparkContext would do is done otherwise. Tasks get the access to the fleet, and large values, as files of the
session ("artifacts"). They get the fleet's epoch in a tag of their job. Tags also identify jobs, and the server's
progress reports contain the jobs' numbers of running tasks.
"""

from __future__ import annotations

import math
import re
import socket
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ps2.client.fleet import Loan
from ps2.client.task import EPOCH_TAG, write_task_file
from ps2.config import is_loopback
from ps2.errors import ConfigError, PS2Error, StoppedError
from ps2.run.spark.connect_endpoint import WATCH_S, CallWatch, is_reachable, local_address
from ps2.run.spark.files import BroadcastFile, ClientFiles
from ps2.run.spark.frames import RANK_SCHEMA, map_in_arrow, rank_of_batches
from ps2.run.spark.relayed_batches import RelayedQuery
from ps2.version import __version__

# The oldest supported version of Spark Connect, with tags, files of a session and progress reports.
OLDEST_VERSION = (4, 0)
DRIVER_HOST = "spark.driver.host"
# The server is considered lost after this time without an answer.
LOST_S = 5.0
RETRY_S = 0.25
# The time for which the number of task slots is cached.
SLOTS_S = 10.0
MAX_STOPPED_IDS = 50
# A number of rows that exceeds the cores of any cluster.
MANY_ROWS = 1 << 20
UNKNOWN_BYTES = 1 << 62  # the size of a DataFrame if the server has no estimate
STATISTICS = re.compile(r"Statistics\(sizeInBytes=([\d.]+(?:E\+?\d+)?) (\w+)")
UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40, "PiB": 50, "EiB": 60}
# The server's error for a session that was released or forgotten.
SESSION_ENDED = re.compile(r"INVALID_HANDLE\.SESSION_(?:CLOSED|CHANGED|NOT_FOUND)")
# Master URLs of local mode; the group is the number of threads, or "*".
LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")

_backends: weakref.WeakKeyDictionary[Any, ConnectSpark] = weakref.WeakKeyDictionary()


def connect_backend(session: Any) -> ConnectSpark:
    """Return the application of a SparkSession of Spark Connect."""
    if session not in _backends:
        _check_version(session)
        _backends[session] = ConnectSpark(session)
    return _backends[session]


class ConnectSpark:
    """The application of a Spark Connect server, for one session; see ``SparkBackend``."""

    context = None

    def __init__(self, session: Any) -> None:
        self._session = weakref.ref(session)
        self._settings: dict[str, str | None] = {}
        self._shared: dict[str, Any] = {"access": None, "fleet": None, "stopped": []}
        self._partitions: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._slots: tuple[float, int] | None = None  # the time of the last count, and the number of task slots
        self.jobs = _RunningJobs(session)
        self._silent_since_s: float | None = None  # since when the server does not answer; None: it does
        self._reached_s = -math.inf  # the time of its last answer
        self._watch = CallWatch(self.check_alive)
        self._end_reason: str | None = None  # why the session has ended, if PS2 has closed it

    @property
    def session(self) -> Any:
        session = self._session()
        if session is None:
            raise StoppedError("the SparkSession was deleted")
        return session

    @property
    def master(self) -> str:
        return f"{self.setting('spark.master')} (Spark Connect at {self._endpoint})"

    @property
    def application_id(self) -> str:
        return str(self.setting("spark.app.id"))

    @property
    def is_local(self) -> bool:
        return LOCAL.fullmatch(str(self.setting("spark.master"))) is not None

    @property
    def addresses(self) -> dict[str, str]:
        """The address by which executors reach this host: its own address in the connection to the Connect server.

        If the server is on this host, the address is the server's setting, unless the connection is a tunnel.
        """
        address = local_address(self._endpoint)
        if is_loopback(address):
            server_setting = self.setting(DRIVER_HOST)
            address = server_setting if server_setting is not None and _is_local_host(server_setting) else address
        return {DRIVER_HOST: address}

    @property
    def shares_host(self) -> bool:
        return str(self.setting("spark.master")).startswith("local") and is_loopback(local_address(self._endpoint))

    def setting(self, name: str) -> str | None:
        if name not in self._settings:
            with self.calling():
                self._settings[name] = self.session.conf.get(name, None)
        return self._settings[name]

    def is_stopped(self) -> bool:
        session = self._session()
        return self._end_reason is not None or session is None or bool(session.is_stopped)

    def end_reason(self) -> str:
        return self._end_reason or "the SparkSession was stopped"

    def check_alive(self) -> None:
        """Raise StoppedError if the server has not answered for ``LOST_S``. Its client would retry for ten minutes."""
        if self._end_reason is not None:
            raise StoppedError(self._end_reason)
        if is_reachable(self._endpoint):
            self._reached_s, self._silent_since_s = time.monotonic(), None
            return
        self._silent_since_s = self._silent_since_s or time.monotonic()
        if time.monotonic() - self._silent_since_s > LOST_S:
            self._close(
                f"the Spark Connect server at {self._endpoint} has not answered for {LOST_S:.0f} s: it has ended, or "
                "cannot be reached"
            )
            raise StoppedError(self.end_reason())

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Raise StoppedError instead of Spark's error if the session is over, or the server is lost during a call."""
        self._wait_until_reachable()
        try:
            with self._watch.watching():
                yield
        except PS2Error:
            raise
        except Exception as error:  # the error of a closed client depends on the call
            if self._end_reason is None and SESSION_ENDED.search(str(error)) is not None:
                self._close(
                    f"the session at the Spark Connect server {self._endpoint} has ended: it was stopped, or the "
                    "server has released it"
                )
            if not self.is_stopped():
                raise
            raise StoppedError(self.end_reason()) from None

    def _close(self, reason: str) -> None:
        """Record the reason for the session's end, and close its client, which ends calls that wait for the server."""
        self._end_reason = reason
        session = self._session()
        if session is not None:
            session.client.close()

    def _wait_until_reachable(self) -> None:
        """Wait until the server accepts connections; raise StoppedError after ``LOST_S``, or if the session is over."""
        while self._end_reason is not None or time.monotonic() - self._reached_s > WATCH_S:
            self.check_alive()
            if self._silent_since_s is not None:
                time.sleep(RETRY_S)

    def configure_python(self) -> None:
        """Do nothing: the server's host chooses the Python of its tasks. Spark compares the versions."""

    def start_python(self, access: str) -> None:
        """Do nothing: the Python workers belong to the server."""

    def python_error(self, message: str) -> ConfigError | None:
        faults = {"No module named 'ps2'": "has no ps2", "PYTHON_VERSION_MISMATCH": "is of another version"}
        fault = next((fault for text, fault in faults.items() if text in message), None)
        if fault is None:
            return None
        return ConfigError(
            f"the Python of tasks at {self.master} {fault}: this client has ps2 {__version__}; start the Connect "
            "server with the environment variable PYSPARK_PYTHON set to a Python of this version that has this ps2 on "
            "all executors' hosts"
        )

    def set_access(self, access: str) -> None:
        if access == self._shared["access"]:
            return
        self._shared["access"] = access
        if self._shared["fleet"] is not None:
            self._upload()

    def set_fleet(self, fleet: str | None) -> None:
        if fleet != self._shared["fleet"]:
            self._shared["fleet"] = fleet
            if fleet is not None:
                self._upload()

    def set_epoch(self, epoch: int) -> None:
        session = self.session
        for tag in [tag for tag in session.getTags() if tag.startswith(EPOCH_TAG)]:
            session.removeTag(tag)
        if epoch:
            session.addTag(f"{EPOCH_TAG}{epoch}")

    def mark_stopped(self, fleet_id: str) -> None:
        self._shared["stopped"] = [*self._shared["stopped"], fleet_id][-MAX_STOPPED_IDS:]
        self._upload()

    def status_tracker(self) -> None:
        return None

    def _upload(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            shared = self._shared
            file = write_task_file(Path(folder), str(shared["access"]), shared["fleet"], shared["stopped"])
            with self.calling():
                self.session.addArtifact(str(file), file=True)

    def total_slots(self) -> int:
        now_s = time.monotonic()
        if self._slots is None or now_s - self._slots[0] > SLOTS_S:
            self._slots = now_s, self._count_slots()
        return self._slots[1]

    def retries_tasks(self) -> bool:
        local = LOCAL.fullmatch(str(self.setting("spark.master")))
        if local is not None:
            return "," in str(local[0])
        return int(self.setting("spark.task.maxFailures") or 4) > 1

    def running_tasks(self) -> list[int]:
        """Return a zero for each executor of the server's settings: the server does not report running tasks."""
        cores = int(self.setting("spark.executor.cores") or 0)
        executors = int(self.setting("spark.executor.instances") or 0)
        if self.is_local:
            executors = 1
        elif not executors and cores:
            executors = self.total_slots() * self._cpus // cores
        return [0] * max(1, executors)

    def has_active_jobs(self) -> bool:
        return False

    def _count_slots(self) -> int:
        local = LOCAL.fullmatch(str(self.setting("spark.master")))
        if local is not None and local[1] != "*":
            return int(local[1] or 1) // self._cpus
        executors, cores = self.setting("spark.executor.instances"), self.setting("spark.executor.cores")
        if executors is not None and cores is not None:
            return int(executors) * (int(cores) // self._cpus)
        # By default, ``range`` has one partition for each core.
        from pyspark.sql import functions as F

        with self.calling():
            cores = self.session.range(MANY_ROWS).select(F.spark_partition_id().alias("part")).distinct().count()
        return max(1, int(cores) // self._cpus)

    @property
    def _cpus(self) -> int:
        return int(self.setting("spark.task.cpus") or 1)

    def row_source(self, data: Any) -> ConnectRows:
        return ConnectRows(self, data, self._partitions.get(data))

    def numbered_rows(self, partitions: int) -> ConnectRows:
        return ConnectRows(self, self.session.range(0, partitions, 1, partitions), partitions)

    def cancel_jobs(self, tag: str) -> None:
        with suppress(StoppedError), self.calling():  # the jobs of a session end with the session
            self.session.interruptTag(tag)

    def running_jobs_and_tasks(self, tag: str) -> tuple[int, int]:
        return self.jobs.counts(tag)

    def failure_messages(self, tag: str) -> list[str]:
        return []

    def log_urls(self, tag: str) -> dict[int, str]:
        return {}

    @contextmanager
    def job_tag(self, tag: str) -> Iterator[None]:
        session = self.session
        session.addTag(tag)
        try:
            with self.jobs.counting(tag):
                yield
        finally:
            session.removeTag(tag)

    def start_query(self, writer: Any, handle: Callable[[Any, int], None]) -> RelayedQuery:
        return RelayedQuery(writer, self, handle)

    def checkpoint_files(self) -> ClientFiles:
        return ClientFiles()

    def with_fixed_plan(self, frame: Any) -> tuple[Any, int | None]:
        return frame, self._partitions.get(frame)

    def set_partitions(self, frame: Any, partitions: int) -> None:
        self._partitions[frame] = partitions

    def estimated_bytes(self, frame: Any) -> int:
        """Return the size that the server's optimizer estimates, which is in the explanation of the plan."""
        match = STATISTICS.search(frame._explain_string(mode="cost"))
        if match is None or match[2] not in UNITS:
            return UNKNOWN_BYTES
        return int(float(match[1]) * (1 << UNITS[match[2]]))

    def broadcast(self, value: Any) -> BroadcastFile:
        with tempfile.TemporaryDirectory() as folder:
            shared = BroadcastFile.write(Path(folder), f"ps2-shared-{uuid.uuid4().hex}", value)
            with self.calling():
                self.session.addArtifact(f"{folder}/{shared.name}", file=True)
        return shared

    def loan(self) -> Loan | None:
        return None  # the plans, such as those of temporary views, are in the server

    def progress_bar_hider(self) -> Callable[[], None]:
        return lambda: None

    @property
    def _endpoint(self) -> str:
        """The server's ``host:port``, or only its host if the client's builder has no endpoint."""
        builder = self.session.client._builder
        return str(getattr(builder, "endpoint", builder.host))


class ConnectRows:
    """The rows of a DataFrame. The number of partitions is known only if PS2 has set it."""

    def __init__(self, spark: ConnectSpark, frame: Any, partitions: int | None) -> None:
        self._spark, self._frame, self.partitions = spark, frame, partitions

    def repartition(self, partitions: int) -> ConnectRows:
        return ConnectRows(self._spark, self._frame.repartition(partitions), partitions)

    def job(self, work: Callable[[Any], int]) -> ConnectJob:
        frame = map_in_arrow(self._frame, rank_of_batches(work), RANK_SCHEMA)
        return ConnectJob(self._spark, frame, set(self._spark.session.getTags()))


class ConnectJob:
    """The plan of a run's job, and the tags of the thread that created it."""

    tasks = None

    def __init__(self, spark: ConnectSpark, frame: Any, tags: set[str]) -> None:
        self._spark, self._frame, self._tags = spark, frame, tags

    def run(self, tag: str) -> None:
        session = self._spark.session
        session.clearTags()
        for job_tag in (*self._tags, tag):
            session.addTag(job_tag)
        with self._spark.jobs.counting(tag), self._spark.calling():
            self._frame.collect()


class _RunningJobs:
    """The number of running tasks by the tag of the job, from the server's progress reports."""

    def __init__(self, session: Any) -> None:
        self._local = threading.local()
        self._tasks: dict[str, int] = {}
        session.registerProgressHandler(self._report)

    @contextmanager
    def counting(self, tag: str) -> Iterator[None]:
        """Count the tasks of the jobs that this thread starts in the with-block."""
        self._local.tag = tag
        try:
            yield
        finally:
            self._local.tag = None
            self._tasks.pop(tag, None)

    def counts(self, tag: str) -> tuple[int, int]:
        """Return the number of running jobs with a tag, and of their running tasks."""
        tasks = self._tasks.get(tag)
        return (0, 0) if tasks is None else (1, tasks)

    def _report(self, *, inflight_tasks: int, done: bool, **_: object) -> None:
        tag = getattr(self._local, "tag", None)
        if tag is not None and done:
            self._tasks.pop(tag, None)
        elif tag is not None:
            self._tasks[tag] = inflight_tasks


def _is_local_host(host: str) -> bool:
    with suppress(OSError):
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


def _check_version(session: Any) -> None:
    version = tuple(int(part) for part in re.findall(r"\d+", str(session.version))[:2])
    if version < OLDEST_VERSION:
        raise ConfigError(
            f"Spark Connect {session.version}: PS2 needs a server of Spark {'.'.join(map(str, OLDEST_VERSION))} or "
            "later; with an older server, make the SparkSession without remote()"
        )
