"""A model that learns from a streaming query: the loop around the query, its snapshots, and what a failure leads to.

Which of the fleet's snapshot and Spark's commit comes first does not matter (docs/decisions/0072): a batch that the
model holds is skipped by its number, and Spark's checkpoint goes back to the batch that the model holds.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ps2.algorithms.training.streams.failures import is_repeatable
from ps2.algorithms.training.streams.learner import BatchLearner, BatchProgress
from ps2.algorithms.training.streams.spark_checkpoint import SparkCheckpoint
from ps2.errors import CheckpointWarning, RecoveryError, RolledBack
from ps2.run.spark_errors import cancellation

log = logging.getLogger(__name__)

# A snapshot is due after so many batches at the latest: Spark keeps the offsets of the last 100.
SNAPSHOT_BATCHES = 40
# Without a snapshot for so many batches the query ends: Spark could not go back any more.
MOST_BATCHES = 80
# Lost servers, executors and connections in a row, without a batch in between, after which the query ends.
MOST_FAILURES = 5
# Progress of so many batches is kept.
KEPT = 100
POLL_S = 0.1


@dataclass(frozen=True)
class StreamOptions:
    """How a stream is learned.

    Attributes:
        snapshots: folder of the snapshots; None: the context's checkpointDir.
        snapshot_every_s: seconds between two snapshots.
        snapshot_batches: batches between two snapshots, at most.
        trigger: of the query, as for ``DataStreamWriter.trigger``.
        query_name: of the query; None: it has none.
        on_progress: called after each batch, in a thread of the query.
    """

    snapshots: str | None
    snapshot_every_s: float
    snapshot_batches: int
    trigger: Mapping[str, Any] = field(default_factory=dict)
    query_name: str | None = None
    on_progress: Callable[[BatchProgress], object] | None = None


class Stopping(Exception):
    """The training shall stop; the batch that waits for its turn is not learned."""


class BatchFailed(Exception):
    """What Spark hears of a batch that failed."""


class StreamingTraining:
    """What ``fitStream`` returns: a query that goes on by itself when something fails. Thread-safe.

    Attributes:
        model: what is trained. It is on the servers, so it predicts with what it has learned so far.
        on_end: called when it has ended.
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
        self._ps = ps
        self._frame = frame
        self._learner = learner
        self._checkpoint = checkpoint
        self._options = options
        self._progress: deque[BatchProgress] = deque(maxlen=KEPT)
        self._query: Any = None
        self._failure: Exception | None = None  # of the batch that failed last
        self._error: Exception | None = None
        self._failures = 0  # since the last batch
        self._restarts = 0
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._snapshot_s = time.monotonic()
        self._since_snapshot = 0
        self._opened = threading.Event()
        self.on_end: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._supervise, name="ps2-stream", daemon=True)

    def start(self) -> StreamingTraining:
        """Not for users: ``fitStream`` calls it."""
        self._thread.start()
        while not (self._opened.is_set() or self._ended.is_set()):
            self._opened.wait(POLL_S)
        if self._error is not None:
            raise self._error
        return self

    @property
    def isActive(self) -> bool:
        """Whether it runs."""
        return not self._ended.is_set()

    @property
    def lastProgress(self) -> BatchProgress | None:
        """The last batch; None before the first."""
        progress = self.recentProgress
        return progress[-1] if progress else None

    @property
    def recentProgress(self) -> list[BatchProgress]:
        """The last 100 batches, the oldest first."""
        return list(self._progress)

    @property
    def restarts(self) -> int:
        """How often the query began again, as a server was lost or Spark's tasks failed."""
        return self._restarts

    @property
    def learned(self) -> int:
        """The last batch that the model holds; -1: none."""
        return self._learner.position.learned

    @property
    def query(self) -> Any:
        """Spark's StreamingQuery; another one after a failure."""
        return self._query

    def exception(self) -> Exception | None:
        """Return what ended it; None if it runs, or ended in order."""
        return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait for the end, at most ``timeout`` seconds; return whether it has ended.

        Raises:
            InputError: rows cannot be learned from; the model holds the batches before them.
            WorkerError: a task failed, such as by a user's function; names the batch and the reason.
            PS2Error: what else ended it.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while not self._ended.is_set():
            left_s = POLL_S if deadline_s is None else min(POLL_S, deadline_s - time.monotonic())
            if left_s <= 0:
                return False
            self._ended.wait(left_s)
        if self._error is not None:
            raise self._error
        return True

    def processAllAvailable(self) -> None:
        """Wait until all rows that are there now are learned; for tests."""
        from pyspark.errors import StreamingQueryException

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
        if self._error is not None:
            raise self._error

    def stop(self, timeout: float | None = None) -> None:
        """End the query after the batch under way, and make a snapshot.

        Raises:
            PS2Error: what had ended it before.
        """
        self._stopping.set()
        self.awaitTermination(timeout)

    def snapshot(self) -> Any:
        """Make a snapshot now, between two batches; return the ``Checkpoint``."""
        made = self._ps.checkpoint(self._options.snapshots)
        self._snapshot_s, self._since_snapshot = time.monotonic(), 0
        return made

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        try:
            self._go_on_until_the_end()
        except Stopping:
            pass
        except Exception as error:  # whatever ends it: awaitTermination raises it
            self._error = error
        finally:
            self.on_end()
            self._ended.set()

    def _go_on_until_the_end(self) -> None:
        while not self._stopping.is_set():
            self._checkpoint.go_back(self._learner.position.learned)
            self._failure = None
            query = self._start()
            self._opened.set()
            failed = self._wait(query)
            if failed is None:
                break
            self._failures += 1
            self._after(failed)
            self._restarts += 1
        if self._since_snapshot:
            self.snapshot()

    def _start(self) -> Any:
        writer = self._frame.writeStream.foreachBatch(self._learn).option(
            "checkpointLocation", self._checkpoint.location
        )
        if self._options.query_name is not None:
            writer = writer.queryName(self._options.query_name)
        if self._options.trigger:
            writer = writer.trigger(**self._options.trigger)
        self._query = writer.start()
        return self._query

    def _wait(self, query: Any) -> Exception | None:
        """Wait for the end of a query; return what has ended it, None if it ended in order or was stopped."""
        while query.isActive:
            if self._stopping.is_set():
                self._ps._steps.streams.wait()
                query.stop()
                break
            if self._learner.has_gone_back or self._ps._stopped:
                # Without new rows there might be no batch to notice it.
                self._ps._steps.streams.wait()
                query.stop()
                self._failure = self._failure or RolledBack("the fleet went back to a checkpoint", None)
                return self._take_failure()
            if self._has_ended(query):
                break
        # The query's thread may be gone before the batch that it waited for.
        self._ps._steps.streams.wait()
        failure = self._take_failure()
        if isinstance(failure, Stopping):
            return None
        if failure is not None and cancellation(failure) is not None:
            # Someone has stopped Spark's query, in the middle of a batch.
            self._learner.go_back()
            return None
        return failure or query.exception()

    def _take_failure(self) -> Exception | None:
        failure, self._failure = self._failure, None
        return failure

    def _has_ended(self, query: Any) -> bool:
        from pyspark.errors import StreamingQueryException

        try:
            return bool(query.awaitTermination(POLL_S))
        except StreamingQueryException:
            return True

    def _after(self, failure: Exception) -> None:
        """Make the model whole after a failure; raise it if another query would fail as well.

        A failure of the query itself, such as of its source, is Spark's StreamingQueryException.
        """
        try:
            self._learner.go_back(self._check)
        except RecoveryError as error:
            raise RecoveryError(f"{error}; the failure before it: {failure}") from failure
        if not is_repeatable(failure) or self._failures >= MOST_FAILURES:
            raise failure
        log.warning("the query begins again after batch %d: %s", self._learner.position.learned, failure)

    def _learn(self, frame: Any, batch: int) -> None:
        """Learn a batch; Spark calls it in a thread of its own."""
        try:
            self._check()
            progress = self._learner.learn(frame, batch, self._check)
            if progress is not None:
                self._failures = 0
                self._progress.append(progress)
                self._since_snapshot += 1
                log.info("%s", progress)
                if self._options.on_progress is not None:
                    self._options.on_progress(progress)
            self._snapshot_if_due()
        except Exception as error:  # whatever it is: the thread that supervises decides what follows
            self._failure = error
            # Spark searches a long message by a regular expression that overflows the stack of the query's thread.
            raise BatchFailed(f"batch {batch}: {type(error).__name__}") from None

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Stopping

    def _snapshot_if_due(self) -> None:
        is_due = time.monotonic() - self._snapshot_s >= self._options.snapshot_every_s
        if not self._since_snapshot or not (is_due or self._since_snapshot >= self._options.snapshot_batches):
            return
        try:
            self.snapshot()
        except RecoveryError as error:
            if self._since_snapshot >= MOST_BATCHES:
                raise
            warnings.warn(CheckpointWarning(str(error)), stacklevel=2)
            log.warning("%s", error)
