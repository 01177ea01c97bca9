"""The training of random forests: the driver decides between the clocks of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

import numpy as np

from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.record import Record, StepReport, TrainingHistory, Words
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.training.run import Training, run_training
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.forests.forest_record import ForestRecord
from ps2.algorithms.trees.forests.growth import ForestGrowth, FoundSplits
from ps2.algorithms.trees.forests.local import LocalForestDriver, LocalForestProgram
from ps2.algorithms.trees.forests.matrices import ForestMatrices
from ps2.algorithms.trees.forests.options import ForestOptions, least_rows
from ps2.algorithms.trees.forests.random_forest import RandomForest
from ps2.algorithms.trees.forests.worker import ForestProgram
from ps2.algorithms.trees.gradients import sums_below
from ps2.algorithms.trees.problem import TreeProblem
from ps2.algorithms.trees.quantiles import CLOCKS, END, Quantiles
from ps2.client.dcv import DCV
from ps2.run.message import Message


@dataclass(frozen=True, eq=False)
class GrownForest:
    """The result of a training."""

    forest: RandomForest
    history: TrainingHistory


def grow(
    ps: Any,
    table: Table,
    problem: TreeProblem,
    options: ForestOptions,
    facts: Facts,
    on_step: Callable[[StepReport], Any] = lambda step: None,
) -> GrownForest:
    """Grow a random forest in a context, or go on in one that was restored: see ``ForestOptions.name``.

    Its trees are the same, bit for bit, on any number of workers and servers, and in the only worker's process.

    Args:
        ps: the PS2Context.
        table: rows.
        problem: what labels are, and the base that is taken from labels that are numbers.
        options: how to grow trees.
        facts: of the rows' labels and weights.
        on_step: called in the driver after each tree.

    Raises:
        LimitError: histograms cannot fit the servers.
        NotFoundError, ConfigError: the context was restored from a checkpoint without a training of this name, or with
            another one.
        InputError: a row cannot be used; says how many, and names one.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    names = CheckpointNames.of(options.name, ps)
    record = Record(on_step, Words("tree", "impurity"), completed="all trees have grown")
    settings = {**asdict(replace(problem, initial=None)), **asdict(options)}
    # A sum of weights, whose last digits vary; other things to call the same training.
    journal = ReplayJournal.of(names, {key: value for key, value in settings.items() if key not in ("initial", "name")})
    mean = None if table.columns.weight is None else facts.weight / facts.rows
    driver: LocalForestDriver | _ForestDriver
    if options.via == "local":
        program = LocalForestProgram(problem, options, mean, names.begun)
        # By its name a restored context knows the training.
        named = names.give(lambda name: DCV.dense(1, 1, "int64", name=name))
        driver = LocalForestDriver(program, record, journal, named)
    else:
        quantiles = Quantiles.make(problem, options.bins, mean, names, least_rows(options))
        memory = ps.memory()
        driver = _ForestDriver(ForestProgram(problem, options, quantiles, names.begun), record, journal, memory)
    try:
        driver.go_on_from(names)
        if not driver.is_over:
            form = Form(problem.dim, problem.classes, missing=True, categories=problem.categories)
            run_training(
                ps, Training(table, form, driver.program, driver.on_clock, 0, options.seed, names.begun, driver.journal)
            )
        return GrownForest(driver.forest.forest(), driver.forest.history())
    finally:
        driver.free()


