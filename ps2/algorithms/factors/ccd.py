"""Train by coordinate descent: the run, and the driver's program between its clocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ps2.algorithms.factors.ccd_descent import HELD_LOSS, HELD_WEIGHT, LOSS, PENALTY, WEIGHT, padded
from ps2.algorithms.factors.ccd_kernels import Float32s
from ps2.algorithms.factors.ccd_reading import WorkersRatings, read_ratings
from ps2.algorithms.factors.ccd_vectors import CcdSizes, CcdVectors
from ps2.algorithms.factors.ccd_worker import CcdProgram
from ps2.algorithms.factors.dealing import Deal, DealtRatings
from ps2.algorithms.factors.grid import Layout
from ps2.algorithms.factors.options import WORDS, FactorOptions, FittedFactors
from ps2.algorithms.factors.ratings import RatingsSurvey
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record, StepReport, Words
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.training.run import FIRST_CLOCK
from ps2.data.ids import WRONG
from ps2.errors import InputError, PS2Error
from ps2.run.message import STOP, Message, Stop

# A field of an iteration's record in the journal, beside those of the workers' reports.
SECONDS = "seconds"
IMPLICIT_WORDS = Words("iteration", "loss")
# Standard deviation of the numbers of new vectors, times the root of the rank.
SPREAD = 1.0


def train_by_descent(
    ps: Any,
    dealt: DealtRatings,
    survey: RatingsSurvey,
    options: FactorOptions,
    start: FittedFactors | None = None,
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> FittedFactors:
    """Factorize by coordinate descent; arguments and errors are those of ``trainer.train``."""
    names = CheckpointNames.of(options.name, ps)
    record = Record(on_step, IMPLICIT_WORDS if options.implicit else WORDS)
    driver = _Driver(survey, dealt.deal, options, names, record)
    try:
        driver.begin(start)
        if driver.is_over:
            return driver.fitted()
        results: list[FittedFactors] = []
        ps.run(
            *(dealt.frame, driver.program(), dealt.workers),
            read=_Read(dealt.deal.layout, options),
            onClock=driver.on_clock,
            onEnd=lambda: results.append(driver.fitted()),
            firstClock=names.begun,
            seed=options.seed % 2**63,
        )
        return results[-1]
    finally:
        driver.free()


@dataclass(frozen=True, eq=False)
class _Read:
    layout: Layout
    options: FactorOptions

    def __call__(self, worker: Any, batches: Iterator[Any]) -> WorkersRatings:
        first, end = self.layout.users_of(worker.rank)[[0, -1]].tolist()
        return read_ratings(batches, (first, end), self.options)


class _Driver:
    """The driver's program."""

    def __init__(
        self, survey: RatingsSurvey, deal: Deal, options: FactorOptions, names: CheckpointNames, record: Record
    ) -> None:
        self._survey, self._deal, self._options, self._names, self._record = survey, deal, options, names, record
        workers = deal.layout.ring.workers
        self._journal = ReplayJournal.of(names, settings_of(survey, options, workers))
        self._vectors = CcdVectors.make(CcdSizes(options, len(survey.users), len(survey.items), workers), names)
        self._mean = survey.mean if options.biases else 0.0
        self._told: list[dict[str, float]] = []  # by iteration
        self._stopped = False

    @property
    def is_over(self) -> bool:
        """Whether all iterations are done."""
        return self._stopped or len(self._told) >= self._options.iterations

    def begin(self, start: FittedFactors | None) -> None:
        """Write the vectors of the beginning, or replay the clocks of an earlier driver."""
        self._record.start()
        if self._names.begun <= FIRST_CLOCK:
            users, items = first_vectors(self._options, len(self._survey.users), len(self._survey.items))
            if start is not None:
                _take(users, self._survey.users.find(start.users.values), start.user_factors, start.user_bias)
                _take(items, self._survey.items.find(start.items.values), start.item_factors, start.item_bias)
            placed = np.empty_like(users), np.empty_like(items), np.empty(len(items))
            placed[0][self._deal.user_places] = users
            placed[1][self._deal.item_places] = items
            placed[2][self._deal.item_places] = self._options.reg * self._survey.item_penalties
            self._vectors.write(*placed)
        for clock in range(self._names.called):
            self.on_clock(clock, [])

    def program(self) -> CcdProgram:
        """Return the workers' program."""
        return CcdProgram(self._vectors, self._deal.layout, self._mean)

    def on_clock(self, clock: int, reports: Sequence[Any]) -> Message | Stop | None:
        """Do the driver's work after a clock; after a rollback a clock comes again."""
        if clock < FIRST_CLOCK:
            if reports and reports[0]:
                raise InputError(f"{int(reports[0])} {WRONG}")
            self._record.start()
            return self._journal.message(opening=True)
        self._record.enter(clock - FIRST_CLOCK)
        del self._told[len(self._record.seconds) :]
        with self._journal.page(clock):
            heard = self._journal.hear(lambda: {**reports[0], SECONDS: self._record.lap_s})
            self._end_iteration(heard)
        message = self._journal.message()
        if self._is_stuck():
            self._record.reason = f"no progress on the held-out rows for {self._options.patience} iterations"
            self._stopped = True
            return STOP
        return message

    def fitted(self) -> FittedFactors:
        """Return the result."""
        users, items = self._vectors.read(len(self._told))
        users, items = users[self._deal.user_places], items[self._deal.item_places]
        rank, biases = self._options.rank, self._options.biases
        bias = padded(rank)
        names = self._metrics(-1) if self._told else {}
        self._record.metrics = {name: tuple(self._metrics(at)[name] for at in range(len(self._told))) for name in names}
        return FittedFactors(
            self._survey.users,
            self._survey.items,
            np.ascontiguousarray(users[:, :rank]),
            np.ascontiguousarray(items[:, :rank]),
            users[:, bias].copy() if biases else None,
            items[:, bias].copy() if biases else None,
            self._mean,
            self._record.history(),
        )

    def free(self) -> None:
        """Free the vectors on the servers."""
        self._vectors.free()

    def _end_iteration(self, heard: dict[str, float]) -> None:
        record, iteration = self._record, len(self._told) + 1
        loss = heard[LOSS] / heard[WEIGHT] if heard[WEIGHT] else 0.0
        objective = loss if self._options.implicit else math.sqrt(max(loss, 0.0))
        if not math.isfinite(objective):
            raise PS2Error(
                f"iteration {iteration}: the loss is {loss}: the numbers have left float32's range; ratings of a "
                "smaller scale, or a larger regParam, may help"
            )
        self._told.append(heard)
        record.add(self._survey.rows, 0)
        if heard[HELD_WEIGHT]:
            held = heard[HELD_LOSS] / heard[HELD_WEIGHT]
            record.validation.append(held if self._options.implicit else math.sqrt(max(held, 0.0)))
        if self._journal.is_replaying:
            record.step_before(objective, heard[SECONDS])
        else:
            record.step(objective, self._metrics(-1))

    def _metrics(self, at: int) -> dict[str, float]:
        heard = self._told[at]
        speed = self._survey.rows / heard[SECONDS] if heard[SECONDS] else math.nan
        return {"objective": heard[LOSS] + heard[PENALTY], "ratings_per_s": speed}

    def _is_stuck(self) -> bool:
        """Whether the held-out rows' loss has not fallen for as many iterations as the options allow."""
        losses, patience = self._record.validation, self._options.patience
        return 0 < patience < len(losses) and since_progress(losses, self._options.validation_tol) >= patience


