"""What goes wrong while a model is trained: each failure is one function for all trainings.

``FAILURES`` has them by name. Each is called with a ``Training``, a SparkSession and an empty folder; it trains
undisturbed, then disturbed, and compares the results. It fails, too, if nothing was disturbed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from faults import processes
from faults.again import killing_at_each_clock_and_checkpoint

import ps2
from ps2 import PS2Conf, PS2Context
from ps2.algorithms.frame.retry import retry_after_server_loss
from ps2.errors import ConfigError, NotFoundError

# Clocks in which workers die.
DEATHS = 3
# Spark lets a task fail less often than this.
TASK_FAILURES = 4
# Reads that a worker begins before it dies in the midst of a clock.
READS = 3
# The name of a training that another driver resumes.
NAME = "training"


class DriverLost(Exception):
    """The driver ends here."""


# -- workers that die --------------------------------------------------------------------------------------------------


class Death(NamedTuple):
    """A worker that dies in a clock."""

    rank: int
    clock: int


@dataclass(frozen=True)
class DyingProgram:
    """A program whose workers are killed (-9) in some clocks, once in each.

    Attributes:
        program: a worker's function.
        deaths: when which worker dies.
        folder: gets a file for each death.
    """

    program: Callable[..., Any]
    deaths: tuple[Death, ...]
    folder: str

    def __call__(self, worker: Any, rows: Any) -> Any:
        return self.program(DyingWorker(worker, self), rows)

    @staticmethod
    def die(now: Death, deaths: Sequence[Death], folder: str) -> None:
        """Kill this process, with all that it has changed applied, if this is one of the deaths that are due."""
        path = Path(folder, f"{now.rank}-{now.clock}")
        if now in deaths and not path.exists():
            ps2.flush()
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class DyingWorker:
    """A worker that dies in the midst of some clocks, or when it has done its part, before they count."""

    def __init__(self, worker: Any, dying: DyingProgram) -> None:
        self._worker, self._dying = worker, dying
        self._reads = 0  # since the end of a clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def clocks(self, *args: Any, **kwargs: Any) -> Iterator[int]:
        for clock in self._worker.clocks(*args, **kwargs):
            try:
                yield clock
            finally:  # it may leave the loop within a clock
                self._die()

    def rotate(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for turn in self._worker.rotate(*args, **kwargs):
            try:
                yield turn
            finally:
                self._die()

    def barrier(self) -> None:
        """In clocks of odd numbers it dies here, if it comes here."""
        if self._worker.clock % 2:
            self._die()
        self._worker.barrier()

    def prefetch(self, *args: Any, **kwargs: Any) -> Any:
        """In every fourth clock it dies when it has begun so many reads, if it begins them."""
        self._reads += 1
        if self._worker.clock % 4 == 0 and self._reads == READS:
            self._die()
        return self._worker.prefetch(*args, **kwargs)

    def _die(self) -> None:
        self._reads = 0
        DyingProgram.die(Death(self._worker.rank, self._worker.clock), self._dying.deaths, self._dying.folder)


@contextmanager
def programs_of_runs(change: Callable[[Any], Any], results: list[Any]) -> Iterator[None]:
    """Change the program of each run; note the runs' results."""
    run = PS2Context.run

    def changed(ps: Any, data: Any, program: Any, *args: Any, **kwargs: Any) -> Any:
        results.append(run(ps, data, change(program), *args, **kwargs))
        return results[-1]

    with mock.patch.object(PS2Context, "run", changed):
        yield


@contextmanager
def dying_workers(clocks: Sequence[int], workers: int, folder: str) -> Iterator[list[Death]]:
    """Kill workers by turns, once in each of some clocks; yield the deaths.

    Args:
        clocks: the clocks; only as many count as Spark allows deaths.
        workers: number of workers.
        folder: gets a file for each death.
    """
    some = clocks[: (TASK_FAILURES - 1) * workers]
    deaths = [Death(number % workers, clock) for number, clock in enumerate(some)]
    with programs_of_runs(lambda program: DyingProgram(program, tuple(deaths), folder), []):
        yield deaths


def workers_die(training: Any, spark: Any, folder: Path) -> None:
    """Python workers are killed (-9) in clocks that are spread over all: their next attempts do these clocks again."""
    with _dying(training, spark, folder) as (clocks, die_in):
        die_in(sorted({clocks[int(position)] for position in np.linspace(0, len(clocks) - 1, DEATHS)}))


def workers_die_often(training: Any, spark: Any, folder: Path) -> None:
    """Python workers are killed (-9) in each clock, in as many trainings as that takes."""
    with _dying(training, spark, folder) as (clocks, die_in):
        left = clocks
        while left:
            left = left[die_in(left) :]


@contextmanager
def _dying(training: Any, spark: Any, folder: Path) -> Iterator[tuple[list[int], Callable[[Sequence[int]], int]]]:
    """Train undisturbed; yield the clocks of that, and what trains while workers die, and returns how many did."""
    runs: list[Any] = []
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        fit = training.on(ps, spark)
        with programs_of_runs(lambda program: program, runs):
            expected = fit()

        def die_in(clocks: Sequence[int]) -> int:
            with training.dying(clocks, len(runs[0]) if runs else 1, str(folder)) as deaths:
                result = fit()
            missing = {f"{rank}-{clock}" for rank, clock in deaths} - {path.name for path in folder.iterdir()}
            assert not missing, f"no worker has died in {missing}"
            training.check(result, expected, training.rtol)
            return len(deaths)

        clocks = {int(clock) for run in runs for rank in run.timeline for clock in rank.clock}
        yield sorted(clocks) or list(range(1, training.batches + 1)), die_in


