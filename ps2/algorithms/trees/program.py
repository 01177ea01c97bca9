"""Gradient boosting as durable programs, with histograms on servers or in the process of the only worker.

Friedman, "Greedy function approximation" (2001), with the second-order gains and leaves of Chen and Guestrin, "XGBoost"
(2016), section 2.2. Workers have the rows, and build histograms of gradients. The servers add up the histograms, and
search them for the best splits. The driver chooses among these splits, and sends the nodes to split to the workers.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from ps2.algorithms.frame.journal import Journal, earlier_settings
from ps2.algorithms.frame.program import Ask, Program, Steps, run_program
from ps2.algorithms.training.checkpoint_names import UNNAMED, CheckpointNames
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Record, StepReport, Trained, Via, Words
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.binning import Bins
from ps2.algorithms.trees.boosted_growth import ROOT, BoostedGrowth
from ps2.algorithms.trees.boosting_record import BoostingRecord, next_scales, scales_of_round, sums_gradients_first
from ps2.algorithms.trees.driver_messages import (
    AddHistograms,
    AddResiduals,
    FinalNodes,
    Moves,
    PlantTrees,
    SumGradients,
)
from ps2.algorithms.trees.goss import top_rows
from ps2.algorithms.trees.gradients import sum_bounds
from ps2.algorithms.trees.growth import Growth, opened_roots
from ps2.algorithms.trees.leaf_quantiles import CoarseQuantiles, LeafQuantiles
from ps2.algorithms.trees.local_worker import GrowRounds, LocalTreeWorker
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem
from ps2.algorithms.trees.quantiles import Quantiles
from ps2.algorithms.trees.search_kernels import Splits
from ps2.algorithms.trees.statistic_sums import AddStatistics, CountCopies, StatisticSums
from ps2.algorithms.trees.tree import Forest, Tree, tree_as_data
from ps2.algorithms.trees.tree_matrices import HistogramMatrices, boosting_matrices, check_memory
from ps2.algorithms.trees.worker import TreeWorker
from ps2.array_types import Int64s
from ps2.client.dcv import DCV

F = TypeVar("F")


@dataclass(frozen=True, eq=False)
class TreeRun:
    """What the programs of a training have in common.

    Attributes:
        mean_weight: the mean weight of the rows; None: all weights are 1.
        settings: the settings on which trees depend.
        names: the names of the training's vectors in checkpoints.
    """

    problem: TreeProblem
    plan: Any
    rows: int
    mean_weight: float | None
    settings: dict[str, Any]
    record: Record
    names: CheckpointNames


class TreesProgram(Program[Trained[F]]):
    """A training of trees."""

    number = 3

    def __init__(self, run: TreeRun) -> None:
        problem = run.problem
        super().__init__(run.plan, problem.form, run.record)
        self._training_run, self._problem = run, problem
        self._statistics = StatisticSums.make(problem.statistics, problem.absent, run.names)

    def settings(self) -> dict[str, Any]:
        return self._training_run.settings

    def result(self, returned: Any) -> Trained[F]:
        result: Trained[Any] = returned.result()
        if self._statistics is not None:
            result = replace(result, model=replace(result.model, statistics=self._statistics.table()))
        return result

    def free(self) -> None:
        if self._statistics is not None:
            self._statistics.free()

    def add_statistics(self) -> Steps[None]:
        """Let the workers add the sums of target statistics, if there are any."""
        if self._statistics is not None:
            yield CountCopies()
            yield AddStatistics()


class LocalProgram(TreesProgram[F]):
    """A training of trees in the only worker's process."""

    def __init__(self, run: TreeRun) -> None:
        super().__init__(run)
        # A restored context recognises the training by the name of this vector.
        names = run.names
        self._name_vector = names.vector(lambda name: DCV.dense(1, 1, "int64", name=name)) if names.prefix else None

    def free(self) -> None:
        super().free()
        if self._name_vector is not None:
            self._name_vector.free()


