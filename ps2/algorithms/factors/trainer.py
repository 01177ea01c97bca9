"""Train a factorization: the run, and the driver's program between its clocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ps2.algorithms.factors.ccd import train_by_descent
from ps2.algorithms.factors.dealing import Deal, DealtRatings
from ps2.algorithms.factors.grid import Grid, Layout, read_grid
from ps2.algorithms.factors.options import WORDS, FactorOptions, FittedFactors
from ps2.algorithms.factors.plan import START, Lengths
from ps2.algorithms.factors.progress import SECONDS, Progress, Stopping
from ps2.algorithms.factors.ratings import RatingsSurvey
from ps2.algorithms.factors.rows import Beginning, Scaling
from ps2.algorithms.factors.sgd import SgdProgram, SgdSettings
from ps2.algorithms.factors.shared_factors import FleetSizes, SharedFactors
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record, StepReport, TrainingHistory
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.data.ids import WRONG
from ps2.errors import ConfigError, InputError, PS2Error
from ps2.run.message import STOP, Message, Stop

Array = npt.NDArray[Any]

# Vectors that the driver pushes or pulls at once, in bytes.
SOME_BYTES = 64 << 20


class Program(Protocol):
    """What each worker does with its ratings from ``START`` on; picklable."""

    def __call__(self, worker: Any, grid: Grid) -> None: ...


def train(
    ps: Any,
    dealt: DealtRatings,
    survey: RatingsSurvey,
    options: FactorOptions,
    start: FittedFactors | None = None,
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> FittedFactors:
    """Factorize, with the items' vectors on the servers; in a restored context, continue.

    Args:
        ps: the PS2Context.
        dealt: ratings at the workers.
        survey: of the ratings, together with the users and items of ``start``.
        start: a model to go on from: its users and items keep their vectors, and new ones get drawn ones.
        on_step: called in the driver after each iteration.

    Raises:
        LimitError: the vectors do not fit on the servers.
        NotFoundError, ConfigError: the context was restored from a checkpoint without a training of this name, or with
            another one; or the model has another rank.
        InputError: rows differ from those that were surveyed.
        PS2Error: the training has diverged.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    if start is not None and start.rank != options.rank:
        raise ConfigError(f"rank: the model to go on from has rank {start.rank}, and the training {options.rank}")
    try:
        if options.solver == "ccd":
            return train_by_descent(ps, dealt, survey, options, start, on_step)
        names = CheckpointNames.of(options.name, ps)
        return _rotate(ps, dealt, _Driver(dealt.deal, survey, options, names, on_step), start)
    finally:
        survey.release()


def _rotate(ps: Any, dealt: DealtRatings, driver: _Driver, start: FittedFactors | None) -> FittedFactors:
    try:
        driver.begin(start)
        if driver.is_over:
            return driver.fitted()
        results: list[FittedFactors] = []
        ps.run(
            *(dealt.frame, _Work(driver.program()), dealt.workers, 1),
            read=_Read(dealt.deal.layout, driver.scaling),
            onClock=driver.on_clock,
            onEnd=lambda: results.append(driver.fitted()),
            firstClock=driver.begun,
            seed=driver.seed,
        )
        return results[-1]
    finally:
        driver.free()


@dataclass(frozen=True, eq=False)
class _Read:
    layout: Layout
    scaling: Scaling

    def __call__(self, worker: Any, batches: Iterator[Any]) -> Grid:
        scaling = self.scaling
        return read_grid(batches, self.layout, worker.rank, scaling.mean, scaling.scale, scaling.unit)


@dataclass(frozen=True, eq=False)
class _Work:
    program: Program

    def __call__(self, worker: Any, grid: Grid) -> None:
        for _ in worker.clocks(START):
            worker.report(grid.strange)
        self.program(worker, grid)


