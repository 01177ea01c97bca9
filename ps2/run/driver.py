"""The driver's part of a run: the Spark job, the calls of ``onClock``, the deadline, and the run's end."""

from __future__ import annotations

import logging
import math
import pickle
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from ps2.errors import (
    DeadlineError,
    PS2Error,
    RolledBack,
    StoppedError,
    WorkerError,
)
from ps2.guarded_loop import GuardedLoop
from ps2.interrupts import POLL_S as INTERRUPT_S
from ps2.interrupts import Opening, join
from ps2.interrupts import check as check_interrupts
from ps2.logs import log_format
from ps2.progress_line import progress_line
from ps2.rpc.run_control import Logged
from ps2.run.clock_loop import RunRef
from ps2.run.clocks import Clocks
from ps2.run.host import RunHost
from ps2.run.job import WorkerJob, takes_reports
from ps2.run.job_monitor import CallbackJobs, RunProgress, WorkerTasks
from ps2.run.message import STOP, Message
from ps2.run.options import RunOptions
from ps2.run.reports import merge_reports
from ps2.run.result import RunResult
from ps2.run.run_server import RunServer
from ps2.run.spans import Preparation, Spans
from ps2.run.spark.backend import SparkBackend
from ps2.run.spark.errors import (
    cancellation,
    failed_task,
    failure_message,
    memory_advice,
    unreachable_driver,
    worker_error,
)
from ps2.run.spark.interpreter import DAEMON, DAEMON_SETTING, MEMORY_SETTING
from ps2.run.state import RunState
from ps2.run.timeline import count, to_table

log = logging.getLogger(__name__)

# The time for which a run waits for its tasks to end.
END_TIMEOUT_S = 10.0
# The time in which workers can end after an error, before Spark cancels their tasks. Cancelling ends their Python
# processes, and the next run would wait for new processes.
CANCEL_DELAY_S = 0.5
# The interval of the guard's checks.
POLL_S = 0.5
# The time for which a failed run waits for Spark's error, which tells whether the user cancelled the job.
SPARK_ERROR_S = 0.2


@dataclass
class _Events:
    """Queues the events of a run, as functions that the driver's thread calls; see ``Listener``."""

    queue: SimpleQueue[Callable[[], object]]
    on_due: Callable[[], object]
    on_log: Callable[[int, int, str, float], object] | None

    def clock_due(self) -> None:
        self.queue.put(self.on_due)

    def logged(self, rank: int, metric: Logged) -> None:
        fields = {"rank": rank, "clock": metric.clock}
        log.debug("rank %d, clock %d: %s = %g", rank, metric.clock, metric.name, metric.value, extra=fields)
        on_log = self.on_log
        if on_log is not None:
            self.queue.put(lambda: _call_user(on_log, rank, metric.clock, metric.name, metric.value))

    def failed(self) -> None:
        self.wake()

    def wake(self) -> None:
        self.queue.put(lambda: None)


