"""``PS2Context``: the public face of the coordinator in the driver (paper, sections 3.2 and 5.1)."""

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

SLOTS_TIMEOUT_S = 60.0


class PS2Context:
    """The driver's end of a fleet of servers, made by ``PS2Context.getOrCreate``. A process has one at a time.

    The context is a context manager, too: ``with PS2Context.getOrCreate(spark, servers=2) as ps: ...``
    """

    _active: PS2Context | None = None
    _class_lock = threading.RLock()

    @classmethod
    @shielded
    def getOrCreate(  # noqa: PLR0913 - the settings that come most; conf has them all
        cls,
        spark: Any = None,
        servers: int | None = None,
        *,
        fleet: str | Sequence[str] | None = None,
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
            spark: a SparkSession (Spark Connect's, too) or SparkContext whose tasks use the fleet; None: the active
                one, if any. Without Spark, vectors work in this process only.
            servers: number of servers to start (default 2).
            fleet: instead, attach to running servers: "host:port,host:port" or a list.
            tokenFile: the fleet's token, with ``fleet``.
            driverHost: name by which tasks reach this host. Sets advertiseAddress, and makes the driver listen on all
                addresses.
            launcher: "local" (child processes), "spark" (containers of the cluster), or a launcher of another package.
            memoryLimit: bytes that each server's arrays may take.
            ops: names of modules that declare your own operations (docs/kernels.md).
            replicas: 1 keeps a copy of each shard on another server.
            checkpointDir: folder for checkpoints: a path or fsspec URL that the servers reach.
            checkpointEveryS: seconds between two checkpoints.
            checkpointEverySteps: number of steps (``step``) between two checkpoints.
            restore: start from this checkpoint, or from the newest one in this folder; "latest": from the newest one in
                checkpointDir, if there is one.
            dashboard: False: no live page (docs/dashboard.md).
            conf: all other settings. A keyword of this call takes precedence.
            moved: takes no keywords; the error for another setting of ``PS2Conf`` tells how to give it.

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
                "a PS2Context belongs to the driver; in a task, use the vectors that came with its closure"
            )
        with cls._class_lock:
            settings: dict[str, Any] = {
                "servers": servers,
                "fleet": fleet,
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
                    running._coordinator.application.reach(backend)
                return running
            cls._active = context = cls(backend, requested)
            return context

    @classmethod
    def getActive(cls) -> PS2Context | None:
        """Return the running context, or None."""
        return cls._active

    def __init__(self, spark: SparkBackend | None, conf: PS2Conf) -> None:
        """Not for users: see ``getOrCreate``."""
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
        """A link that lets one browser see the live page (docs/dashboard.md); None: there is no page."""
        return self._coordinator.monitoring.page_url

    @property
    def metricsUrl(self) -> str | None:
        """URL at which Prometheus scrapes this driver (``metricsListen``, docs/metrics.md); None if there is none."""
        return self._coordinator.monitoring.metrics_url

    @property
    def sparkContext(self) -> Any:
        """The SparkContext whose tasks use the fleet, or None (with Spark Connect, too)."""
        backend = self._coordinator.application.spark
        return None if backend is None else backend.context

    @property
    def spark(self) -> Any:
        """The SparkSession (Spark Connect's, too) whose tasks use the fleet, or None."""
        backend = self._coordinator.application.spark
        return None if backend is None else backend.session

    def batch(self) -> AbstractContextManager[None]:
        """Collect the calls of a ``with`` block into one request per server; see ``ps2.batch``."""
        self._coordinator.check_running()
        return batch()

    @shielded
    def flush(self) -> None:
        """Wait until all additions of this process with ``wait=False`` are applied; raise their errors."""
        self._running.session.dispatch.flush()

    @shielded
    def memory(self) -> list[tuple[int, int]]:
        """Return for each server, by index, its memory limit and the memory in use, in bytes."""
        return self._running.memory()

    @shielded
    def status(self) -> FleetStatus:
        """Ask all servers for memory, requests, matrices and operations. ``print(ps.status())`` shows tables."""
        fleet = self._running.fleet
        return ask_status(fleet.master, fleet.control)

    @shielded
    def vectors(self) -> list[VectorInfo]:
        """Return the named vectors, by name, with kind, layout, dim, dtype, matrix, row and bytes."""
        fleet = self._running.fleet
        return ask_vectors(fleet.master, fleet.control)

    @hints_keywords
    @shielded
    def checkpoint(self, path: str | None = None, step: int | None = None) -> Checkpoint | None:
        """Write a consistent checkpoint of the whole fleet; return when it is complete.

        Within ``onClock`` of ``run`` it is written when that has returned, with the message that it returns, before a
        worker goes on; this call returns None then. In another thread, this call waits until ``onClock`` has returned.

        Args:
            path: folder or fsspec URL that the servers reach; the checkpoint becomes a folder in it. Default: the
                context's checkpointDir.
            step: first step that the checkpoint does not hold; default: ``nextStep``.

        Raises:
            ConfigError: there is no path, or it is not writable; or ``step`` is not a step number.
            RecoveryError: the checkpoint failed (disk full, a server died). The previous checkpoint stays the newest.
        """
        coordinator = self._running
        coordinator.session.dispatch.flush()
        return coordinator.steps.checkpoint(path, step)

    @shielded
    def rollBack(self, timeoutS: float = 600.0) -> int:
        """Roll the whole fleet back to its newest checkpoint; return the step to go on from (``nextStep``).

        Late requests of earlier jobs' tasks change nothing after it.

        Raises:
            RecoveryError: there is no readable checkpoint, or the rollback takes longer than ``timeoutS`` seconds.
            UsageError: a run is under way.
        """
        self._running.roll_back(timeoutS)
        return self.nextStep

    @contextlib.contextmanager
    def step(self, number: int | None = None) -> Iterator[int]:
        """Run one step of a loop that can roll back to a checkpoint. Checkpoints that are due are made at its end.

        Example::

            while ps.nextStep < 100:
                try:
                    with ps.step() as t:
                        ...
                except RolledBack:
                    pass  # nextStep is now the first one that the checkpoint does not hold

        Args:
            number: number of the step; default: ``nextStep``.

        Raises:
            RolledBack: the fleet rolled back to a checkpoint. It replaces other errors that the rollback caused.
        """
        with self._running.steps.step(number) as current:
            yield current

    @property
    def nextStep(self) -> int:
        """The next step: after the last finished one, or after the last one in the checkpoint that the fleet rolled
        back to."""
        return self._coordinator.steps.next

    @property
    def recoveries(self) -> list[Recovery]:
        """Recoveries of lost servers, the oldest first."""
        return self._coordinator.recoveries.all()

    @shielded
    def vector(self, name: str) -> DCV:
        """Return a named vector of this driver, of the previous driver, or of the restored checkpoint.

        Raises:
            NotFoundError: there is no vector with this name; the message lists the names.
        """
        self._coordinator.check_running()
        return DCV.existing(name)

    @shielded
    def waitForSlots(self, slots: int = 1, timeout: float = SLOTS_TIMEOUT_S) -> None:
        """Wait until Spark can run ``slots`` tasks at once.

        Raises:
            SlotsError: Spark has too few slots after ``timeout`` seconds; the message names both numbers.
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

        Example::

            def work(worker, rows):
                x, y = ...  # once
                for t in worker.clocks(100):
                    w = weight.pull(keys)
                    gradient.add(my_gradient(w, x, y), keys)


            ps.run(data, work, workers=4, onClock=lambda t: update(t))

        Spark restarts a task that dies. The new attempt goes on with the first clock that the old attempt had not
        finished, and all changes count once. To stop early, return ``ps2.STOP`` from ``onClock``.

        Args:
            data: a DataFrame, whose rows come as an iterator of ``pyarrow.RecordBatch``, or an RDD, whose records come
                as an iterator. For trials, data in the driver's memory, which is split into equal parts in order: a
                pandas DataFrame, whose rows come as batches, or a list, tuple or range, whose elements come as an
                iterator.
            worker_fn: called as ``worker_fn(worker, rows)``, once in each worker; see ``ps2.Worker``.
            workers: number of workers; the data are repartitioned if necessary. Default: one per partition (or row of
                the driver's data), at most the number of task slots.
            staleness: number of clocks that a worker may be ahead of the slowest worker. 0 is BSP. s is SSP: a view at
                clock t holds every update of the clocks up to t - s - 1. None is ASP: no worker waits.
            onClock: called in the driver with each clock that all workers have finished, in order, before a worker
                enters the clock ``staleness + 1`` later. A returned ``ps2.Message`` goes to all workers with that
                clock's release (``Worker.message``). A returned ``ps2.STOP`` ends the run: all workers' loops end
                before the first clock that no worker has entered. Other return values are ignored. With two parameters
                it is called with the clock and the list of merged reports of the workers (``Worker.report``).
            onLog: called in the driver with rank, clock, name and value of each ``worker.log``, while the job runs.
            timeoutS: longest time of the run, in seconds.
            firstClock: number of the first clock, such as ``nextStep`` after ``restore=``.
            seed: seed of ``worker.rng``; non-negative.
            read: called first, as ``read(worker, rows)``, once in each task. ``worker_fn`` gets its result instead of
                rows, and must not change it. With ``read``, a worker that fails because the fleet rolled back to a
                checkpoint begins again in the same task. Spark, which limits the failures of a task, counts no failure.
            onEnd: called in the driver when all workers have returned and still wait, to read the vectors that they
                made. If the fleet rolls back to a checkpoint then, workers and ``onClock`` go on from there, and
                ``onEnd`` is called again at the end.
            progress: show clocks, workers and logged numbers in a line, in a terminal or a notebook.

        Returns:
            The workers' results by rank, like a list. ``summary()`` prints and ``plot()`` draws where the time went.

        Raises:
            UsageError: ``worker_fn`` or an element of a list cannot be pickled, or another run is under way.
            ConfigError: an argument cannot be used, or the tasks' Python has no ps2, or another version.
            SlotsError: Spark has fewer free task slots than workers.
            LimitError: a request of ``worker_fn`` exceeds a server's memory. The message names rank and clock. The
                request is not repeated.
            WorkerError: ``worker_fn`` failed as often as Spark lets a task fail. The message names rank and clock, and
                has the traceback.
            DeadlineError: the run has not ended after ``timeoutS``.
            StoppedError: the context was stopped during the run, or the job was cancelled.
        """
        options = RunOptions(*(workers, staleness, onClock, onLog, timeoutS, firstClock, seed, read, onEnd, progress))
        return self._running.run(data, worker_fn, options)

    @shielded
    def stop(self) -> None:
        """End a started fleet, or free this context's matrices on an attached fleet.

        A second call does nothing. A call in a forked child does nothing either, because its parent owns the fleet.

        Raises:
            PS2Error: additions made with ``wait=False`` had failed. The context has stopped all the same.
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
        raise UsageError("a PS2Context belongs to the driver: in a task, use the vectors that came with its closure")

    def __repr__(self) -> str:
        coordinator = self._coordinator
        return f"PS2Context({'stopped' if coordinator.is_stopped else coordinator.monitoring.describe(self.servers)})"

    @property
    def _running(self) -> Coordinator:
        """The coordinator; raises StoppedError if this context was stopped."""
        self._coordinator.check_running()
        return self._coordinator