def settings_of(survey: RatingsSurvey, options: FactorOptions, workers: int) -> dict[str, Any]:
    """Return the settings that determine the vectors; a continued training may have more iterations."""
    sizes = {"users": len(survey.users), "items": len(survey.items), "ratings": survey.rows, "workers": workers}
    settings = {**asdict(options), **sizes}
    return {name: value for name, value in settings.items() if name not in ("iterations", "name")}


def since_progress(losses: Sequence[float], tolerance: float) -> int:
    """Return how many losses came after the last one that was lower than all before it, by the relative tolerance."""
    best, found = math.inf, 0
    for at, loss in enumerate(losses):
        if loss < best * (1 - tolerance) or at == 0:
            best, found = loss, at
    return len(losses) - 1 - found


def first_vectors(options: FactorOptions, users: int, items: int) -> tuple[Float32s, Float32s]:
    """Draw vectors, with their biases: shape (users, ranks) and (items, ranks). The users' are solved first."""
    ranks = padded(options.rank) + options.biases
    of_items = np.zeros((items, ranks), np.float32)
    draws = np.random.default_rng(options.seed)
    of_items[:, : options.rank] = draws.standard_normal((items, options.rank), np.float32)
    of_items *= np.float32(SPREAD / math.sqrt(options.rank))
    # Ratings have one sign, mostly: the first rank begins with it.
    of_items[:, 0] = np.abs(of_items[:, 0])
    if options.nonnegative:
        np.abs(of_items, out=of_items)
    return np.zeros((users, ranks), np.float32), of_items


def _take(vectors: Float32s, numbers: Any, factors: Float32s, bias: Float32s | None) -> None:
    """Set vectors to those of a model, and biases if both have some."""
    rank = factors.shape[1]
    vectors[numbers, :rank] = factors
    if bias is not None and vectors.shape[1] > padded(rank):
        vectors[numbers, padded(rank)] = bias