class _Driver:
    """The driver's program.

    Attributes:
        scaling: of ratings.
    """

    def __init__(
        self,
        deal: Deal,
        survey: RatingsSurvey,
        options: FactorOptions,
        names: CheckpointNames,
        on_step: Callable[[StepReport], None],
    ) -> None:
        self._deal, self._survey, self._options, self._names = deal, survey, options, names
        self.scaling = Scaling.of(survey, options)
        self._settings = SgdSettings(options, self.scaling.scale)
        layout = deal.layout
        self._journal = ReplayJournal.of(names, self._described())
        # An earlier driver may have wanted other iterations: its clocks follow from those.
        iterations = self._journal.hear(lambda: options.iterations)
        self._lengths = Lengths(layout.ring.turns, iterations, options.save_interval, survey.held_out > 0)
        self._fleet = SharedFactors.make(FleetSizes(layout.users, layout.items, self._settings.width), names)
        self._record = Record(on_step, WORDS)
        self._pages: list[dict[str, float]] = []  # what was heard in each clock
        self._progress = self._fresh()

    @property
    def is_over(self) -> bool:
        return self._progress.is_over

    @property
    def begun(self) -> int:
        """How many clocks an earlier driver's workers have finished."""
        return self._names.begun

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self._settings.seed

    def program(self) -> Program:
        """Return the workers' program."""
        return SgdProgram(self._settings, self._fleet, self._lengths)

    def begin(self, start: FittedFactors | None) -> None:
        """Put the first vectors on the servers, or replay the clocks of an earlier driver, if there was one."""
        self._record.start()
        if self._names.begun <= START:
            self._put_first(start)
        for clock in range(self._names.called):
            self.on_clock(clock, [])
        self._progress.go_on_to(self._options.iterations)

    def on_clock(self, clock: int, reports: Sequence[Any]) -> Message | Stop | None:
        """Do the driver's work after a clock; after a rollback a clock comes again."""
        if clock < START:
            if reports and reports[0]:
                raise InputError(f"{int(reports[0])} {WRONG}")
            self._record.start()
            return self._journal.message(opening=True)
        if self._progress.is_over and clock - START >= len(self._pages):
            return STOP
        self._go_back_to(clock - START)
        before = len(self._progress.results)
        with self._journal.page(clock):
            heard = self._journal.hear(lambda: self._heard(reports))
            told = self._progress.hear(clock, heard)
            self._pages.append(heard)
            self._tell(before)
        return self._journal.message(**told)

    def fitted(self) -> FittedFactors:
        """Return the result."""
        options, survey, deal, scaling = self._options, self._survey, self._deal, self.scaling
        generation = self._lengths.generation(self._progress.saved)
        found = []
        for matrix, places in (
            (self._fleet.kept_users[generation], deal.user_places),
            (self._fleet.kept_items[generation], deal.item_places),
        ):
            rows = np.empty((len(places), self._settings.width), np.float32)
            for some in self._slices(len(places)):
                rows[some] = matrix.pull(columns=places[some].astype(np.int64))
            found.append(scaling.restored(rows, options))
        (users, user_bias), (items, item_bias) = found
        return FittedFactors(
            *(survey.users, survey.items, users, items, user_bias, item_bias, scaling.mean, self._history())
        )

    def free(self) -> None:
        """Free the state on the servers."""
        self._fleet.free()

    # -- clocks --------------------------------------------------------------------------------------------------------

    def _fresh(self) -> Progress:
        return Progress(self._lengths, Stopping(self._options.validation_tol, self._options.patience))

    def _go_back_to(self, count: int) -> None:
        """Keep the pages of so many clocks: the fleet may have gone back."""
        if count >= len(self._pages):
            return
        del self._pages[count:]
        self._progress = self._fresh()
        for at, heard in enumerate(self._pages):
            if START + at == self._names.called:
                self._progress.go_on_to(self._options.iterations)
            self._progress.hear(START + at, heard)
        if START + count == self._names.called:
            self._progress.go_on_to(self._options.iterations)

    def _heard(self, reports: Sequence[Any]) -> dict[str, float]:
        """Return what workers have reported, as plain data."""
        merged = {name: float(value) for report in reports for name, value in report.items()}
        seconds, self._lap_s = self._record.lap_s - self._lap_s, self._record.lap_s
        return {**merged, SECONDS: seconds}

    def _tell(self, before: int) -> None:
        """Record the iteration that has ended, if one has."""
        record, results = self._record, self._progress.results
        record.keep(min(before, len(results)))
        record.rows, record.bytes = (sum(getattr(one, name) for one in results) for name in ("ratings", "bytes"))
        if len(results) <= before:
            return
        last = results[-1]
        if not math.isfinite(last.rmse):
            raise PS2Error(
                f"iteration {len(results)}: the RMSE is {last.rmse}: the training has diverged; a smaller stepSize, or "
                "a larger regParam, may help"
            )
        scale = self.scaling.scale
        if not math.isnan(last.validation):
            record.validation.append(scale * last.validation)
        if self._journal.is_replaying:
            record.step_before(scale * last.rmse, last.seconds)
        else:
            record.step(scale * last.rmse, {"ratings_per_s": last.ratings / max(last.seconds, 1e-9)})
        self._lap_s = record.lap_s

    def _history(self) -> TrainingHistory:
        self._record.metrics = {
            "ratings_per_s": tuple(one.ratings / max(one.seconds, 1e-9) for one in self._progress.results)
        }
        if self._progress.stopped_early:
            self._record.reason = "the RMSE of the held-out rows made no progress"
        return self._record.history()

    # -- vectors -------------------------------------------------------------------------------------------------------

    def _put_first(self, start: FittedFactors | None) -> None:
        """Put the vectors to begin with on the servers."""
        survey, deal = self._survey, self._deal
        kinds = (
            (self._fleet.kept_users[0], deal.user_places, survey.users, survey.user_penalties, "user"),
            (self._fleet.kept_items[0], deal.item_places, survey.items, survey.item_penalties, "item"),
        )
        beginning = Beginning(self._settings, self.scaling, start)
        for matrix, places, ids, ratings, kind in kinds:
            for some in self._slices(len(places)):
                rows = beginning.rows(kind, ids, some, ratings[some])
                matrix.push(columns=places[some].astype(np.int64), values=rows, wait=False)
            matrix.flush()

    def _slices(self, count: int) -> Iterator[slice]:
        each = max(1, SOME_BYTES // (4 * self._settings.width))
        for begin in range(0, count, each):
            yield slice(begin, min(begin + each, count))

    def _described(self) -> dict[str, Any]:
        """Return what determines the vectors; a continued training may have more iterations."""
        survey, layout = self._survey, self._deal.layout
        settings = {
            **asdict(replace(self._options, iterations=1, name="")),
            "workers": layout.ring.workers,
            "groups": layout.groups,
            "users": layout.users,
            "items": layout.items,
            "ratings": survey.rows,
            "mean": survey.mean,
            "std": survey.std,
        }
        return {name: value for name, value in settings.items() if name not in ("iterations", "name")}

    _lap_s = 0.0
