"""Gradient boosting where one worker has all rows, as a durable program: the worker grows whole trees in each clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ps2.algorithms.frame.program import Ask, Program, Steps
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import Record
from ps2.algorithms.training.table import Facts, Table
from ps2.algorithms.trees.boosting_record import BoostingRecord
from ps2.algorithms.trees.fleet_program import form_of
from ps2.algorithms.trees.local_worker import GrowRounds, LocalTreeWork
from ps2.algorithms.trees.problem import BoostingOptions, TreeProblem
from ps2.algorithms.trees.program import TrainedForest, least_rows, mean_weight_of, settings_of
from ps2.algorithms.trees.tree import Tree
from ps2.client.dcv import DCV


class LocalBoostingProgram(Program[TrainedForest]):
    """Gradient boosting in the only worker's process. The driver decides when it ends.

    Args:
        facts: of the rows' labels and weights.
    """

    def __init__(
        self,
        table: Table,
        problem: TreeProblem,
        options: BoostingOptions,
        facts: Facts,
        record: Record,
        names: CheckpointNames,
    ) -> None:
        super().__init__(options, form_of(problem), record)
        self._problem, self._rows, self._mean_weight = problem, facts.rows, mean_weight_of(table, facts)
        # By its name a restored context knows the training.
        self._named = names.give(lambda name: DCV.dense(1, 1, "int64", name=name))

    def settings(self) -> dict[str, Any]:
        return settings_of(self._problem, self.options, self._rows, self._mean_weight)

    def worker(self) -> LocalTreeWork:
        min_rows = least_rows(self._problem, self.options, self._mean_weight)
        return LocalTreeWork(self._problem, self.options, min_rows, self._mean_weight)

    def drive(self, ask: Ask) -> Steps[BoostingRecord]:
        boosting = BoostingRecord(self._problem, self.options, self.record)
        ask.start()
        task = GrowRounds(first=0, trees=[], scales=None)
        while True:
            report = yield task
            first, new = len(boosting.trees), list[Any]()
            for reply in report.rounds:
                losses = SimpleNamespace(**reply)
                if not reply["round"] and not self.record.objective:
                    boosting.begin(losses)
                # A driver that wanted fewer rounds has noted the losses after its last one.
                elif len(self.record.objective) <= reply["round"] and boosting.end_round(ask, losses, reply["lap_s"]):
                    return boosting
                if boosting.rounds >= ask.setting(lambda: self.options.rounds):
                    return boosting
                boosting.trees += [Tree(*data) for data in reply["trees"]]
                new += reply["trees"]
            task = GrowRounds(first, new, report.rounds[-1]["scales"] if new else None)

    def result(self, boosting: BoostingRecord) -> TrainedForest:
        boosting.cut(self.options.rounds)
        return TrainedForest(boosting.forest(), boosting.history())

    def free(self) -> None:
        self._named.free()
