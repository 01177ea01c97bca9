"""``fit`` of linear models and factorization machines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import DataFrame

from ps2.algorithms.frame.dealing import Dealer, together
from ps2.algorithms.frame.estimator import FleetEstimator, HasInitialModel
from ps2.algorithms.frame.label_groups import PART_COLUMN, ReadAndSurvey, WorkerSurvey, packed
from ps2.algorithms.frame.labels import Labels
from ps2.algorithms.frame.placement import Work
from ps2.algorithms.frame.retry import retry_after_server_loss
from ps2.algorithms.frame.shared_settings import ViaSettings
from ps2.algorithms.frame.tables import (
    SMALL_BYTES,
    Survey,
    check_columns,
    field,
    known_dim,
    survey_of,
)
from ps2.algorithms.linear import weights as model_weights
from ps2.algorithms.linear.local import AfterSurvey, Task, train_locally
from ps2.algorithms.linear.losses.choice import loss_of
from ps2.algorithms.linear.models import WeightsModel, start_of, weights_of
from ps2.algorithms.linear.plan import LinearPlan
from ps2.algorithms.linear.problem import Problem
from ps2.algorithms.linear.program import form_of
from ps2.algorithms.linear.settings import TAKES, LossName, SolverSettings, When
from ps2.algorithms.linear.solver_choice import check_initial_model, check_solver, choose_solver
from ps2.algorithms.linear.solvers import averaging
from ps2.algorithms.linear.solvers.sap import check_problem
from ps2.algorithms.linear.trainer import train
from ps2.algorithms.linear.weights import Weights
from ps2.algorithms.training.faults import ColumnNames, Form
from ps2.algorithms.training.record import Placement, StepReport, TrainingHistory
from ps2.algorithms.training.run import SurveyedTraining
from ps2.coordinator.context import PS2Context
from ps2.errors import ConfigError
from ps2.run.message import STOP, Message, Stop
from ps2.run.spark.backend_lookup import backend_of

# The maximum bytes of Arrow batches of a table that Spark estimates to be small, in units of ``SMALL_BYTES``.
MAX_SMALL = 4
# Seconds that one clock computes with a stored value, for each weight of a feature (decision 57).
VALUE_S = 4e-9
# Solvers whose gradients may travel as sufficient factors.
TAKES_FACTORS = tuple(solver for solver, names in TAKES.items() if "factors" in names)
# The history of a model that follows from the survey; pyspark.ml's has the same objective.
NO_TRAINING = TrainingHistory([0.0], [], [], 0, 0, 0, "nothing was to be trained")


class LinearEstimator(SolverSettings, ViaSettings, HasInitialModel, FleetEstimator):
    """Base class of estimators of weights and biases."""

    # The losses that the estimator minimizes.
    _LOSSES: ClassVar[tuple[LossName, ...]] = ()
    _MODEL: ClassVar[type[WeightsModel]]
    if TYPE_CHECKING:  # a keyword, too
        initialModel: Any = None

    def _start_of(self, value: Any) -> Weights:
        weights = weights_of(value)
        if weights is None or weights.problem.loss not in self._LOSSES:
            raise ConfigError(
                f"initialModel: expected a model of {type(self).__name__}, ps2's or pyspark.ml's, "
                f"got {type(value).__name__}"
            )
        return weights

    @abstractmethod
    def _problem(self, survey: Survey) -> Problem:
        """Return the objective for a table."""

    def _complete(self, plan: LinearPlan, problem: Problem) -> LinearPlan:
        """Return the plan for a surveyed table."""
        return plan

    def _trivial_weights(self, problem: Problem, survey: Survey) -> Weights | None:
        """Return the weights if they follow from the survey, without training."""
        return None

    def _model(self, weights: Weights) -> Any:
        """Return the model of trained weights."""
        return self._MODEL._of(weights)

    def _strengths(self) -> tuple[float, float]:
        """Return the strengths of the L1 and of the L2 penalty."""
        strength = self.getRegParam()
        share = self.getOrDefault("elasticNetParam") if self.hasParam("elasticNetParam") else 0.0
        return strength * share, strength * (1.0 - share)

    def _check(self) -> None:
        super()._check()
        solver, optimizer = choose_solver(self)
        check_solver(self, solver, optimizer, self._strengths()[0])
        if self._initial is not None:
            check_initial_model(solver, optimizer)

    def _plan(self) -> LinearPlan:
        solver, optimizer = choose_solver(self)
        factors: When = self.getOrDefault("factors") if self.hasParam("factors") else "auto"
        settings = self._values(SolverSettings)
        return LinearPlan(settings=settings, name=self._name, solver=solver, optimizer=optimizer, factors=factors)

    def _survey_and_train(self, plan: LinearPlan, dataset: DataFrame) -> tuple[Any, TrainingHistory]:
        columns = self._columns()
        check_columns(dataset, columns)
        is_local = self.getVia() != "servers" and self._requested_workers in (None, 1) and plan.staleness == 0
        # A message to the worker cannot hold an initial model; and one job keeps rows in memory.
        is_plain = self._initial is None and plan.settings.spill != "always"
        if not is_local or not is_plain or self._why_durable():
            return super()._survey_and_train(plan, dataset)
        attempt = _OneJob(self, plan, dataset, columns)
        if attempt.bytes > SMALL_BYTES:
            return super()._survey_and_train(plan, dataset)
        trained = retry_after_server_loss(attempt.run)
        if trained is not None:
            return self._model(trained[0]), trained[1]
        survey = attempt.survey
        if survey is None:
            return super()._survey_and_train(plan, dataset)
        return retry_after_server_loss(lambda: self._train_model(plan, survey, attempt.dealer))

    def _train_model(self, plan: LinearPlan, survey: Survey, dealer: Dealer) -> tuple[Any, TrainingHistory]:
        problem, plan = self._objective(plan, survey)
        weights, history = self._trivial_weights(problem, survey), NO_TRAINING
        if weights is None:
            placement = self._place(work_of(problem, plan, survey), dealer)
            table = dealer(placement.workers)

            def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> tuple[Weights, TrainingHistory]:
                if placement.via == "local":
                    return train_locally(ps, table, problem, plan, survey.facts, on_step)
                trained = train(ps, table, problem, plan, survey.facts, on_step)
                return Weights.of(problem, trained.weight, trained.biases), trained.history

            weights, history = self._train_in_context(table, plan.settings.maxIter, run)
            history = replace(history, placement=placement)
        return self._model(weights), history

    def _objective(self, plan: LinearPlan, survey: Survey) -> tuple[Problem, LinearPlan]:
        """Return the objective, and the plan, for a surveyed table."""
        problem = self._problem(survey)
        plan = _with_storage(self._complete(plan, problem), problem, survey)
        if plan.solver == "sap":
            check_problem(problem)
        if plan.solver == "ma-sgd":
            averaging.check_problem(problem)
        if self._initial is not None:
            biases = loss_of(problem).first_biases(survey.facts)
            plan = replace(plan, start=start_of(self._initial, problem, biases))
        return problem, plan


def work_of(problem: Problem, plan: LinearPlan, survey: Survey) -> Work:
    """Return the work of a training, for the cost model."""
    why_servers = ""
    if plan.staleness != 0:
        why_servers = "workers may be ahead of each other (staleness)"
    elif problem.size > model_weights.MAX_IN_DRIVER:
        why_servers = f"the model has {problem.size:,} weights"
    return Work.of_clocks(survey.cost, problem.size, plan.settings.maxIter, VALUE_S * problem.width, why_servers)


def _with_storage(plan: LinearPlan, problem: Problem, survey: Survey) -> LinearPlan:
    """Return a plan by which vectors of a multinomial model hold all columns if the rows use most features.

    Then the columns of a feature lie on one server, as sufficient factors need it.
    """
    if problem.loss != "softmax" or plan.solver not in TAKES_FACTORS:
        return plan
    values = sum(load.cost - load.rows for load in survey.loads.values())
    return replace(plan, all_columns=plan.factors == "always" or values >= problem.dim)


class _OneJob:
    """A fit in one Spark job: the worker surveys its rows, and waits for the driver's plan.

    Attributes:
        survey: the survey; None: it has not ended, or rows have faults, or they are more than Spark expected.
    """

    def __init__(self, estimator: LinearEstimator, plan: LinearPlan, dataset: DataFrame, columns: ColumnNames):
        self._estimator, self._plan, self._dataset, self._columns = estimator, plan, dataset, columns
        assert columns.label is not None
        self._table = together(dataset, columns, PART_COLUMN)
        self._labels = Labels(columns.label, estimator._CLASSES, field(dataset, columns.label))
        self.survey: Survey | None = None
        self._trivial_weights: Weights | None = None
        self._placement: Placement | None = None

    @property
    def bytes(self) -> int:
        """The size of the rows, as Spark estimates it."""
        return backend_of(self._table.frame).estimated_bytes(self._table.frame)

    @property
    def dealer(self) -> Dealer:
        """Brings the rows of the surveyed table to the workers."""
        assert self.survey is not None
        return Dealer(self._dataset, self._columns, self.survey, self._estimator._requested_workers)

    def run(self) -> tuple[Weights, TrainingHistory] | None:
        """Return the trained weights; None: one worker is too few, or Spark has to survey the table."""
        columns, labels, table = self._columns, self._labels, self._table
        form = Form(known_dim(self._dataset, columns.features))
        read = ReadAndSurvey(columns, form, labels.classes, labels.most, MAX_SMALL * SMALL_BYTES)

        def training(servers: int) -> SurveyedTraining:
            program = AfterSurvey(replace(table, frame=None), servers)
            return SurveyedTraining(table, read, packed, self._decide, program, self._plan.seed)

        steps = self._plan.settings.maxIter
        trained = self._estimator._train_in_one_job(self._dataset, table, steps, training)
        if self._trivial_weights is not None:
            return self._trivial_weights, NO_TRAINING
        return None if trained is None else (trained[0], replace(trained[1], placement=self._placement))

    def _decide(self, report: dict[str, Any]) -> Message | Stop:
        rows = WorkerSurvey.unpacked(report)
        if rows is None:
            return STOP
        groups = rows.groups()
        self.survey = survey = survey_of(
            self._dataset, self._columns, self._labels, groups, rows.dim, rows.shift, rows.unit
        )
        estimator = self._estimator
        problem, plan = estimator._objective(self._plan, survey)
        self._trivial_weights = estimator._trivial_weights(problem, survey)
        if self._trivial_weights is not None:
            return STOP
        self._placement = estimator._place(work_of(problem, plan, survey), self.dealer)
        if self._placement.via != "local" or form_of(problem).dtype != Form().dtype:
            return STOP
        return Task(problem, plan, survey.facts).message()
