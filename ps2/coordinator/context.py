"""``PS2Context``: the public interface of PS2 in the driver (PS2 paper, sections 3.2 and 5.1)."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from ps2.client.batch import batch
from ps2.client.dcv import DCV
from ps2.client.task import task_context
from ps2.coordinator.application import user_backend
from ps2.coordinator.checkpoints import Checkpoint
from ps2.coordinator.conf import PS2Conf, driver_host_settings, with_overrides
from ps2.coordinator.coordinator import Coordinator
from ps2.coordinator.fleet_status import FleetStatus, VectorInfo, ask_status, ask_vectors
from ps2.coordinator.monitoring import overview
from ps2.coordinator.recovery import Recovery
from ps2.errors import UsageError
from ps2.interrupts import shielded
from ps2.name_hints import hints_keywords
from ps2.run.options import RunOptions
from ps2.run.result import RunResult
from ps2.run.spark.backend import SparkBackend
from ps2.run.spark.backend_lookup import wait_for_slots
from ps2.text_tables import to_html

log = logging.getLogger(__name__)

# Default of ``waitForSlots``: long enough for a cluster to start executors.
SLOTS_TIMEOUT_S = 60.0


class PS2Context:
    """The driver's connection to a fleet of servers, created by ``getOrCreate``. A process has at most one at a time.

    The context is a context manager, too: ``with PS2Context.getOrCreate(spark, servers=2) as ps: ...``
    """

    _active: PS2Context | None = None
    _class_lock = threading.RLock()

    @classmethod
    @shielded
    def getOrCreate(  # noqa: PLR0913 - the most common settings; ``conf`` has all
        cls,
        spark: Any = None,
        servers: int | None = None,
        *,
        fleet: str | Sequence[str] | None = None,
        namespace: str | None = None,
        tokenFile: str | None = None,
        driverHost: str | None = None,
        launcher: str | None = None,
        memoryLimit: int | None = None,
        ops: str | Sequence[str] | None = None,
        replicas: int | None = None,
        checkpointDir: str | None = None,
        checkpointEveryS: float | None = None,
        checkpointEverySteps: int | None = None,
        restore: str | None = None,
        dashboard: bool | None = None,
        conf: PS2Conf | None = None,
        **moved: Any,
    ) -> PS2Context:
        """Return the running context, or start one.

        The keywords are the most common settings of ``PS2Conf``, which documents all settings.

        Args:
            spark: the SparkSession (classic or Spark Connect) or SparkContext whose tasks use the fleet; None: the
                active one, if any. Without Spark, only this process can use vectors.
            servers: number of servers to start (default 2).
            fleet: addresses of running servers to attach to, instead of ``servers``: "host:port,host:port" or a list;
                or the name of a fleet that ``ps2 launch --name`` started on this host.
            namespace: name of this application on the servers of ``fleet``, which other drivers may use at the same
                time. Default "default".
            tokenFile: file with the token of ``fleet``.
            driverHost: host name or address by which tasks reach this host. Sets advertiseAddress, and makes the driver
                listen on all addresses.
            launcher: "local" (child processes), "spark" (containers of the cluster), or the name of another package's
                launcher.
            memoryLimit: maximum bytes of each server's arrays.
            ops: names of modules that declare your own operations (docs/kernels.md).
            replicas: 1: keep a copy of each shard on another server.
            checkpointDir: folder for checkpoints: a path or fsspec URL that driver and servers share.
            checkpointEveryS: seconds between two checkpoints.
            checkpointEverySteps: number of steps (``step``) between two checkpoints.
            restore: folder of the checkpoint to start from, or a folder of checkpoints, whose newest one is used.
                "latest": the newest one in checkpointDir, if there is one.
            dashboard: False: no live page (docs/dashboard.md).
            conf: all other settings. A keyword of this call takes precedence.
            moved: must be empty; if it contains a setting of ``PS2Conf``, the error explains how to set it.

        Raises:
            ConfigError: settings are invalid or differ from the running context's; or the Python of tasks on this host
                lacks ps2.
            StoppedError: the SparkContext is stopped.
            UsageError: in a task, or in a process that the driver of the running context has forked.
            LaunchError, UnavailableError, AuthError: the fleet cannot be started or reached.
            CheckpointMissingError, CheckpointCorruptError, LimitError: ``restore`` cannot be read, or does not fit the
                servers' memory.
        """
        if task_context() is not None:
            raise UsageError(
                "a PS2Context belongs to the driver; in a task, use vectors from the closure of its function"
            )
        with cls._class_lock:
            settings: dict[str, Any] = {
                "servers": servers,
                "fleet": fleet,
                "namespace": namespace,
                "tokenFile": tokenFile,
                "launcher": launcher,
            }
            settings |= {"memoryLimit": memoryLimit, "ops": ops, "replicas": replicas, "restore": restore}
            settings |= {"checkpointDir": checkpointDir, "checkpointEveryS": checkpointEveryS, "dashboard": dashboard}
            settings |= driver_host_settings(conf, driverHost)
            requested = with_overrides(conf, moved, **settings, checkpointEverySteps=checkpointEverySteps)
            backend = user_backend(spark)
            running = cls._active
            if running is not None:
                running._coordinator.check_running()
            if backend is not None and (running is None or running._coordinator.application.spark != backend):
                backend.configure_python()
            if running is not None:
                running.conf.check_same(requested)
                if backend is not None:
                    running._coordinator.application.give_access(backend)
                return running
            cls._active = context = cls(backend, requested)
            return context

    @classmethod
    def getActive(cls) -> PS2Context | None:
        """Return the running context, or None."""
        return cls._active

    def __init__(self, spark: SparkBackend | None, conf: PS2Conf) -> None:
        """Internal: use ``getOrCreate``."""
        self._coordinator = Coordinator(spark, conf)

    @property
    def conf(self) -> PS2Conf:
        """The settings in effect. ``print(ps.conf)`` shows one setting per line."""
        return self._coordinator.conf

    @property
    def servers(self) -> list[str]:
        """``host:port`` of each server."""
        return self._coordinator.fleet.master.registry.addresses()

    @property
    def dashboardUrl(self) -> str | None:
        """A link to the live page, for one browser (docs/dashboard.md); None: there is no page."""
        return self._coordinator.monitoring.page_url

    @property
    def metricsUrl(self) -> str | None:
        """The URL that Prometheus scrapes (``metricsListen``, docs/metrics.md); None: there is none."""
        return self._coordinator.monitoring.metrics_url

    @property
    def sparkContext(self) -> Any:
        """The SparkContext whose tasks use the fleet; None without Spark, and with Spark Connect."""
        backend = self._coordinator.application.spark
        return None if backend is None else backend.context

    @property
    def spark(self) -> Any:
        """The SparkSession (classic or Spark Connect) whose tasks use the fleet; None: there is none."""
        backend = self._coordinator.application.spark
        return None if backend is None else backend.session

    def batch(self) -> AbstractContextManager[None]:
        """Send the calls of a ``with`` block in one request per server; see ``ps2.batch``."""
        self._coordinator.check_running()
        return batch()

    @shielded
    def flush(self) -> None:
        """Wait until the servers have applied all additions of this process with ``wait=False``; raise their errors."""
        self._running.session.dispatch.flush()

    @shielded
    def memory(self) -> list[tuple[int, int]]:
        """Return (memory limit, used memory) of each server in bytes, in order of index."""
        return self._running.memory()

    @shielded
    def status(self) -> FleetStatus:
        """Return memory, requests, matrices and operations of all servers. ``print(ps.status())`` shows tables."""
        fleet = self._running.fleet
        return ask_status(fleet.master, fleet.control)

    @shielded
    def vectors(self) -> list[VectorInfo]:
        """Return the named vectors, sorted by name, with kind, layout, dim, dtype, matrix, row and bytes."""
        fleet = self._running.fleet
        return ask_vectors(fleet.master, fleet.control)

    @hints_keywords
    @shielded
    def checkpoint(self, path: str | None = None, step: int | None = None) -> Checkpoint | None:
        """Write a consistent checkpoint of the whole fleet; return when it is complete.

        If ``onClock`` of a run calls this method, it returns None, and the checkpoint is written after ``onClock`` has
        returned, before any worker continues. The checkpoint includes the message that ``onClock`` returns. In another
        thread, this call waits until ``onClock`` of all active runs has returned.

        Args:
            path: folder or fsspec URL that driver and servers share. The checkpoint is a new folder in it. Default: the
                context's checkpointDir.
            step: number of the first step after the checkpoint; default: ``nextStep``.

        Raises:
            ConfigError: there is no path, the path is not writable, or ``step`` is not an integer >= 0.
            RecoveryError: the checkpoint failed (disk full, a server died). The previous checkpoint stays the newest.
        """
        coordinator = self._running
        coordinator.session.dispatch.flush()
        return coordinator.steps.checkpoint(path, step)

    @shielded
    def rollBack(self, timeoutS: float = 600.0) -> int:
        """Roll the whole fleet back to its newest checkpoint; return the next step (``nextStep``).

        Servers reject late requests from tasks of earlier jobs.

        Raises:
            RecoveryError: there is no readable checkpoint, or the rollback takes longer than ``timeoutS`` seconds.
            UsageError: a run is in progress.
        """
        self._running.roll_back(timeoutS)
        return self.nextStep

    @contextlib.contextmanager
    def step(self, number: int | None = None) -> Iterator[int]:
        """Run one step of a loop that can roll back to a checkpoint. Periodic checkpoints are made after a step.

        Example::

            while ps.nextStep < 100:
                try:
                    with ps.step() as t:
                        ...
                except RolledBack:
                    pass  # nextStep is now the first step after the checkpoint

        Args:
            number: number of the step; default: ``nextStep``.

        Raises:
            RolledBack: the fleet rolled back to a checkpoint. Errors that the rollback caused are replaced by this one.
        """
        with self._running.steps.step(number) as current:
            yield current

    @property
    def nextStep(self) -> int:
        """The number of the next step; after a rollback, the number of the first step after the checkpoint."""
        return self._coordinator.steps.next

    @property
    def recoveries(self) -> list[Recovery]:
        """The recoveries of lost servers, oldest first."""
        return self._coordinator.recoveries.all()

    @shielded
    def vector(self, name: str) -> DCV:
        """Return a named vector, which this driver, the previous driver or the restored checkpoint has created.

        Raises:
            NotFoundError: there is no vector with this name; the message lists the names.
        """
        self._coordinator.check_running()
        return DCV.existing(name)

    @shielded
    def waitForSlots(self, slots: int = 1, timeout: float = SLOTS_TIMEOUT_S) -> None:
        """Wait until Spark can run ``slots`` tasks at the same time.

        Raises:
            SlotsError: Spark has fewer slots after ``timeout`` seconds; the message has both numbers.
            StoppedError: this context or the SparkContext was stopped.
        """
        wait_for_slots(self._running.application.running("waitForSlots"), slots, timeout)

    @hints_keywords
    @shielded
    def run(  # noqa: PLR0913 - keywords
        self,
        data: Any,
        worker_fn: Callable[..., Any],
        workers: int | None = None,
        staleness: int | None = 0,
        *,
        onClock: Callable[..., object] | None = None,
        onLog: Callable[[int, int, str, float], object] | None = None,
        timeoutS: float | None = None,
        firstClock: int = 0,
        seed: int = 0,
        read: Callable[..., Any] | None = None,
        onEnd: Callable[[], object] | None = None,
        progress: bool = False,
    ) -> RunResult:
        """Run long-lived workers: one Spark stage whose tasks keep their rows in memory and loop over clocks.

        Several threads can call this at the same time. A run waits until all its workers' task slots are free.

        Example::

            def work(worker, rows):
                x, y = ...  # once
                for t in worker.clocks(100):
                    w = weight.pull(keys)
                    gradient.add(my_gradient(w, x, y), keys)


            ps.run(data, work, workers=4, onClock=lambda t: update(t))

        Spark restarts a task that dies. The new attempt continues with the first clock that the old attempt had not
        finished, and each change is applied once. To stop early, return ``ps2.STOP`` from ``onClock``.

        Args:
            data: a DataFrame (``rows`` is an iterator of ``pyarrow.RecordBatch``) or an RDD (``rows`` is an iterator of
                records). For small experiments also data in the driver's memory, which are split in order into equal
                parts: a pandas DataFrame (``rows`` is an iterator of ``pyarrow.RecordBatch``), or a list, tuple or
                range (``rows`` is an iterator of elements).
            worker_fn: function that is called as ``worker_fn(worker, rows)`` once in each worker; see ``ps2.Worker``.
            workers: number of workers; the data are repartitioned if necessary. Default: one worker per partition (or
                per row of the driver's data), but not more than task slots.
            staleness: number of clocks that a worker may be ahead of the slowest worker. 0 is BSP. s > 0 is SSP: what a
                worker reads in clock t includes all updates of clocks up to t - s - 1. None is ASP: no worker waits.
            onClock: function that is called in the driver, in order, with each clock t that all workers have finished,
                before any worker starts clock t + staleness + 1. It may return a ``ps2.Message``, which all workers get
                when they start that clock (``Worker.message``), or ``ps2.STOP``, which ends the run: no worker starts a
                clock that no worker has started yet. Other return values are ignored. If the function has two
                parameters, it also gets the list of merged reports of the workers (``Worker.report``).
            onLog: function that is called in the driver with rank, clock, name and value of each ``worker.log``, while
                the job runs.
            timeoutS: maximum duration of the run from the start of its workers, in seconds.
            firstClock: number of the first clock, such as ``nextStep`` after ``restore=``.
            seed: seed of ``worker.rng``; non-negative.
            read: function that is called first, as ``read(worker, rows)``, once in each task. ``worker_fn`` gets its
                result instead of the rows, and must not modify it. With ``read``, a worker whose call fails because the
                fleet rolled back is called again in the same task, which does not count as a failure of the task.
            onEnd: function that is called in the driver when ``worker_fn`` has returned in all workers, before their
                tasks end. It can read vectors that belong to the workers. If the fleet rolls back at that time, workers
                and ``onClock`` continue from the checkpoint, and ``onEnd`` is called again at the end.
            progress: True: show clocks, workers and logged values in a line of the terminal or notebook.

        Returns:
            The workers' results by rank, like a list. ``summary()`` prints how workers spent their time, and ``plot()``
            draws it.

        Raises:
            UsageError: ``worker_fn`` or an element of a list cannot be pickled, or the call is within ``onClock`` or a
                step.
            ConfigError: an argument is invalid, or the Python of the tasks lacks ps2 or has another version of it.
            SlotsError: Spark can never have as many task slots as workers, or other jobs than runs use them.
            LimitError: a request of ``worker_fn`` exceeds a server's memory. The message has rank and clock. The
                request is not repeated.
            WorkerError: ``worker_fn`` failed as often as Spark allows a task to fail. The message has rank, clock and
                traceback.
            DeadlineError: the run has not ended after ``timeoutS``.
            StoppedError: the context was stopped during the run, or the job was cancelled.
            RolledBack: the fleet rolled back to a checkpoint from before the run.
        """
        options = RunOptions(*(workers, staleness, onClock, onLog, timeoutS, firstClock, seed, read, onEnd, progress))
        return self._running.run(data, worker_fn, options)

    @shielded
    def stop(self) -> None:
        """End a started fleet, or free this context's matrices on an attached fleet.

        A second call does nothing, and neither does a call in a forked child, because the fleet belongs to its parent.

        Raises:
            PS2Error: additions with ``wait=False`` have failed. The context has stopped nevertheless.
        """
        if not self._coordinator.is_of_this_process:
            return
        with self._class_lock:
            if PS2Context._active is self:
                PS2Context._active = None
        self._coordinator.stop()

    def __enter__(self) -> PS2Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _repr_html_(self) -> str:
        coordinator = self._coordinator
        if coordinator.is_stopped:
            return to_html(repr(self))
        return overview(coordinator.fleet.master, coordinator.conf, self.dashboardUrl)

    def __reduce__(self) -> NoReturn:
        raise UsageError("a PS2Context belongs to the driver: in a task, use vectors from the closure of its function")

    def __repr__(self) -> str:
        coordinator = self._coordinator
        return f"PS2Context({'stopped' if coordinator.is_stopped else coordinator.monitoring.describe(self.servers)})"

    @property
    def _running(self) -> Coordinator:
        """The coordinator. Raises StoppedError if this context was stopped."""
        self._coordinator.check_running()
        return self._coordinator