class RunDriver:
    """One run, driven by the caller's thread."""

    def __init__(
        self,
        host: RunHost,
        number: int,
        spark: SparkBackend,
        job: WorkerJob,
        options: RunOptions,
        preparation: Preparation,
    ) -> None:
        self._host = host
        self._spark = spark
        self._job = job
        self._options = options
        self._events = _Events(SimpleQueue(), self._call_due, options.on_log)
        self._takes_reports = options.on_clock is not None and takes_reports(options.on_clock)
        self._has_daemon = spark.setting(DAEMON_SETTING) == DAEMON
        self._has_ended = False
        self._progress: RunProgress | None = None
        self._closing = threading.Event()
        calls_clocks = options.on_clock is not None or host.steps.has_periodic_checkpoints
        clocks = Clocks(job.workers, options.staleness, options.first_clock, calls_clocks)
        epoch, calls_end = host.fleet.last_rollback[0], options.on_end is not None
        self._preparation = preparation
        self._run = RunState(
            *(job.workers, clocks, self._events, options.first_clock, epoch, calls_end),
            number=number,
            began_s=preparation.began_s,
        )

    def drive(self, forget: Callable[[], None]) -> RunResult:
        """Run the workers to their end; call ``forget`` when no task of the run is running any more."""
        steps = self._host.steps
        steps.begin_run(self._run)
        try:
            # The fleet can have rolled back before ``begin_run``.
            self._run.epoch = max(self._run.epoch, self._host.session.epoch)
            self._preparation.lap("coordinator")
            steps.checkpoint_beginning()
            self._preparation.lap("checkpoint")
            return self._drive(forget)
        finally:
            steps.end_run(self._run)

    def _drive(self, forget: Callable[[], None]) -> RunResult:
        host, number = self._host, self._run.number
        server = RunServer(self._run, host.binding, host.token, host.wire)
        ref = RunRef(
            host.session.fleet,
            server.address,
            number,
            self._options.staleness,
            self._options.first_clock,
            self._options.seed,
            self._takes_reports,
            self._spark.retries_tasks(),
            log_format(),
        )
        tag = f"ps2-run-{ref.fleet.id}-{number}"
        self._tasks = WorkerTasks(self._spark, tag, self._run)
        calls_tag = f"{tag}-onClock"
        self._callback_jobs = CallbackJobs(self._spark, calls_tag, self._job.workers)
        began_s = time.monotonic()
        self._preparation.lap("coordinator")
        self._run.spans = Spans(self._preparation.seconds, self._preparation.last_s - self._run.began_s)
        guard = threading.Thread(target=self._guard, args=[began_s], name="ps2-run-guard", daemon=True)
        try:
            self._job.start(ref, tag, self._on_end)
            guard.start()
            with self._spark.job_tag(calls_tag):
                self._watch_with_progress()
            self._raise_failure()
            self._record_epoch(self._run.epoch)
        finally:
            self._run.fail(StoppedError("the run is over"))
            self._closing.set()
            with ExitStack() as ending:  # callbacks run in reverse order, even if one raises
                ending.callback(self._run.lines.log_left_out)
                ending.callback(self._run.lines.log)
                ending.callback(forget)
                ending.callback(server.stop)
                if guard.ident is not None:
                    ending.callback(join, guard)
                ending.callback(self._end_tasks)
        results = tuple(self._result(rank) for rank in range(self._job.workers))
        with self._run.lock:
            now_s = time.monotonic() - self._run.began_s
            after_return = self._run.spans.times_after_return(self._run.clocks.applied, now_s)
            for timeline, rank_times in zip(self._run.timeline, after_return, strict=True):
                for times in rank_times:
                    timeline.append(times)
        return RunResult(
            results,
            time.monotonic() - self._run.began_s,
            self._options.staleness,
            self._options.first_clock,
            tuple(map(to_table, self._run.timeline)),
            tuple(self._run.metrics),
            self._has_daemon,
        )

    def _result(self, rank: int) -> Any:
        try:
            return pickle.loads(self._run.results[rank])
        except Exception as error:  # unpickling runs the users' code
            raise WorkerError(f"run: the result of rank {rank} cannot be unpickled in the driver: {error!r}") from error

    def _guard(self, began_s: float) -> None:
        """End the run at its deadline, or if it gets no slots. Runs in a thread, because ``onClock`` can block."""
        timeout_s = math.inf if self._options.timeout_s is None else self._options.timeout_s
        loop = GuardedLoop("ps2-run-guard")
        while self._run.error is None and not self._closing.wait(
            min(max(0.0, began_s + timeout_s - time.monotonic()), POLL_S)
        ):
            if time.monotonic() >= began_s + timeout_s:
                clocks = ", ".join(f"rank {rank}: {clock}" for rank, clock in enumerate(self._run.applied()))
                self._run.fail(
                    DeadlineError(f"run: not finished after {timeout_s:g} s (timeoutS); unfinished clocks: {clocks}")
                )
            loop.run_once(self._check)
        loop.run_once(self._callback_jobs.cancel)

    def _check(self) -> None:
        self._run.lines.log()
        try:
            self._tasks.check()
            self._callback_jobs.check()
        except PS2Error as error:
            self._run.fail(error)

    def _watch(self) -> None:
        """Handle events until the tasks have ended."""
        while not self._has_ended and self._run.error is None:
            try:
                event = self._events.queue.get(timeout=INTERRUPT_S)
            except Empty:
                check_interrupts()
            else:
                event()
            if self._progress is not None:
                self._progress.show()
        while self._run.error is None and not self._events.queue.empty():
            self._events.queue.get()()  # the last logged numbers

    def _watch_with_progress(self) -> None:
        """Handle events until the tasks have ended; show a progress line if ``progress`` is set."""
        if not self._options.progress:
            self._watch()
            return
        with progress_line("run", None, f"reading, {count(self._job.workers, 'worker')}") as line:
            self._progress = None if line is None else RunProgress(line, self._run, self._options, self._spark)
            try:
                self._watch()
            finally:
                self._progress = None

    def _on_end(self) -> None:
        self._run.spans.ended_s = time.monotonic() - self._run.began_s
        self._has_ended = True
        self._events.wake()

    def _call_due(self) -> None:
        """Call ``onClock`` for the clocks that all workers have finished, and ``onEnd`` when they have returned."""
        run, options = self._run, self._options
        while (due := run.call_due()) is not None:
            clock, epoch = due
            if self._try_call(epoch, lambda due=due: self._end_clock(*due)):  # type: ignore[misc]
                run.called_back(clock)
            elif run.epoch == epoch:
                return  # the run has ended, or will roll back and repeat the call
        on_end, end_epoch = options.on_end, run.end_due()
        if on_end is not None and end_epoch is not None and self._try_call(end_epoch, lambda: self._call_end(on_end)):
            run.end_called(end_epoch)

    def _end_clock(self, clock: int, epoch: int) -> None:
        on_clock = self._options.on_clock
        if on_clock is not None:
            reports = [merge_reports(clock, self._run.reports(clock))] if self._takes_reports else []
            began_s = time.monotonic()
            returned = _call_user(on_clock, clock, *reports)
            if isinstance(returned, Message):
                self._run.publish(clock, epoch, returned.encoded)
            elif returned is STOP:
                self._run.publish(clock, epoch, None, stop=True)
            self._host.session.dispatch.flush()
            self._run.record_call("on_clock", began_s)
        else:
            self._host.session.dispatch.flush()
        began_s = time.monotonic()
        if self._host.steps.end_clock(self._run, clock):
            self._run.record_call("checkpoint", began_s)

    def _call_end(self, on_end: Callable[[], object]) -> None:
        began_s = time.monotonic()
        _call_user(on_end)
        self._run.record_call("on_clock", began_s)

    def _try_call(self, epoch: int, call: Callable[[], object]) -> bool:
        """Run a callback; return False if the fleet rolled back during the call, which then does not count."""
        self._record_epoch(epoch)
        try:
            call()
            self._host.session.dispatch.flush()
        except Exception as error:
            is_rollback = isinstance(error, RolledBack) and self._host.session.epoch > epoch
            if self._run.error is None and self._run.epoch == epoch and not is_rollback:
                raise
            return False
        return True

    def _record_epoch(self, epoch: int) -> None:
        """Tell the session that the run has handled the rollbacks up to an epoch: RolledBack is not raised for them."""
        self._host.session.acknowledge(epoch, self._host.fleet.last_rollback[1])

    def _raise_failure(self) -> None:
        if self._run.error is not None:
            if isinstance(self._run.error, RolledBack):
                self._run.error.step = self._host.fleet.last_rollback[1]
            # If Spark cancels a task while it reads rows, the worker can report an error that hides the cancellation.
            if isinstance(self._run.error, WorkerError):
                self._raise_if_stopped(self._job.join(SPARK_ERROR_S))
                raise worker_error(str(self._run.error))
            raise self._run.error
        failed = self._job.join()
        missing = [rank for rank in range(self._job.workers) if rank not in self._run.results]
        if failed is None and not missing:
            return
        self._raise_if_stopped(failed)
        failed_rank, reason = failed_task(failed)
        rank = failed_rank if failed_rank in missing else next((r for r in missing if r in self._run.failures), None)
        if rank is not None and rank in self._run.failures:
            clock, traceback = self._run.failures[rank]
            # Not chained to Spark's error, which repeats this traceback inside a stack trace of Java.
            raise worker_error(failure_message(rank, clock, traceback)) from None
        if (error := unreachable_driver(str(failed))) is not None:
            raise error from None
        if (python_error := self._spark.python_error(str(failed))) is not None:
            raise python_error from None
        applied = self._run.applied()
        lost_ranks = [rank] if rank is not None else missing
        lost = ", ".join(f"rank {rank} in clock {applied[rank]}" for rank in lost_ranks) or "a task"
        advice = memory_advice(self._spark.setting(MEMORY_SETTING), str(failed))
        raise WorkerError(f"run: {lost} was lost, and Spark does not start it again: {reason}{advice}") from None

    def _raise_if_stopped(self, failed: Exception | None) -> None:
        """Raise StoppedError if Spark's application is over, or the job was cancelled."""
        if self._spark.is_stopped():
            raise StoppedError(f"run: {self._spark.end_reason()}") from None
        if (reason := cancellation(failed)) is not None:
            raise StoppedError(f"run: Spark cancelled the job: {reason}") from None

    def _end_tasks(self) -> None:
        if not self._has_ended and not self._spark.is_stopped():
            self._job.join(CANCEL_DELAY_S)
            if not self._has_ended:
                self._job.cancel()
        self._job.join(END_TIMEOUT_S)
        if still_running := self._tasks.wait_for_end(END_TIMEOUT_S):
            log.warning(
                "run: %d tasks were cancelled, but still run; Spark kills their Python workers after "
                "spark.python.task.killTimeout",
                still_running,
            )


def _call_user(function: Callable[..., object], *arguments: object) -> object:
    """Call a user's function; signal handlers may interrupt it anywhere."""
    with Opening():
        return function(*arguments)
