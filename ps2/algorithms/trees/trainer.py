"""The training of boosted trees: the driver decides between the clocks of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

import numpy as np

from ps2.algorithms.training.checkpoint_names import UNNAMED, CheckpointNames
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.placement import Via
from ps2.algorithms.training.record import Record, StepReport, TrainingHistory, Words
from ps2.algorithms.training.replay_journal import ReplayJournal
from ps2.algorithms.training.run import Training, run_training
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.boosting_record import BoostingRecord
from ps2.algorithms.trees.driver_messages import NO_NODES, DriverMessage, FinalNodes, Task, has_gradients
from ps2.algorithms.trees.gradients import sums_below
from ps2.algorithms.trees.growth import BestSplits, Growth
from ps2.algorithms.trees.leaf_quantiles import CoarseQuantiles, LeafQuantiles
from ps2.algorithms.trees.local_trainer import LocalTreeDriver
from ps2.algorithms.trees.local_worker import LocalTreeProgram
from ps2.algorithms.trees.problem import BoostingOptions, TreeProblem
from ps2.algorithms.trees.quantiles import CLOCKS, END, Quantiles
from ps2.algorithms.trees.rounds import first_scales, next_scales
from ps2.algorithms.trees.starts import fingerprint
from ps2.algorithms.trees.tree import Forest, Tree
from ps2.algorithms.trees.tree_matrices import TreeMatrices, check_room
from ps2.algorithms.trees.worker import TreeProgram
from ps2.array_types import Float64s, Int64s
from ps2.client.dcv import DCV
from ps2.run.message import Message


@dataclass(frozen=True, eq=False)
class TrainedForest:
    """The result of a training."""

    forest: Forest
    history: TrainingHistory


def train(
    ps: Any,
    table: Table,
    problem: TreeProblem,
    options: BoostingOptions,
    facts: Facts,
    on_step: Callable[[StepReport], Any] = lambda step: None,
) -> TrainedForest:
    """Grow trees on the servers of a context, or go on in one that was restored: see ``BoostingOptions.name``.

    They are the same, bit for bit, on any number of workers and servers, and in the only worker's process.

    Args:
        ps: the PS2Context.
        table: rows.
        problem: the objective.
        options: how to grow trees.
        facts: of the rows' labels and weights.
        on_step: called in the driver after each round; returns True to end the training.

    Raises:
        LimitError: histograms cannot fit the servers.
        NotFoundError, ConfigError: the context was restored from a checkpoint without a training of this name, or with
            another one.
        InputError: a row cannot be used; says how many, and names one.
        SlotsError, WorkerError...: as ``ps.run`` raises.
    """
    names = CheckpointNames.of(options.name, ps)
    if not names.begun and options.via == "servers":
        check_room(problem, options, facts.rows, ps.memory())
    words = Words("tree" if problem.objective.width == 1 else "round", "loss")
    driver = _driver(table, problem, options, facts, Record(on_step, words), names)
    try:
        driver.go_on_from(names)
        if not driver.is_over:
            form = Form(problem.dim, problem.classes, missing=True, categories=problem.categories)
            run_training(
                ps, Training(table, form, driver.program, driver.on_clock, 0, options.seed, names.begun, driver.journal)
            )
        return TrainedForest(driver.boosting.forest(), driver.boosting.history())
    finally:
        driver.free()


def _driver(
    table: Table, problem: TreeProblem, options: BoostingOptions, facts: Facts, record: Record, names: CheckpointNames
) -> _TreeDriver | LocalTreeDriver:
    if options.via == "servers":
        return _TreeDriver(table, problem, options, facts, record, names)
    mean = mean_weight_of(table, facts)
    journal = ReplayJournal.of(names, settings_of(problem, options, facts.rows, mean))
    least = least_rows(problem, options, mean)
    # By its name a restored context knows the training.
    named = names.give(lambda name: DCV.dense(1, 1, "int64", name=name))
    return LocalTreeDriver(LocalTreeProgram(problem, options, least, mean, names.begun), record, journal, named)


def begun_via(ps: Any, name: str) -> Via | None:
    """Return where the trees of a training lie that a restored context goes on with; None: it goes on with none."""
    names = CheckpointNames.of(name, ps) if name and ps.conf.restore is not None else UNNAMED
    settings = ReplayJournal.settings_of(names) if names.called else {}
    return settings.get("via")


def mean_weight_of(table: Table, facts: Facts) -> float | None:
    """Return the mean weight of the rows; None: all weights are 1."""
    return None if table.columns.weight is None else facts.weight / facts.rows


def least_rows(problem: TreeProblem, options: BoostingOptions, mean_weight: float | None) -> int:
    """Return the least number of rows that hold a feature for it to part any node.

    One side of a split has only rows that hold the feature, and these must be heavy enough.
    """
    if mean_weight is not None:
        return 0
    # Quantised hessians sum up to little more: each is rounded up by 1 / 32 of the largest at most.
    most = problem.objective.most_hessian * (1 + 1 / 32)
    return max(1, options.min_third, math.ceil(options.min_hessian / most))


def settings_of(problem: TreeProblem, options: BoostingOptions, rows: int, mean_weight: float | None) -> dict[str, Any]:
    """Return the settings that trees depend on: not the rounds, and not sums of weights, whose last digits vary."""
    initial = "" if problem.initial is None else fingerprint(problem.initial)
    settings = {**asdict(replace(problem, initial=None)), **asdict(options), "rows": rows, "initial": initial}
    settings["weighted"] = mean_weight is not None
    return {name: value for name, value in settings.items() if name not in ("rounds", "name")}


@dataclass(frozen=True, eq=False)
class _State:
    """The state of the training in one clock.

    Attributes:
        task: of the workers.
        trees: number of finished trees.
        scales, totals: of the growing tree.
        answers: of the servers, for the growing tree so far.
        below: bounds of the sums of hessians, gradients and weights in the tree's round (``sums_below``).
        is_recorded: whether the loss before the tree's round is known.
        nodes: of a grown tree whose leaves will be quantiles.
        sought: the coarse cells of these quantiles.
    """

    task: Task
    trees: int
    scales: tuple[float, float] = (1.0, 1.0)
    totals: Int64s | None = None
    answers: tuple[BestSplits | None, ...] = ()
    below: Float64s = field(default_factory=lambda: np.zeros(3))
    is_recorded: bool = False
    nodes: FinalNodes = NO_NODES
    sought: CoarseQuantiles | None = None

    @property
    def is_after_tree(self) -> bool:
        """Whether a tree has just been finished."""
        return self.trees > 0 and self.task in (Task.BEGIN, Task.ROOT)


class _TreeDriver:
    """The driver's program."""

    def __init__(
        self,
        table: Table,
        problem: TreeProblem,
        options: BoostingOptions,
        facts: Facts,
        record: Record,
        names: CheckpointNames,
    ) -> None:
        self.boosting, self.record = BoostingRecord(problem, options, record), record
        self._problem, self._options = problem, options
        self._rows = facts.rows
        mean = mean_weight_of(table, facts)
        self.journal = ReplayJournal.of(names, settings_of(problem, options, facts.rows, mean))
        self._quantiles = Quantiles.make(problem, options.bins, mean, names, least_rows(problem, options, mean))
        share = problem.objective.leaf_share
        # The bounds of monotone features hold for leaves from gradients only.
        self._leaf_quantiles = None if share is None or options.monotone else LeafQuantiles.make(share, mean)
        self.program = TreeProgram(problem, options, self._quantiles, self._leaf_quantiles, names.begun)
        self._fleet: TreeMatrices | None = None
        self._states: list[_State] = []  # by clock, from ``END`` on
        self._is_between = True  # False within the work after a clock, which a rollback may end anywhere
        self._growth: Growth | None = None
        self._sums: dict[str, Any] = {}  # what the workers reported of the clock
        self._told: dict[str, Any] = {}  # the message for the next one

    @property
    def is_over(self) -> bool:
        return bool(self._states) and self._states[-1].task == Task.STOP

    def go_on_from(self, names: CheckpointNames) -> None:
        """Replay what an earlier driver heard, up to the first clock that the workers have not finished."""
        self.record.start()
        if names.begun < END:
            return
        first = next(message for message in names.messages if "task" in message)
        matrices = DriverMessage.of_data(first).matrices
        self._fleet = TreeMatrices.existing(self._quantiles.cut(), self._problem, self._options, matrices)
        self._states = [_State(Task.BEGIN, 0)]
        while len(self._states) <= names.begun - END and not self.is_over:
            self._after(len(self._states) - 1)

    def free(self) -> None:
        """Free all matrices on the servers."""
        self._quantiles.free()
        if self._leaf_quantiles is not None:
            self._leaf_quantiles.free()
        if self._fleet is not None:
            self._fleet.free()

    def on_clock(self, clock: int, reports: Sequence[Any] = ()) -> Message | None:
        """Go on after a clock, counted from ``FIRST_CLOCK``; it may be one again, when the fleet has rolled back."""
        self._sums, self._told = reports[0] if reports else {}, {}
        if clock < CLOCKS - 1:
            self._quantiles.look(clock)
        elif clock == CLOCKS - 1:
            self._prepare()
        else:
            self._after(clock - CLOCKS)
        return self.journal.message(**self._told)

    def _after(self, at: int) -> None:
        """Go on after a clock of the trees."""
        self.record.enter(at)
        self._roll_back(at)
        self._is_between = False
        with self.journal.page(END + at):
            state = self._states[at]
            self._states.append(self._following(state))
        self._is_between = True

    def _following(self, state: _State) -> _State:
        """Return the next state, after all workers have finished a clock, and write their message."""
        match state.task:
            case Task.BEGIN:
                return self._after_begin(state)
            case Task.COARSE:
                return self._after_coarse(state)
            case Task.FINE:
                return self._after_fine(state)
            case _:
                return self._after_histograms(state)

    def _prepare(self) -> None:
        """Bins are known: make room for histograms."""
        if self._fleet is not None:
            self._fleet.free()
        bins = self._quantiles.cut()
        self._fleet = TreeMatrices.make(bins, self._problem, self._options, self._rows)
        self._states = [_State(Task.BEGIN, 0)]
        self.boosting.trees.clear()
        self._growth = None
        self._tell(0, Task.BEGIN, 0)
        self.record.start()

    def _roll_back(self, at: int) -> None:
        """Forget the states after a clock, and what was changed since, if the fleet has rolled back."""
        if at == len(self._states) - 1 and self._is_between:
            return
        state = self._states[at]
        del self._states[at + 1 :], self.boosting.trees[state.trees :]
        if state.totals is not None:
            self._growth = self._planted(state)
            for answer in state.answers:
                self._growth.go_on(answer)

    def _planted(self, state: _State) -> Growth:
        assert self._fleet is not None
        assert state.totals is not None
        rate = self._options.rate_of(state.trees, self._problem.objective.width)
        return Growth(self._options, self._fleet.bins, state.scales, state.totals, state.trees, rate)

    def _after_begin(self, state: _State) -> _State:
        """All have reported losses and gradients: before the first tree, or after the last round."""
        state, is_enough = self._take_sums(state)
        if is_enough or state.trees == self.boosting.most:
            return self._stop(state)
        scales = first_scales(self._options, state.below)
        self._tell(len(self._states), Task.ROOT, state.trees, scales)
        return _State(Task.ROOT, state.trees, scales, below=state.below)

    def _stop(self, state: _State) -> _State:
        self._tell(len(self._states), Task.STOP, state.trees)
        return _State(Task.STOP, state.trees)

    def _take_sums(self, state: _State) -> tuple[_State, bool]:
        """Take in the reports at the beginning of a tree; return the new state, and whether the training ends.

        An earlier driver may have ended here. Then no worker has reported the totals of a root.
        """
        sums = self.journal.hear(self._heard)
        self._count_rows(state, sums)
        state = replace(state, totals=sums.get("totals") if state.task == Task.ROOT else None)
        if state.is_recorded or not has_gradients(state.task, state.trees, self._problem.objective.width):
            return state, False
        is_enough = self.boosting.note(sums, self.journal)
        return replace(state, below=sums["below"], is_recorded=True), is_enough

    def _heard(self) -> dict[str, Any]:
        """Return the reports, with bounds of sums in place of exponents, the metric, and the seconds of the step."""
        heard = {**self._sums, "lap_s": self.record.lap_s}
        if (exponents := heard.pop("exponents", None)) is not None:
            heard["below"] = sums_below(exponents)
        if (held := heard.pop("held", None)) is not None:
            heard["held"] = self.boosting.metric.value(held)
        return heard

    def _count_rows(self, state: _State, sums: Mapping[str, Any]) -> None:
        """Note the number of rows in each node of the last tree."""
        if state.is_after_tree and "counts" in sums:
            self.boosting.trees[-1] = replace(self.boosting.trees[-1], count=sums["counts"])

    def _after_histograms(self, state: _State) -> _State:
        """All have added histograms: find splits."""
        fleet = self._fleet
        assert fleet is not None
        if state.task == Task.ROOT:
            state, is_enough = self._take_sums(state)
            if is_enough:
                return self._stop(state)
            if state.totals is None:
                self._tell(len(self._states), Task.ROOT, state.trees, state.scales)
                return state
            self._growth = self._planted(state)
        growth = self._growth
        assert growth is not None
        found = None
        if growth.is_searched:
            found = BestSplits(*self.journal.hear(lambda: astuple(fleet.best_splits(growth, self._options))))
        splits, nodes = growth.go_on(found)
        if not growth.is_over:
            following = replace(state, task=Task.NODES, answers=(*state.answers, found))
        elif self._leaf_quantiles is not None:
            following = replace(state, task=Task.COARSE, answers=(*state.answers, found), nodes=nodes)
        else:
            following = self._after_tree(state, growth.finish())
        fleet.make_room(growth.room)
        if growth.clear and not self.journal.is_replaying:
            fleet.clear(growth.clear)
        self._tell_following(following, splits=splits, nodes=nodes)
        return following

    def _after_tree(self, state: _State, tree: Tree) -> _State:
        self.boosting.trees.append(tree)
        trees, width = state.trees + 1, self._problem.objective.width
        if trees == self.boosting.most:
            return _State(Task.BEGIN, trees)
        scales = state.scales
        if trees % width == 0:
            scales = next_scales(self._problem, self._options, state.below, self.boosting.trees[-width:])
        return _State(Task.ROOT, trees, scales, below=state.below)

    def _after_coarse(self, state: _State) -> _State:
        """All have added the residuals of a tree's leaves: find the coarse cells of the quantiles."""
        quantiles = self._leaf_quantiles
        assert quantiles is not None
        leaves = len(state.nodes.leaves)
        sought = CoarseQuantiles(*self.journal.hear(lambda: astuple(quantiles.find_coarse(leaves))))
        following = replace(state, task=Task.FINE, sought=sought)
        self._tell_following(following, nodes=state.nodes, cells=sought.cells)
        return following

    def _after_fine(self, state: _State) -> _State:
        """All have added the residuals in these cells: the quantiles are the leaves' values."""
        quantiles, sought = self._leaf_quantiles, state.sought
        assert quantiles is not None
        assert sought is not None
        assert self._growth is not None
        found = self.journal.hear(lambda: quantiles.find_fine(sought))
        tree = self._growth.finish()
        tree.value[state.nodes.is_leaf] = found * self._options.rate_of(state.trees, self._problem.objective.width)
        following = self._after_tree(state, tree)
        values = np.where(state.nodes.is_leaf, tree.value, 0.0)
        self._tell_following(following, nodes=replace(state.nodes, values=values))
        return following

    def _tell_following(self, following: _State, **others: Any) -> None:
        self._tell(len(self._states), following.task, following.trees, following.scales, **others)

    def _tell(self, at: int, task: Task, tree: int, scales: tuple[float, float] = (1.0, 1.0), **others: Any) -> None:
        """Write the message to the workers for a clock of the trees."""
        assert self._fleet is not None
        message = DriverMessage(END + at, task, tree, scales, self._fleet.numbers, **others)
        self._told = message.as_data()
