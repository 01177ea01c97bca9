"""Boosting in one Spark job: the worker surveys its rows, then the driver sends what it decided with the survey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ps2.algorithms.frame.frames import categories_of, warn_of_wide_integers
from ps2.algorithms.frame.labels import WorkerSurvey, pack_survey
from ps2.algorithms.frame.one_job import OneJob
from ps2.algorithms.frame.program import Task
from ps2.algorithms.frame.settings import values_of, with_values
from ps2.algorithms.frame.tables import field, known_dim
from ps2.algorithms.training.checkpoint_names import UNNAMED
from ps2.algorithms.training.faults import ColumnNames, Form
from ps2.algorithms.training.only_worker import OnStep
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.record import Placement, Trained, TrainingHistory
from ps2.algorithms.trees.gradients import Objective
from ps2.algorithms.trees.label_statistics import add_up, sum_rows
from ps2.algorithms.trees.local_worker import GrowRounds, LocalTreeWorker
from ps2.algorithms.trees.problem import BoostingPlan, TreeProblem, TreeTraining
from ps2.algorithms.trees.program import LocalBoostingProgram, boosting_run, mean_weight_of, min_rows_to_split
from ps2.algorithms.trees.tree import Absent, Forest
from ps2.coordinator.context import PS2Context
from ps2.run.spark.backend_lookup import backend_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NO_SUMS = np.empty((0, 5), np.int64)


@dataclass(frozen=True, eq=False)
class BeginRounds(GrowRounds):
    """The first task of a worker that does not know the training: ``training`` is what ``changes`` returns."""

    training: dict[str, Any]


def changes(before: TreeTraining, after: TreeTraining) -> dict[str, Any]:
    """Return the fields of a training that the survey has decided, as plain data."""
    (old_plan, _), (plan, problem) = before, after
    old_values, objective = values_of(old_plan.settings), problem.objective
    values = {name: value for name, value in values_of(plan.settings).items() if value != old_values[name]}
    facts = {name.name: getattr(plan, name.name) for name in fields(plan)}
    del facts["settings"], facts["custom_metric"]
    loss = {"loss": objective.loss, "width": objective.width, "shape": objective.shape, "hessian": objective.hessian}
    parts = {"dim": problem.dim, "base": problem.base, "reach": problem.reach}
    return {"settings": values, "plan": facts, "objective": loss, "problem": parts}


def changed(before: TreeTraining, data: dict[str, Any]) -> TreeTraining:
    """Return the training of which ``changes`` returned the fields."""
    plan, problem = before
    facts, parts = ({**data[name]} for name in ("plan", "problem"))
    facts["validation_sets"] = tuple(facts["validation_sets"])
    parts["base"], parts["reach"] = tuple(parts["base"]), tuple(parts["reach"])
    settings, objective = (
        with_values(plan.settings, **data["settings"]),
        replace(problem.objective, **data["objective"]),
    )
    return TreeTraining(replace(plan, settings=settings, **facts), replace(problem, objective=objective, **parts))


class SurveyedTreeWorker:
    """A ``LocalTreeWorker`` that gets to know the training by its first task."""

    def __init__(self, known: TreeTraining, is_weighted: bool, surveyed: tuple[Reading, Any]) -> None:
        self._known, self._is_weighted, self._reading = known, is_weighted, surveyed[0]
        self._worker: LocalTreeWorker | None = None

    def __call__(self, worker: Any, task: Task) -> None:
        self._begin([task])(worker, task)

    def catch_up(self, worker: Any, tasks: Sequence[Task]) -> None:
        self._begin(tasks).catch_up(worker, tasks)

    def _begin(self, tasks: Sequence[Task]) -> LocalTreeWorker:
        if self._worker is None:
            (begin,) = (task for task in tasks if isinstance(task, BeginRounds))
            plan, problem = changed(self._known, begin.training)
            mean_weight = plan.mean_weight if self._is_weighted else None
            min_rows = min_rows_to_split(problem, plan, mean_weight)
            self._worker = LocalTreeWorker(problem, plan, None, min_rows, mean_weight, self._reading)
        return self._worker


class BoostingJob(OneJob):
    """A fit of boosted trees in one Spark job."""

    def __init__(self, estimator: Any, plan: BoostingPlan, dataset: DataFrame, columns: ColumnNames) -> None:
        categories = categories_of([field(dataset, name) for name in columns.feature_names])
        form = Form(known_dim(dataset, columns.features), missing=True, categories=categories)
        super().__init__(estimator, dataset, columns, form)
        objective = Objective("logistic", function=estimator._custom_objective)
        initial: Forest | None = estimator._initial
        absent: Absent = "missing" if estimator.getAbsentAsMissing() else "zero"
        # What is known before the survey; other fields are replaced by ``changed``.
        self._known = TreeTraining(plan, TreeProblem(objective, 0, (), absent, categories, initial))
        self._needs_sums = self._labels.classes is None or columns.weight is not None
        self._placement: Placement | None = None

    @staticmethod
    def make(estimator: Any, plan: BoostingPlan, dataset: DataFrame) -> BoostingJob | None:
        """Check a table; return the fit; None: it needs other jobs."""
        columns = estimator._columns()
        # The base of some losses is a quantile, which takes jobs, as the names of validation sets and margins do.
        needs_jobs = Objective(estimator.getLossType()).label_quantile_level is not None
        needs_jobs |= columns.margin is not None and bool(plan.settings.evalMetric)
        if columns.validation is not None:
            needs_jobs |= field(dataset, columns.validation).dataType.typeName() != "boolean"
        if needs_jobs or plan.settings.spill == "always":
            return None
        return BoostingJob(estimator, plan, dataset, estimator._check_table(dataset))

    def run(self) -> tuple[Any, TrainingHistory] | None:
        estimator, plan, is_weighted = self._estimator, self._known.plan, self._columns.weight is not None
        if backend_of(self._dataset).shares_host:
            estimator._compile_ahead()
        worker = partial(SurveyedTreeWorker, self._known, is_weighted)
        survey = partial(report_survey, self._needs_sums, self._labels.classes is not None)

        def run(ps: PS2Context, on_step: OnStep) -> Trained[Forest] | None:
            decide = partial(self._decide, on_step=on_step)
            return self._run_program(ps, survey, decide, worker, plan.seed)

        trained = estimator._train_in_one_job(self._dataset, self.table, plan.settings.maxIter, run)
        if trained is None:
            return None
        assert self.survey is not None
        warn_of_wide_integers(self._dataset, self.survey.features)
        return estimator._public_model(trained, self._rate), replace(trained.history, placement=self._placement)

    def _decide(self, report: dict[str, Any], on_step: OnStep) -> LocalBoostingProgram | None:
        """Return the program, given the worker's report; None: the rows have faults, or this job must not train."""
        survey, estimator = self._receive(report), self._estimator
        if survey is None:
            return None
        plan, problem = estimator._resolve(self._known.plan, survey)
        self._placement = estimator._place(estimator._work(TreeTraining(plan, problem), survey), self.dealer)
        if self._placement.via != "local" or problem.statistics is not None or survey.weight_unit != 1:
            return None
        sums = add_up(report["sums"].tolist(), self._labels.classes is not None) if self._needs_sums else None
        plan, problem = estimator._with_margins(TreeTraining(plan, problem), "local", survey, self.table, sums)
        mean_weight, self._rate = mean_weight_of(self.table, survey.facts), plan.settings.stepSize
        rows, on_round = survey.facts.rows, estimator._on_round_after(on_step)
        program = LocalBoostingProgram(boosting_run(problem, plan, rows, mean_weight, UNNAMED, on_round))
        training = changes(self._known, TreeTraining(plan, problem))
        program.first_task = BeginRounds(first=0, trees=[], scales=None, training=training)
        return program


def report_survey(with_sums: bool, has_classes: bool, surveyed: tuple[Reading, WorkerSurvey | None]) -> dict[str, Any]:
    """Return the worker's report of its survey, with the sums of labels and weights (``sum_rows``) if needed."""
    rows, sums = surveyed[0].training, NO_SUMS
    if with_sums and surveyed[1] is not None:
        assert rows.y is not None
        weights = np.ones(len(rows)) if rows.weights is None else rows.weights
        sums = sum_rows(rows.y[weights > 0], weights[weights > 0], has_classes)
    return {**pack_survey(surveyed), "sums": sums}