class FleetProgram(TreesProgram[F]):
    """A training of trees with histograms on the servers; min_rows: see ``Quantiles``."""

    def __init__(self, run: TreeRun, min_rows: int) -> None:
        super().__init__(run)
        self._quantiles = Quantiles.make(run.problem, run.plan.settings.maxBins, run.mean_weight, run.names, min_rows)
        self._matrices: HistogramMatrices | None = None

    def prepare_histograms(self, ask: Ask) -> Steps[HistogramMatrices]:
        """Find cut points, and make the matrices."""
        yield from self.add_statistics()
        yield from self._quantiles.find_cut_points(ask)
        numbers = ask(self._make_matrices)
        if self._matrices is None:  # a driver that this one resumes has made them
            bins = self._quantiles.cut()
            self._matrices = HistogramMatrices.existing(bins, self._problem, self.plan.channels, numbers)
        ask.start_timer()
        return self._matrices

    def _make_matrices(self) -> list[int]:
        if self._matrices is not None:  # the fleet has rolled back
            self._matrices.free()
        self._matrices = self.make_matrices(self._quantiles.cut())
        return list(self._matrices.numbers)

    @abstractmethod
    def make_matrices(self, bins: Bins) -> HistogramMatrices:
        """Make the matrices of histograms."""

    def free(self) -> None:
        super().free()
        self._quantiles.free()
        if self._matrices is not None:
            self._matrices.free()


def grow_trees(ask: Ask, growth: Growth, matrices: HistogramMatrices) -> Steps[tuple[Moves, int]]:
    """Grow trees; return the last moves of rows, to the leaves, and the bytes of the workers' histograms."""
    histogram_bytes = 0
    while True:
        best = None
        if growth.open:
            best = Splits(*ask(lambda: list[Any](matrices.best_splits(growth))))
        moves = growth.advance(best)
        if growth.keeps_histograms:
            ask(lambda: matrices.prepare(growth))
        if growth.is_over:
            return moves, histogram_bytes
        report = yield AddHistograms(matrices=matrices.numbers, **moves.fields())
        histogram_bytes += int(getattr(report, "bytes", 0))


