"""The coordinator's interface for trainings, in addition to the public methods of ``PS2Context``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ps2.coordinator.context import PS2Context
    from ps2.coordinator.coordinator import Coordinator
    from ps2.run.spark.backend import SparkBackend


@dataclass(frozen=True)
class ResumedTraining:
    """The point at which the training of an earlier driver stopped.

    Attributes:
        clocks: number of clocks that all workers had finished.
        called: number of clocks for which ``onClock`` was called; less than ``clocks`` if the workers were ahead.
        messages: the messages of the workers that ``onClock`` has not processed, as the driver had saved them.
    """

    clocks: int
    called: int
    messages: list[Any]


@dataclass(frozen=True)
class StreamHost:
    """The coordinator's interface for streams. A fit that makes several passes over a DataFrame counts as a stream."""

    _coordinator: Coordinator

    def check_free(self, model: str) -> None:
        """Raise UsageError if the named model already learns from a stream."""
        self._coordinator.steps.streams.check_free(model)

    def stream(self, model: str) -> AbstractContextManager[None]:
        """Register a model that learns from a stream. Within the with-block, a lost server rolls back all servers."""
        return self._coordinator.steps.streams.stream(model)

    def batch(self, check: Callable[[], None]) -> AbstractContextManager[None]:
        """Exclude other batches, runs, steps and checkpoints within the with-block; call ``check`` while it waits."""
        return self._coordinator.steps.stream_batch(check)

    def wait(self) -> None:
        """Wait until no batch of another thread is in progress."""
        self._coordinator.steps.streams.wait()

    def catch_up(self) -> None:
        """Count rollbacks that other threads, such as those of streams, have handled as handled by this thread."""
        self._coordinator.session.rollbacks.catch_up()

    def join_thread(self, spark: SparkBackend, epoch: int) -> None:
        """Let Spark jobs of the calling thread use the fleet in this epoch. Threads that Spark starts need it."""
        self._coordinator.application.join(spark, epoch)


@dataclass(frozen=True)
class TrainingHost:
    """The coordinator's interface for trainings."""

    _coordinator: Coordinator
    streams: StreamHost

    def epoch(self) -> int:
        """Return the number of rollbacks that have begun."""
        return self._coordinator.fleet.master.epoch

    def acknowledge_rollback(self) -> None:
        """Record that the caller has handled the last rollback: the driver's next call does not raise RolledBack."""
        self._coordinator.steps.acknowledge_rollback()

    def unhandled_losses(self) -> int:
        """Return how many recoveries lost changes that no run of the calling thread has repeated.

        0 with ``recover="shard"``.
        """
        if self._coordinator.conf.recover == "shard":
            return 0
        lossy = sum(recovery.source == "checkpoint" for recovery in self._coordinator.recoveries.all())
        return lossy - self._coordinator.active_runs.rollbacks

    def begin_fit(self) -> None:
        """Record that a fit begins, which has no vectors yet: it need not handle the rollbacks of other threads."""
        coordinator = self._coordinator
        if coordinator.active_runs.all():  # they may not have handled the last rollback yet
            coordinator.session.acknowledge(*coordinator.fleet.master.last_rollback)
        else:
            coordinator.session.rollbacks.catch_up()

    def held_slots(self) -> int:
        """Return the number of task slots that runs of this context hold."""
        return self._coordinator.runs.slots.num_held

    def wait_for_servers(self) -> None:
        """Wait until all servers answer; raise LostError if a server cannot be replaced."""
        self._coordinator.steps.wait_for_servers()

    def spark(self) -> SparkBackend:
        """Return the Spark application whose tasks use the fleet."""
        return self._coordinator.application.running("a training")

    def is_stopped(self) -> bool:
        """Return True if the context was stopped."""
        return self._coordinator.is_stopped

    def names(self, prefix: str) -> list[str]:
        """Return the names of the fleet's vectors that begin with a prefix."""
        return [name for name in self._coordinator.fleet.master.names() if name.startswith(prefix)]

    def forget_stop(self) -> None:
        """Let the next run continue, although a program had stopped the run of the earlier driver."""
        self._coordinator.steps.forget_stop()

    def resumed(self, first: int) -> ResumedTraining | None:
        """Return the state of an earlier driver's training that began in clock ``first``; None: there is none."""
        steps = self._coordinator.steps
        if self._coordinator.conf.restore is None or steps.next <= first:
            return None
        return ResumedTraining(steps.next - first, max(0, steps.called - first), steps.messages())


def training_host(ps: PS2Context) -> TrainingHost:
    """Return the interface of a context's coordinator for trainings."""
    coordinator = ps._coordinator
    return TrainingHost(coordinator, StreamHost(coordinator))
