"""``StreamingTraining``: start a query, make snapshots, and start the query again after a failure.

The fleet's snapshot may come before or after Spark's commit (docs/decisions/0072): the learner skips batches from which
the model has learned, and Spark's checkpoint is rewound to the last batch from which the model has learned.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ps2.algorithms.training.observing import FitWatch
from ps2.algorithms.training.streams.failures import is_repeatable, is_stopped, query_failure
from ps2.algorithms.training.streams.learner import BatchLearner, BatchProgress
from ps2.algorithms.training.streams.location import write_counts
from ps2.algorithms.training.streams.spark_checkpoint import SparkCheckpoint
from ps2.coordinator.training_host import training_host
from ps2.errors import CheckpointWarning, ConfigError, InputError, RecoveryError, RolledBack, StoppedError
from ps2.progress_line import ShowProgress, progress_line
from ps2.run.spark.backend_lookup import backend_of

log = logging.getLogger(__name__)

# The maximum number of batches between two snapshots. Spark keeps the offsets of the last 100.
SNAPSHOT_BATCHES = 40
# If snapshots fail, the query ends after this many batches, before Spark's checkpoint cannot be rewound any more.
MAX_BATCHES = 80
# The query ends after this many repeatable failures in a row without a successful batch.
MAX_FAILURES = 5
# The number of latest batches whose progress can be read.
RECENT_BATCHES = 100
POLL_S = 0.1


@dataclass(frozen=True)
class StreamOptions:
    """The options of a stream's snapshots and query.

    Attributes:
        snapshots: the folder of the snapshots; None: the context's checkpointDir.
        snapshot_batches: the maximum number of batches between two snapshots.
        trigger: keywords for ``DataStreamWriter.trigger``.
        query_name: the name of the query; None: no name.
        on_progress: a function that is called with the progress of each batch, in the query's thread.
    """

    snapshots: str | None
    snapshot_every_s: float
    snapshot_batches: int
    trigger: Mapping[str, Any] = field(default_factory=dict)
    query_name: str | None = None
    on_progress: Callable[[BatchProgress], object] | None = None


class Stopping(Exception):
    """Raised in a batch that waits for another stream's batch while the training stops; the batch is not learned."""


class BatchFailed(Exception):
    """Raised to Spark instead of the error of a batch, which can have a long message."""


