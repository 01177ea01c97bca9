"""The driver of a factorization: what happens between the clocks of its workers, whatever the solver."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from ps2.algorithms.factors.dealing import Deal, DealtRatings
from ps2.algorithms.factors.options import FactorOptions, FittedFactors
from ps2.algorithms.factors.plan import HALVED, START
from ps2.algorithms.factors.progress import SECONDS, Iteration
from ps2.algorithms.factors.ratings import RatingsSurvey
from ps2.algorithms.factors.rows import Vectors
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record, StepReport, TrainingHistory
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.data.ids import WRONG
from ps2.errors import InputError, PS2Error
from ps2.run.message import STOP, Message, Stop

# A field that the driver adds to what was heard in a clock: the iterations that it wants.
ITERATIONS = "iterations"


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be trained.

    Attributes:
        survey: of the ratings, together with the users and items of ``start``.
        start: a model to go on from, or None.
    """

    survey: RatingsSurvey
    deal: Deal
    options: FactorOptions
    start: FittedFactors | None = None

    @property
    def keeps_best(self) -> bool:
        """Whether held-out rows choose the iteration whose vectors are the result."""
        return self.survey.held_out > 0 and self.options.patience > 0

    def described(self) -> dict[str, Any]:
        """Return what determines the vectors, as plain data; a continued training may have more iterations."""
        survey, layout = self.survey, self.deal.layout
        settings = {
            **asdict(replace(self.options, iterations=1, name="")),
            "workers": layout.ring.workers,
            "groups": layout.groups,
            "users": layout.users,
            "items": layout.items,
            "ratings": survey.rows,
            "mean": survey.mean,
            "std": survey.std,
        }
        return {name: value for name, value in settings.items() if name not in ("iterations", "name")}


class Following(Protocol):
    """How far a training is, by the reports of its workers; the same reports lead to the same state.

    Attributes:
        results: of each iteration.
        halvings: how often the training has begun anew with half the step.
        is_over: the training needs no further clock.
        stopped_early: validation ended the training.
        failure: why the training cannot go on; "": it can.
    """

    results: list[Iteration]
    halvings: int
    is_over: bool
    stopped_early: bool
    failure: str

    @property
    def best(self) -> int | None:
        """The iteration, from 1, whose vectors are the result, if held-out rows choose it."""

    def hear(self, clock: int, heard: Mapping[str, float]) -> dict[str, Any]:
        """Take in the reports of a clock, from ``START`` on; return the message to the workers."""

    def go_on_to(self, iterations: int) -> None:
        """Let another driver decide on the last iteration."""


class SolverPart(Protocol):
    """A solver's part in the driver: its state on the servers, and its workers' program.

    Attributes:
        staleness: of the run.
        scale: of results, by which those that are told are multiplied.
        mean: of predictions.
        step_size: the first step; None: there are no steps.
    """

    staleness: int
    scale: float
    mean: float
    step_size: float | None

    def begin(self, iterations: int) -> Following:
        """Return the progress of a training that begins."""

    def put_first(self) -> None:
        """Put the vectors to begin with on the servers."""

    def keep(self, iteration: int) -> None:
        """Note that an iteration is the best so far, before any worker begins the next but one."""

    def read(self, progress: Any) -> tuple[Vectors, Vectors]:
        """Return the users' and the items' vectors and biases that are the result."""

    def reader(self) -> Callable[..., Any]:
        """Return what a worker reads its ratings with; what it returns has an attribute ``strange``."""

    def program(self) -> Callable[..., None]:
        """Return what each worker does with its ratings from ``START`` on; picklable."""

    def free(self) -> None:
        """Free the state on the servers."""


# Called with the iterations that the first driver of a training wanted.
MakePart = Callable[[Problem, CheckpointNames, int], SolverPart]