# -- servers that die --------------------------------------------------------------------------------------------------


def server_with_copies_dies(training: Any, spark: Any, folder: Path) -> None:
    """A server is killed (-9) whose shards have copies: nothing is done again."""
    _server_dies(training, spark, rolls_back=False, replicas=1)


def fleet_rolls_back(training: Any, spark: Any, folder: Path) -> None:
    """A server without copies is killed (-9): all roll back to a checkpoint, and do the clocks since then again."""
    _server_dies(training, spark, rolls_back=True, checkpointDir=str(folder), checkpointEverySteps=3)


def _server_dies(training: Any, spark: Any, rolls_back: bool, **settings: Any) -> None:
    with PS2Context.getOrCreate(spark, servers=2, **settings) as ps:
        fit, steps = training.on(ps, spark), list[Any]()
        expected = fit(on_step=steps.append)
        result = fit(on_step=_once_midway(steps, lambda: processes.kill(processes.servers_of(ps)[0])))
        assert {recovery.rolledBack for recovery in ps.recoveries} == {rolls_back}, ps.recoveries
    training.check(result, expected, training.rtol)


def servers_die_often(training: Any, spark: Any, folder: Path) -> None:
    """A server is killed (-9) at the end of each clock, and in each checkpoint."""
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        expected = training.on(ps, spark)()
    with PS2Context.getOrCreate(spark, servers=2, checkpointDir=str(folder), checkpointEverySteps=2) as ps:
        fit = training.on(ps, spark)
        with killing_at_each_clock_and_checkpoint(ps, training.spared + 1) as killed:
            result = retry_after_server_loss(fit)
        assert killed.clocks, "no server was killed at the end of a clock"
        assert killed.checkpoints, "no server was killed in a checkpoint"
        # Of a clock's end and the checkpoint right after it, one recovery may have both; and of the last ones, none.
        assert len(ps.recoveries) >= len(killed.clocks) // 2
    training.check(result, expected, training.rtol)


# -- drivers that end --------------------------------------------------------------------------------------------------


def driver_is_lost(training: Any, spark: Any, folder: Path) -> None:
    """Another driver resumes the training from a checkpoint, on another number of servers."""

    def lose() -> None:
        raise DriverLost

    often = {"checkpointDir": str(folder), "checkpointEverySteps": 1, "conf": PS2Conf(keep=1)}
    more = int(training.extendable)
    with PS2Context.getOrCreate(spark, servers=2, **often) as ps:
        fit, steps, rest = training.on(ps, spark), list[Any](), list[Any]()
        expected = fit(more=more, on_step=steps.append)
        with pytest.raises(DriverLost):
            fit(name=NAME, on_step=_once_midway(steps, lose))
    with PS2Context.getOrCreate(spark, servers=3, restore=str(folder)) as ps:
        fit = training.on(ps, spark)
        if training.knows_settings:
            with pytest.raises(ConfigError, match=f"'{NAME}' in the checkpoint is another one: .*seed was 3, and is 4"):
                fit(name=NAME, seed=4)
        with pytest.raises(NotFoundError, match="the checkpoint holds no training 'another'"):
            fit(name="another")
        result = fit(name=NAME, more=more, on_step=rest.append)
    assert 0 < len(rest) < len(steps), f"{len(rest)} of {len(steps)} steps were left to do"
    training.check(result, expected, max(training.rtol, training.rtol_elsewhere))


def user_interrupts(training: Any, spark: Any, folder: Path) -> None:
    """Ctrl-C ends a training: it leaves nothing on the servers, and the next one is undisturbed."""
    with PS2Context.getOrCreate(spark, servers=2) as ps:
        fit, steps = training.on(ps, spark), list[Any]()
        expected = fit(on_step=steps.append)
        before = _held_by(ps)
        with pytest.raises(KeyboardInterrupt):
            fit(on_step=_once_midway(steps, lambda: signal.raise_signal(signal.SIGINT)))
        after = _held_by(ps)
        assert after == before, f"{before} before, {after} after"
        result = fit()
    training.check(result, expected, training.rtol)


def _held_by(ps: Any) -> tuple[int, list[tuple[int, int]]]:
    """Return how many matrices the servers hold, and the memory of each."""
    return len(ps.status().matrices), ps.memory()


def _once_midway(steps: Sequence[Any], act: Callable[[], object]) -> Callable[[Any], None]:
    """Return an ``on_step`` that does something after half of the steps, once.

    Args:
        steps: reports of an undisturbed training.
    """
    midway, finished = steps[(len(steps) - 1) // 2].number, list[int]()

    def on_step(report: Any) -> None:
        if not finished and report.number >= midway:
            finished.append(report.number)
            act()

    return on_step


FAILURES = {
    "workers die": workers_die,
    "server with copies dies": server_with_copies_dies,
    "fleet rolls back": fleet_rolls_back,
    "driver is lost": driver_is_lost,
    "user interrupts": user_interrupts,
    "workers die often": workers_die_often,
    "servers die often": servers_die_often,
}