class BoostingProgram(FleetProgram[Forest]):
    """Gradient boosting with histograms on the servers."""

    def __init__(self, run: TreeRun) -> None:
        super().__init__(run, min_rows_to_split(run.problem, run.plan, run.mean_weight))
        level = run.problem.objective.leaf_quantile_level
        # Monotone constraints hold only for leaves whose values come from gradients.
        self._leaf_quantiles = None
        if level is not None and not run.plan.monotone:
            self._leaf_quantiles = LeafQuantiles.make(level, run.mean_weight)

    def drive(self, ask: Ask) -> Steps[BoostingRecord]:
        problem, plan, width = self._problem, self.plan, self._problem.objective.width
        sums_first = sums_gradients_first(problem, plan)
        matrices = yield from self.prepare_histograms(ask)
        numbers, roots = matrices.numbers, opened_roots([ROOT] if plan.settings.maxDepth else [])
        boosting, moves = BoostingRecord(problem, plan, self.record), Moves()
        trees = boosting.trees
        losses = yield SumGradients(matrices=numbers).then(self._summarize)
        boosting.begin(losses)
        is_recorded = True  # whether the losses after the last round are recorded
        # Scaled gradients are rounded to integers, so that sums do not depend on the order of the rows.
        scales = scales_of_round(plan, losses.below)
        while True:
            is_last = boosting.rounds >= ask.setting(lambda: plan.settings.maxIter)
            if is_last and is_recorded:
                return boosting
            if not is_recorded and (is_last or sums_first):
                # Workers would report the losses with the next tree, but there is none, or it needs the sums.
                last_trees = [] if plan.dropout is None else [tree_as_data(tree) for tree in trees[-width:]]
                sum_gradients = SumGradients(matrices=numbers, last_trees=last_trees, **moves.fields())
                losses = yield sum_gradients.then(self._summarize)
                _set_counts(trees, losses)
                is_recorded, moves = True, Moves()
                if sums_first:
                    scales = scales_of_round(plan, losses.below)
                if boosting.end_round(ask, losses):
                    return boosting
                continue
            top = losses.top if plan.samples_by_gradient(boosting.rounds) else ()
            for output in range(width):  # with classes, a round has a tree for each (Friedman, algorithm 6)
                # With the first tree of a round, workers report the losses after the previous round.
                begins_round, fields = not is_recorded and output == 0, replace(moves, opened=roots).fields()
                plant = PlantTrees(
                    matrices=numbers, first=len(trees), scales=scales, top=top, begins_round=begins_round, **fields
                )
                report = yield plant.then(self._summarize)
                _set_counts(trees, report)
                if begins_round:
                    losses = report
                    if not is_recorded and boosting.end_round(ask, losses):
                        return boosting
                grow_tree = partial(self._grow_tree, ask, matrices, len(trees), scales, report.totals)
                grown_tree = yield from ask.part(grow_tree)
                trees.append(Tree(*grown_tree["tree"]))
                moves = Moves(grown_tree["splits"], FinalNodes(*grown_tree["nodes"]))
            is_recorded = False
            if not sums_first:
                scales = next_scales(problem, plan, losses.below, trees[-width:])

    def _summarize(self, report: Any) -> dict[str, Any]:
        """Replace exponents in a report by ``sum_bounds``, cells by ``top_rows``, sums of held-out rows by metrics."""
        summary = dict(vars(report))
        if (exponents := summary.pop("exponents", None)) is not None:
            summary["below"] = sum_bounds(exponents)
        if (cells := summary.pop("cells", None)) is not None:
            summary["top"] = top_rows(cells, self.plan.settings.topRate)
        if (metric_sums := summary.pop("held", None)) is not None:
            summary["held"] = [self.plan.metric.value(set_sums) for set_sums in metric_sums]
        return summary

    def _grow_tree(
        self, ask: Ask, matrices: HistogramMatrices, number: int, scales: tuple[float, float], totals: Int64s
    ) -> Steps[dict[str, Any]]:
        """Grow a tree from its root's histogram; return as plain data the tree, and the moves of rows to its leaves."""
        rate = self.plan.rate_of(number, self._problem.objective.width)
        growth = BoostedGrowth(self.plan, matrices.bins, scales, totals, number, rate)
        moves, _ = yield from grow_trees(ask, growth, matrices)
        tree, nodes = growth.tree, moves.nodes
        if (quantiles := self._leaf_quantiles) is not None:
            # A leaf's value is a quantile of its rows' residuals, such as the median (Friedman, algorithm 3).
            yield AddResiduals(matrices=matrices.numbers, cells=None, **moves.fields())
            coarse = CoarseQuantiles(*ask(lambda: astuple(quantiles.find_coarse(len(nodes.leaves)))))
            yield AddResiduals(matrices=matrices.numbers, cells=coarse.cells, **Moves(nodes=nodes).fields())
            tree.value[nodes.is_leaf] = ask(lambda: quantiles.find_fine(coarse)) * rate
            moves = Moves(nodes=replace(nodes, values=np.where(nodes.is_leaf, tree.value, 0.0)))
        return {"tree": tree_as_data(tree), "splits": moves.splits, "nodes": list(vars(moves.nodes).values())}

    def worker(self) -> Callable[[Reading], TreeWorker]:
        vectors = self._quantiles, self._statistics
        return partial(TreeWorker, self._problem, self.plan, *vectors, self._leaf_quantiles)

    def make_matrices(self, bins: Bins) -> HistogramMatrices:
        return boosting_matrices(bins, self._problem, self.plan, self._training_run.rows)

    def free(self) -> None:
        super().free()
        if self._leaf_quantiles is not None:
            self._leaf_quantiles.free()


class LocalBoostingProgram(LocalProgram[Forest]):
    """Gradient boosting in the process of the only worker; the driver decides when to stop."""

    first_task = GrowRounds(first=0, trees=[], scales=None)

    def drive(self, ask: Ask) -> Steps[BoostingRecord]:
        boosting = BoostingRecord(self._problem, self.plan, self.record)
        yield from self.add_statistics()
        ask.start_timer()
        task = self.first_task
        while True:
            report = yield task
            first, trees = len(boosting.trees), list[Any]()
            for reply in report.rounds:  # a reply has the losses before a round, and the round's trees
                if len(self.record.objective) <= reply["round"]:  # not recorded yet by a driver that this one resumes
                    losses = SimpleNamespace(**reply)
                    if not reply["round"]:
                        boosting.begin(losses)
                    elif boosting.end_round(ask, losses, reply["lap_s"]):
                        return boosting
                if boosting.rounds >= ask.setting(lambda: self.plan.settings.maxIter):
                    return boosting
                boosting.trees += [Tree(*data) for data in reply["trees"]]
                trees += reply["trees"]
            task = GrowRounds(first, trees, report.rounds[-1]["scales"] if trees else None)

    def worker(self) -> Callable[[Reading], LocalTreeWorker]:
        run, min_rows = self._training_run, min_rows_to_split(self._problem, self.plan, self._training_run.mean_weight)
        return partial(LocalTreeWorker, self._problem, self.plan, self._statistics, min_rows, run.mean_weight)