class Driver:
    """The driver's program."""

    def __init__(
        self, problem: Problem, make: MakePart, names: CheckpointNames, on_step: Callable[[StepReport], None]
    ) -> None:
        self._problem, self._names, self._options = problem, names, problem.options
        self._journal = ReplayJournal.of(names, problem.described())
        # An earlier driver may have wanted other iterations: its clocks follow from those.
        self._iterations = self._journal.hear(lambda: problem.options.iterations)
        self.solver = make(problem, names, self._iterations)
        self._record = Record(on_step, problem.options.words)
        self._pages: dict[int, dict[str, float]] = {}  # what was heard, by clock
        self._progress = self.solver.begin(self._iterations)

    def run(self, ps: Any, dealt: DealtRatings) -> FittedFactors:
        """Train, or continue the training of an earlier driver."""
        try:
            self.begin()
            if self._progress.is_over:
                return self.fitted()
            results: list[FittedFactors] = []
            ps.run(
                *(dealt.frame, _Work(self.solver.program()), dealt.workers, self.solver.staleness),
                read=self.solver.reader(),
                onClock=self.on_clock,
                onEnd=lambda: results.append(self.fitted()),
                firstClock=self._names.begun,
                seed=self._options.seed % 2**63,
            )
            return results[-1]
        finally:
            self.solver.free()

    def begin(self) -> None:
        """Put the first vectors on the servers, or replay the clocks of an earlier driver, if there was one."""
        self._record.start()
        if self._names.begun <= START:
            self.solver.put_first()
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
        self._roll_back_to(clock)
        if self._progress.is_over and not self._journal.has_page(clock):
            return STOP
        before = len(self._progress.results)
        with self._journal.page(clock):
            heard = self._journal.hear(lambda: self._heard(reports))
            told = self._take_in(clock, heard)
            self._pages[clock] = heard
            self._follow_up(before, told)
        return self._journal.message(**told)

    def fitted(self) -> FittedFactors:
        """Return the result."""
        (users, user_bias), (items, item_bias) = self.solver.read(self._progress)
        survey, halvings, step = self._problem.survey, self._progress.halvings, self.solver.step_size
        vectors = survey.users, survey.items, users, items, user_bias, item_bias
        step = None if step is None else step / 2**halvings
        return FittedFactors(*vectors, self.solver.mean, self._history(), step, halvings)

    def _roll_back_to(self, clock: int) -> None:
        """Forget the pages from a clock on: the fleet may have rolled back."""
        if all(page < clock for page in self._pages):
            return
        self._pages = {page: heard for page, heard in self._pages.items() if page < clock}
        self._progress = self.solver.begin(self._iterations)
        for page, heard in self._pages.items():
            self._take_in(page, heard)
        self._progress.go_on_to(self._options.iterations)

    def _take_in(self, clock: int, heard: Mapping[str, float]) -> dict[str, Any]:
        """Take in what was heard in a clock; return the message to the workers."""
        self._progress.go_on_to(int(heard.get(ITERATIONS, self._iterations)))
        return self._progress.hear(clock, heard)

    def _heard(self, reports: Sequence[Any]) -> dict[str, float]:
        """Return what workers have reported, as plain data."""
        merged = {name: float(value) for report in reports for name, value in report.items()}
        seconds, self._lap_s = self._record.lap_s - self._lap_s, self._record.lap_s
        return {**merged, SECONDS: seconds, ITERATIONS: self._options.iterations}

    def _follow_up(self, before: int, told: Mapping[str, Any]) -> None:
        """Act on what a clock has decided; record the iteration that has ended, if one has."""
        record, progress = self._record, self._progress
        if progress.failure:
            raise PS2Error(progress.failure)
        if HALVED in told and not self._journal.is_replaying:
            self.solver.put_first()
        results = progress.results
        record.keep(min(before, len(results)))
        record.rows, record.bytes = (sum(getattr(one, name) for one in results) for name in ("ratings", "bytes"))
        if len(results) <= before:
            return
        last, scale = results[-1], self.solver.scale
        if progress.best == len(results) and not self._journal.is_replaying:
            self.solver.keep(len(results))
        if not math.isnan(last.validation):
            record.validation.append(scale * last.validation)
        if self._journal.is_replaying:
            record.step_before(scale * last.objective, last.seconds)
        else:
            record.step(scale * last.objective, _metrics(last))
        self._lap_s = record.lap_s

    def _history(self) -> TrainingHistory:
        results, best = self._progress.results, self._progress.best
        metrics = [_metrics(one) for one in results]
        names = metrics[-1] if metrics else {}
        self._record.metrics = {name: tuple(one[name] for one in metrics) for name in names}
        if self._progress.stopped_early:
            self._record.reason = f"no progress on the held-out rows for {self._options.patience} iterations"
        if best is not None and best < len(results):
            self._record.best = best
            reason = self._record.reason or self._record.completed
            self._record.reason = f"{reason}; the vectors are those of iteration {best}"
        return self._record.history()

    _lap_s = 0.0


@dataclass(frozen=True, eq=False)
class _Work:
    program: Callable[..., None]

    def __call__(self, worker: Any, ratings: Any) -> None:
        for _ in worker.clocks(START):
            worker.report(ratings.strange)
        self.program(worker, ratings)


def _metrics(one: Iteration) -> dict[str, float]:
    found = {"ratings_per_s": one.ratings / max(one.seconds, 1e-9)}
    return found if math.isnan(one.penalised) else {"objective": one.penalised, **found}
