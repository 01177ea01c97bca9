"""A training in the process of the only worker, which has all rows.

The worker and driver programs are the same as with a fleet. The worker's loop calls the driver's ``on_clock`` directly,
and the servers are in the same process, so no clock waits for the network.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import StepReport
from ps2.algorithms.training.run import SurveyedTraining, Training, run_alone, run_surveyed
from ps2.algorithms.training.table import Table
from ps2.client.session import Session
from ps2.coordinator.in_process import InProcessServers, in_process_session
from ps2.errors import PS2Error
from ps2.protocol.plain_data import decode
from ps2.rpc.run_control import Report
from ps2.run.message import STOP, Message
from ps2.run.reports import merge_reports, report
from ps2.server.memory import free_bytes

# The parent of all loggers of PS2.
log = logging.getLogger("ps2")


@dataclass(frozen=True, eq=False)
class Outcome:
    """The worker's answer to the driver: ``result`` or ``error``, the steps' reports, and warnings (logger, text)."""

    result: Any = None
    steps: list[StepReport] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    error: PS2Error | None = None


def result_of(outcome: Outcome, on_step: Callable[[StepReport], None]) -> Any:
    """Log the worker's warnings, raise its error, and report its steps, in the driver; return the result."""
    for name, text in outcome.warnings:
        logging.getLogger(name).warning("%s", text)
    if outcome.error is not None:
        raise outcome.error
    for step in outcome.steps:
        on_step(step)
    return outcome.result


class _Warnings(logging.Handler):
    """A logging handler that collects the warnings of the worker's process, for the driver to log later."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.warnings: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.warnings.append((record.name, record.getMessage()))


# The fraction of the worker's free memory that the in-process servers may use.
MEMORY_FRACTION = 0.5

OnStep = Callable[[StepReport], None]


class Train(Protocol):
    """A family's ``train``; picklable."""

    def __call__(self, ps: Any, table: Table, options: Any, /, *, on_step: OnStep) -> Any:
        """Train on the servers of a context, and return the result."""


class InProcessContext:
    """The part of a ``PS2Context`` that a training uses: ``servers``, ``memory`` and ``run``."""

    def __init__(self, network: InProcessServers, session: Session, reading: Any) -> None:
        self._network, self._session, self._reading = network, session, reading

    @property
    def servers(self) -> list[str]:
        return list(self._network.engines)

    def memory(self) -> list[tuple[int, int]]:
        """Return the memory limit and the memory in use of each server, in bytes."""
        return [(engine.memory.limit_bytes, engine.memory.used_bytes) for engine in self._network.engines.values()]

    def run(  # noqa: PLR0913 - as PS2Context.run
        self,
        data: None,
        worker_fn: Callable[..., Any],
        workers: int = 1,
        staleness: int | None = 0,
        *,
        read: Callable[..., Any],
        onClock: Callable[[int, list[Any]], object],
        onEnd: Callable[[], object],
        firstClock: int = 0,
        seed: int = 0,
    ) -> list[Any]:
        """Run the only worker with the rows that it has read."""
        result = worker_fn(InProcessWorker(self._session, onClock, firstClock, seed), self._reading)
        onEnd()
        return [result]


class InProcessWorker:
    """The part of a ``ps2.Worker`` that a program uses, for the only worker."""

    rank, workers, epoch = 0, 1, 0

    def __init__(
        self, session: Session, on_clock: Callable[[int, list[Any]], object], first_clock: int, seed: int
    ) -> None:
        self.clock = first_clock
        self.message: Any = None
        self._session, self._on_clock, self._seed = session, on_clock, seed
        self._reports: list[Report] = []
        self._is_over = False

    def clocks(self, n: int) -> Iterator[int]:
        """Yield the clocks below ``n``, and call the driver's function after each one."""
        assert self._session.ids.run is not None
        while self.clock < n and not self._is_over:
            phase = 2 * self.clock + 1
            self._session.ids.run.settled = phase
            self._session.ids.run.enter(phase)
            yield self.clock
            self._session.dispatch.flush()
            reports, self._reports = merge_reports(self.clock, {0: self._reports}), []
            returned = self._on_clock(self.clock, reports)
            self._session.dispatch.flush()
            if isinstance(returned, Message):
                self.message = decode(returned.encoded)
            self._is_over = returned is STOP
            self.clock += 1

    def report(self, value: Any, merge: str = "sum") -> None:
        """See ``ps2.Worker.report``."""
        self._reports.append(report(self.clock, value, merge))

    def barrier(self) -> None:
        """Return at once: there are no other workers."""

    def rng(self, *key: int) -> np.random.Generator:
        """See ``ps2.Worker.rng``. The random numbers are the same as those of rank 0 in a fleet."""
        sequence = np.random.SeedSequence(self._seed, spawn_key=(self.rank, self.clock, *key))
        return np.random.Generator(np.random.Philox(sequence))


def train_in_process(servers: int, reading: Any, train: Callable[[InProcessContext, OnStep], Any]) -> Outcome:
    """Train in the process of the only worker, with servers in the same process.

    Each shard adds up its own values, so with the fleet's number of servers, sums are rounded as in the fleet.
    """
    network = InProcessServers(servers, int(free_bytes() * MEMORY_FRACTION) // servers)
    steps: list[StepReport] = []
    collector = _Warnings()
    log.addHandler(collector)
    try:
        with in_process_session(network) as session:
            result = train(InProcessContext(network, session, reading), steps.append)
        return Outcome(result, steps, collector.warnings)
    except PS2Error as error:
        # ``result_of`` raises the error in the driver, as in a training on servers.
        return Outcome(warnings=collector.warnings, error=error)
    finally:
        log.removeHandler(collector)


def run_only_worker(train: Train, table: Table, options: Any, servers: int, worker: Any, reading: Reading) -> Outcome:
    return train_in_process(servers, reading, lambda ps, on_step: train(ps, table, options, on_step=on_step))


def train_in_only_worker(ps: Any, table: Table, form: Form, train: Train, options: Any, on_step: OnStep) -> Any:
    """Call ``train`` in the process of one worker, with as many servers as the context has; return its result.

    ``on_step`` is called for each step after the training has ended.
    """
    program = partial(run_only_worker, train, replace(table, frame=None), options, len(ps.servers))
    # The program in the worker logs and records the files of rows.
    training = Training(table, form, program, seed=options.seed, spill=options.spilling)
    return result_of(run_alone(ps, training), on_step)


def train_surveyed(ps: Any, training: SurveyedTraining, on_step: OnStep) -> Any:
    """Survey rows and train on them in one Spark job; return the result; None: the driver decided not to train.

    The program of the training returns an ``Outcome``.
    """
    outcome = run_surveyed(ps, training)
    return None if outcome is None else result_of(outcome, on_step)