class StreamingTraining:
    """A running training on a stream, which ``fitStream`` returns. It restarts its query after failures. Thread-safe.

    Attributes:
        model: the model. It is on the servers, so its predictions use everything that it has learned so far.
        on_end: a function that is called when the training has ended.
    """

    def __init__(
        self,
        ps: Any,
        frame: Any,
        learner: BatchLearner,
        checkpoint: SparkCheckpoint,
        options: StreamOptions,
        model: Any,
    ) -> None:
        self.model = model
        self._ps, self._host = ps, training_host(ps)
        self._frame = frame
        self._learner = learner
        self._checkpoint = checkpoint
        self._options = options
        self._progress: deque[BatchProgress] = deque(maxlen=RECENT_BATCHES)
        self._query: Any = None
        self._failure: Exception | None = None  # the error of the last batch that failed
        self._learning = threading.Lock()  # locked by a batch's thread until ``_failure`` is set
        self._takes_batches = False
        self._error: Exception | None = None
        self._failures = 0  # the number of failures since the last successful batch
        self._restarts = 0
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._snapshot_s = time.monotonic()
        self._since_snapshot = 0  # the number of batches since the last snapshot
        self._is_located = False  # whether this process has seen the query's checkpoint
        self._opened = threading.Event()  # set when the query has started
        self._show_line: ShowProgress | None = None
        self._hide_bar = backend_of(frame).progress_bar_hider()
        self._watch: FitWatch | None = None
        self.on_end: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._supervise, name="ps2-stream", daemon=True)

    def start(self, watch: FitWatch | None) -> StreamingTraining:
        """Start the query and wait until it runs. ``fitStream`` calls this; users do not."""
        self._watch = watch
        self._thread.start()
        while not (self._opened.is_set() or self._ended.is_set()):
            self._opened.wait(POLL_S)
        self._raise_error()
        return self

    @property
    def isActive(self) -> bool:
        """True until the training has ended."""
        return not self._ended.is_set()

    @property
    def lastProgress(self) -> BatchProgress | None:
        """The progress of the last batch; None before the first batch."""
        progress = self.recentProgress
        return progress[-1] if progress else None

    @property
    def recentProgress(self) -> list[BatchProgress]:
        """The progress of the last 100 batches, the oldest first."""
        return list(self._progress)

    @property
    def restarts(self) -> int:
        """The number of restarts of the query, because a server, an executor or a connection was lost."""
        return self._restarts

    @property
    def learned(self) -> int:
        """The number of the last batch from which the model has learned; -1: no batch."""
        return self._learner.position.learned

    @property
    def query(self) -> Any:
        """Spark's StreamingQuery. After a failure, it is a new query."""
        return self._query

    def exception(self) -> Exception | None:
        """Return the error that ended the training; None: the training runs, or was stopped."""
        return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait until the training has ended, at most ``timeout`` seconds; return whether it has ended.

        Raises:
            InputError: some rows are faulty. The model has learned from the batches before.
            WorkerError: a task failed, such as in a user's function; the message has the batch and the reason.
            PS2Error: another error ended the training.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        with self._show_batches():
            while not self._ended.is_set():
                left_s = POLL_S if deadline_s is None else min(POLL_S, deadline_s - time.monotonic())
                if left_s <= 0:
                    return False
                self._ended.wait(left_s)
        self._raise_error()
        return True

    def _raise_error(self) -> None:
        """Raise the error that ended the training, if any. The caller learns by it that the fleet has rolled back."""
        if self._error is not None:
            self._host.streams.catch_up()
            raise self._error

    def processAllAvailable(self) -> None:
        """Wait until the model has learned from all rows that the source has now; this is for tests."""
        from pyspark.errors import StreamingQueryException

        with self._show_batches():
            while not self._ended.is_set():
                query = self._query
                if query is not None and query.isActive:
                    try:
                        query.processAllAvailable()
                        if query.isActive:
                            return
                    except StreamingQueryException as error:
                        log.debug("the query ended: %s", error)
                self._ended.wait(POLL_S)
        self._raise_error()

    def stop(self, timeout: float | None = None) -> None:
        """End the training after the current batch, and make a snapshot.

        Args:
            timeout: the seconds to wait for the end; None: no limit.

        Raises:
            PS2Error: the training had ended with this error.
        """
        self._stopping.set()
        self.awaitTermination(timeout)

    def snapshot(self) -> Any:
        """Make a snapshot now, between two batches; return the ``Checkpoint``."""
        checkpoint = self._ps.checkpoint(self._options.snapshots)
        write_counts(self._checkpoint.location, self._learner.value_counts)
        self._snapshot_s, self._since_snapshot = time.monotonic(), 0
        return checkpoint

    @contextmanager
    def _show_batches(self) -> Iterator[None]:
        """Show each batch in a progress line, in a terminal or a notebook, while the caller waits."""
        with progress_line("stream", None, "waiting for rows") as line:
            self._show_line = line
            try:
                yield
            finally:
                self._show_line = None

    def _supervise(self) -> None:
        try:
            self._run_queries()
        except Stopping:
            pass
        except Exception as error:  # awaitTermination raises it in the user's thread
            self._error = self._cause(error)
        finally:
            self.on_end()
            if self._watch is not None:
                self._watch.ended(self.model if self._error is None else None)
            self._ended.set()

    def _cause(self, error: Exception) -> Exception:
        """Return a StoppedError if Spark's application has ended; else the error itself."""
        spark = backend_of(self._frame)
        if isinstance(error, InputError) or not spark.is_stopped():
            return error
        stopped = StoppedError(f"after batch {self._learner.position.learned}: {spark.end_reason()}")
        stopped.__cause__ = error
        return stopped

    def _run_queries(self) -> None:
        """Start the query, and start it again after failures, until the training ends."""
        while not self._stopping.is_set():
            self._checkpoint.rewind(self._learner.position.learned)
            self._failure, self._takes_batches = None, True
            query = self._start()
            self._opened.set()
            failure = self._wait(query) or self._finish()
            if failure is None:
                break
            self._failures += 1
            self._after(failure)
            self._restarts += 1

    def _finish(self) -> Exception | None:
        """Make the last snapshot; return an error if the fleet has rolled back since the last batch."""
        learned = self._learner.position.learned
        for is_last in (False, True):
            try:
                if self._since_snapshot and not self._learner.has_rolled_back:
                    self.snapshot()
            except RecoveryError:
                # A server was lost during the snapshot, or the disk is full: wait for the servers, read the position.
                self._learner.synchronize()
                if is_last and self._learner.position.learned == learned:
                    raise
            if self._learner.has_rolled_back:
                self._learner.synchronize()
            if self._learner.position.learned < learned and not self._stopping.is_set():
                return RolledBack("the fleet rolled back to a checkpoint after the last batch", None)
            if not self._since_snapshot:
                break
        return None

    def _start(self) -> Any:
        writer = self._frame.writeStream.option("checkpointLocation", self._checkpoint.location)
        if self._options.query_name is not None:
            writer = writer.queryName(self._options.query_name)
        if self._options.trigger:
            writer = writer.trigger(**self._options.trigger)
        self._query = backend_of(self._frame).start_query(writer, self._learn)
        return self._query

    def _wait(self, query: Any) -> Exception | None:
        """Wait for the end of a query; return the error that ended it, None if it was stopped or has no more rows."""
        while not self._has_ended(query):
            if self._stopping.is_set():
                self._host.streams.wait()
                query.stop()
                break
            if self._learner.has_rolled_back or self._host.is_stopped():
                # Without new rows, no batch would notice the rollback.
                self._host.streams.wait()
                query.stop()
                failure = self._take_failure()
                if failure is None or is_stopped(failure):  # the next batch had begun when the query was stopped
                    return RolledBack("the fleet rolled back to a checkpoint", None)
                return failure
        failure = self._take_failure()
        if isinstance(failure, Stopping):
            return None
        if failure is not None and is_stopped(failure):
            # The user has stopped Spark's query in the middle of a batch.
            self._learner.roll_back()
            return None
        error = query.exception()
        return failure or (None if error is None else query_failure(error, self._learner.position.learned))

    def _take_failure(self) -> Exception | None:
        """Wait for the last batch's thread, which can end after the query's thread; return its error."""
        self._takes_batches = False
        with self._learning:
            return self._failure

    def _has_ended(self, query: Any) -> bool:
        from pyspark.errors import StreamingQueryException

        try:
            return bool(query.awaitTermination(POLL_S))
        except StreamingQueryException:
            return True

    def _after(self, failure: Exception) -> None:
        """Restore the model after a failure (see ``roll_back``); raise the failure if another query would also fail."""
        try:
            self._learner.roll_back(self._check)
        except RecoveryError as error:
            raise RecoveryError(f"{error}; the failure before it: {failure}") from failure
        if not is_repeatable(failure) or self._failures >= MAX_FAILURES:
            raise failure
        log.warning("the query begins again after batch %d: %s", self._learner.position.learned, failure)

    def _learn(self, frame: Any, batch: int) -> None:
        """Learn a batch. Spark calls this in a thread of the query."""
        with self._learning:
            try:
                self._check_turn()
                self._check_location()
                progress = self._learner.learn(frame, batch, self._check_turn)
                if progress is not None:
                    self._add_progress(progress)
                self._snapshot_if_due()
            except Exception as error:  # the supervising thread ends or restarts the query
                self._failure = error
                # The message is short: Spark's regular expression on a long message overflows the thread's stack.
                raise BatchFailed(f"batch {batch}: {type(error).__name__}") from None

    def _add_progress(self, progress: BatchProgress) -> None:
        self._failures = 0
        self._progress.append(progress)
        self._since_snapshot += 1
        log.info("%s", progress)
        if (show_line := self._show_line) is not None:
            self._hide_bar()
            show_line(progress.batch + 1, [f"batch {progress.batch}", *progress.described()])
        if self._watch is not None and progress.rows:
            self._watch.step(progress.report())
        if self._options.on_progress is not None:
            self._options.on_progress(progress)

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Stopping

    def _check_turn(self) -> None:
        self._check()
        if not self._takes_batches:
            raise Stopping

    def _check_location(self) -> None:
        """Raise ConfigError if this process cannot see the folder of the query's checkpoint."""
        if not self._is_located and not self._checkpoint.exists():
            raise ConfigError(
                f"checkpointLocation {self._checkpoint.location}: expected a folder that Spark and this driver share; "
                "the driver does not see what Spark has written there"
            )
        self._is_located = True

    def _snapshot_if_due(self) -> None:
        is_due = time.monotonic() - self._snapshot_s >= self._options.snapshot_every_s
        if not self._since_snapshot or not (is_due or self._since_snapshot >= self._options.snapshot_batches):
            return
        try:
            self.snapshot()
        except RecoveryError as error:
            if self._since_snapshot >= MAX_BATCHES:
                raise
            warnings.warn(CheckpointWarning(str(error)), stacklevel=2)
            log.warning("%s", error)