class _ForestDriver:
    """The driver's program, where histograms lie on servers.

    Args:
        memory: of each server the limit, and what is taken of it, in bytes.
    """

    def __init__(
        self, program: ForestProgram, record: Record, journal: ReplayJournal, memory: Sequence[tuple[int, int]]
    ) -> None:
        self.program, self.journal, self._memory = program, journal, memory
        self.forest = ForestRecord(program.problem, program.options, record)
        self._quantiles, self._options = program.quantiles, program.options
        self._fleet: ForestMatrices | None = None
        self._growth: ForestGrowth | None = None
        self._scales = (1.0, 1.0)
        # What was heard in each clock of the trees.
        self._heard: list[tuple[Mapping[str, Any], FoundSplits | None]] = []

    @property
    def is_over(self) -> bool:
        return self._growth is not None and self._growth.orders is None

    def free(self) -> None:
        """Free all matrices on the servers."""
        self._quantiles.free()
        if self._fleet is not None:
            self._fleet.free()

    def go_on_from(self, names: CheckpointNames) -> None:
        """Replay what an earlier driver heard, up to the first clock that the workers have not finished."""
        self.forest.record.start()
        if names.begun < END:
            return
        self._prepare(next(message for message in names.messages if "task" in message)["matrices"].tolist())
        while len(self._heard) < names.begun - END and not self.is_over:
            self._after(len(self._heard), {})

    def on_clock(self, clock: int, reports: Sequence[Any] = ()) -> Message | None:
        """Go on after a clock, counted from ``FIRST_CLOCK``; it may be one again, when the fleet has rolled back."""
        if clock < CLOCKS - 1:
            self._quantiles.look(clock)
            return self.journal.message()
        if clock == CLOCKS - 1:
            self._prepare()
            assert self._fleet is not None
            return self.journal.message(clock=END, task="begin", matrices=np.array(self._fleet.numbers))
        self._after(clock - CLOCKS, reports[0] if reports else {})
        return self.journal.message(**self._told(END + clock - CLOCKS + 1))

    def _prepare(self, numbers: Sequence[int] | None = None) -> None:
        """Bins are known: make room for histograms, or find that of an earlier driver."""
        if self._fleet is not None:
            self._fleet.free()
        bins, problem, options = self._quantiles.cut(), self.program.problem, self._options
        if numbers is None:
            self._fleet = ForestMatrices.make(bins, problem, options, self._memory)
        else:
            self._fleet = ForestMatrices.existing(bins, options, numbers)
        self._growth, self._heard = None, []
        self.forest.keep(0)

    def _after(self, at: int, report: Mapping[str, Any]) -> None:
        """Go on after a clock of the trees."""
        self.forest.record.enter(at)
        if at < len(self._heard):  # the fleet has rolled back
            self._roll_back(at)
        with self.journal.page(END + at):
            heard = self.journal.hear(lambda: dict(report))
            found = None if self._growth is None else self._find(self._growth, heard)
            self._heard.append((heard, found))
            self._step(heard, found)
            self.forest.record.add(0, int(heard.get("bytes", 0)))
            if self._growth is not None and (new := self._growth.trees[len(self.forest.trees) :]):
                self.forest.take_in(new, int(heard["rows"]))

    def _find(self, growth: ForestGrowth, heard: Mapping[str, Any]) -> FoundSplits | None:
        """Let the servers find the splits of the open nodes."""
        fleet, words = self._fleet, self.program.problem.words
        assert fleet is not None
        growth.take_totals(heard.get("totals"))
        if not len(growth.rows):
            return None
        return FoundSplits(*self.journal.hear(lambda: astuple(fleet.best_splits(growth, self._options, words))))

    def _step(self, heard: Mapping[str, Any], found: FoundSplits | None) -> None:
        """Go on with the trees."""
        if self._growth is None:
            assert self._fleet is not None
            bins = self._fleet.bins
            self._scales = self._options.scales(sums_below(heard["exponents"]))
            self.forest.begin(bins, self._scales)
            usable, words = int((bins.columns > 0).sum()), self.program.problem.words
            self._growth = ForestGrowth(self._options, self._scales, self._fleet.rows, usable, words)
        else:
            self._growth.take_totals(heard.get("totals"))
            self._growth.go_on(found)

    def _roll_back(self, at: int) -> None:
        """Forget what came after a clock, if the fleet has rolled back."""
        heard, self._heard, self._growth = self._heard[:at], [], None
        for said, found in heard:
            self._step(said, found)
            self._heard.append((said, found))
        self.forest.keep(0 if self._growth is None else len(self._growth.trees))

    def _told(self, clock: int) -> dict[str, Any]:
        """Return the message to the workers for a clock."""
        assert self._growth is not None
        assert self._fleet is not None
        orders = self._growth.orders
        if orders is None:
            return {"clock": clock, "task": "stop"}
        told = {"clock": clock, "task": "grow", "matrices": np.array(self._fleet.numbers)}
        return {**told, "scales": np.array(self._scales), **vars(orders)}