def train(
    ps: Any,
    table: Table,
    problem: TreeProblem,
    plan: BoostingPlan,
    facts: Facts,
    on_step: Callable[[StepReport], Any] = lambda step: None,
) -> Trained[Forest]:
    """Grow boosted trees, or resume: bitwise the same on any number of workers and servers, and in one process."""
    names = CheckpointNames.of(plan.name, ps)
    run = boosting_run(problem, plan, facts.rows, mean_weight_of(table, facts), names, on_step)
    # Compare the settings with those of a resumed training first: its vectors depend on ``via``.
    Journal.of(names, run.settings, BoostingProgram.number)
    if plan.via == "local":
        return run_program(ps, LocalBoostingProgram(run), table, names)
    if not names.finished_clocks:
        check_memory(problem, plan, facts.rows, ps.memory())
    return run_program(ps, BoostingProgram(run), table, names)


def boosting_run(
    problem: TreeProblem,
    plan: BoostingPlan,
    rows: int,
    mean_weight: float | None,
    names: CheckpointNames,
    on_step: Callable[[StepReport], Any],
) -> TreeRun:
    """Return what the programs of a training of boosted trees have in common."""
    record = Record(on_step, Words("tree" if problem.objective.width == 1 else "round", "loss"))
    settings = boosting_settings(problem, plan, rows, mean_weight)
    return TreeRun(problem, plan, rows, mean_weight, settings, record, names)


def via_of_resumed(ps: Any, name: str) -> Via | None:
    """Return ``via`` of the training that a restored context resumes; None: it resumes none of this name."""
    names = CheckpointNames.of(name, ps) if name and ps is not None and ps.conf.restore is not None else UNNAMED
    return earlier_settings(names).get("via") if names.handled_clocks else None


def _set_counts(trees: list[Tree], report: Any) -> None:
    """Set the row counts of the last tree's nodes, if workers report them."""
    if hasattr(report, "counts"):
        trees[-1] = replace(trees[-1], count=report.counts)


def mean_weight_of(table: Table, facts: Facts) -> float | None:
    """Return the mean weight of the rows; None: all weights are 1."""
    return None if table.columns.weight is None else facts.weight / facts.rows


def min_rows_to_split(problem: TreeProblem, plan: BoostingPlan, mean_weight: float | None) -> int:
    """Return the number of rows that must store a feature, so that both sides of a split can be heavy enough."""
    if mean_weight is not None:
        return 0
    # Rounding adds at most 1 / 32 of the largest hessian to a hessian.
    max_hessian = problem.objective.max_hessian * (1 + 1 / 32) * plan.amplification
    return max(1, plan.min_third, math.ceil(plan.min_hessian / max_hessian))


def settings_of(problem: TreeProblem, plan: Any, **facts: Any) -> dict[str, Any]:
    """Return the settings on which trees depend, without maxIter, and without sums, whose last digits vary."""
    objective = problem.objective
    plain_problem = replace(problem, initial=None, objective=replace(objective, function=None))
    settings = {**asdict(plain_problem), **plan.plain()}
    # What is compared of a function is a fingerprint of its code.
    del settings["objective"]["function"]
    if objective.function is not None:
        settings["objective"]["function"] = objective.function.fingerprint
    return {name: value for name, value in settings.items() if name not in ("initial", "maxIter", "name")} | facts


def boosting_settings(problem: TreeProblem, plan: BoostingPlan, rows: int, mean_weight: float | None) -> dict[str, Any]:
    initial = "" if problem.initial is None else _fingerprint(problem.initial)
    held_out = plan.settings.validationIndicatorCol is not None
    return settings_of(problem, plan, rows=rows, initial=initial, weighted=mean_weight is not None, held_out=held_out)


def _fingerprint(forest: Forest) -> str:
    """Return a SHA-256 hash of a forest."""
    digest = hashlib.sha256(np.ascontiguousarray(forest.base).tobytes())
    for tree in forest.trees:
        for field in fields(tree):
            digest.update(np.ascontiguousarray(getattr(tree, field.name)).tobytes())
    return digest.hexdigest()
