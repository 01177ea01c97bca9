"""``fit`` of linear models and factorization machines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from ps2.algorithms.estimators.anew import done_anew
from ps2.algorithms.estimators.dealing import Dealer, together
from ps2.algorithms.estimators.estimator import FleetEstimator, has_checkpoints
from ps2.algorithms.estimators.initial_model import HasInitialModel
from ps2.algorithms.estimators.label_groups import PART_COLUMN, ReadAndSurvey, WorkerSurvey, packed
from ps2.algorithms.estimators.labels import Labels
from ps2.algorithms.estimators.tables import (
    NO_ROWS,
    SMALL_BYTES,
    Survey,
    check_columns,
    field,
    known_dim,
    survey_of,
)
from ps2.algorithms.estimators.via import HasVia
from ps2.algorithms.linear import weights as of_weights
from ps2.algorithms.linear.local import AfterSurvey, Task, train_locally
from ps2.algorithms.linear.losses.choice import loss_of
from ps2.algorithms.linear.ml.params import TAKES, TrainingSetters, check_coordinates, options_of
from ps2.algorithms.linear.ml.start import check_start, start_of, weights_of
from ps2.algorithms.linear.problem import LossName, Problem, SolverOptions
from ps2.algorithms.linear.program import form_of
from ps2.algorithms.linear.solvers import averaging
from ps2.algorithms.linear.solvers.optimizer import step_of
from ps2.algorithms.linear.solvers.sap import check_problem
from ps2.algorithms.linear.trainer import train
from ps2.algorithms.linear.weights import Weights
from ps2.algorithms.training.faults import ColumnNames, Form
from ps2.algorithms.training.outcome import result_of
from ps2.algorithms.training.placement import Placement
from ps2.algorithms.training.placement_costs import MAX_LOCAL_WEIGHTS, Work, place
from ps2.algorithms.training.record import StepReport, TrainingHistory
from ps2.algorithms.training.run import SurveyedTraining, run_surveyed
from ps2.coordinator.context import PS2Context
from ps2.errors import ConfigError, InputError, WorkerError
from ps2.run.message import STOP, Message, Stop
from ps2.run.spark.backend_lookup import backend_of

# Arrow batches of a table that Spark takes for a small one may have so many times ``SMALL_BYTES``.
MAX_SMALL = 4
# Seconds that one clock computes with a stored value, for each weight of a feature (decision 57).
VALUE_S = 4e-9
# Solvers whose gradients may travel as sufficient factors.
TAKES_FACTORS = tuple(solver for solver, names in TAKES.items() if "factors" in names)
# Of a model that is known without training; pyspark.ml's has the same objective.
NO_TRAINING = TrainingHistory([0.0], [], [], 0, 0, 0, "nothing was to be trained")


class LinearEstimator(HasVia, HasInitialModel, FleetEstimator, TrainingSetters):
    """What the estimators of weights and biases have in common."""

    # Losses that the estimator trains for.
    _LOSSES: tuple[LossName, ...] = ()
    _initial: Weights | None = None

    def _start_of(self, value: Any) -> Weights:
        given = weights_of(value)
        if given is None or given.problem.loss not in self._LOSSES:
            raise ConfigError(
                f"initialModel: expected a model of {type(self).__name__}, ps2's or pyspark.ml's, "
                f"got {type(value).__name__}"
            )
        return given

    @abstractmethod
    def _problem(self, found: Survey) -> Problem:
        """Return the objective for a table."""

    def _decided(self, options: SolverOptions, problem: Problem) -> SolverOptions:
        """Return how to train when the table is known."""
        return options

    def _known(self, problem: Problem, found: Survey) -> Weights | None:
        """Return the weights if they are known without training."""
        return None

    @abstractmethod
    def _model(self, weights: Weights) -> Any:
        """Return the model of trained weights."""

    def _strengths(self) -> tuple[float, float]:
        """Return the strengths of the L1 and of the L2 penalty."""
        strength = self.getOrDefault("regParam")
        share = self.getOrDefault("elasticNetParam") if self.hasParam("elasticNetParam") else 0.0
        return strength * share, strength * (1.0 - share)

    def _plan(self) -> SolverOptions:
        l1, _ = self._strengths()
        options = options_of(self, l1)
        if options.solver == "sap":
            check_coordinates(self, l1)
        if self._initial is not None:
            declared = step_of(options.optimizer).optimizer
            check_start(options, declared is not None and declared.catch_up is not None)
        return replace(options, name=self._name)

    def _survey_and_train(self, plan: SolverOptions, dataset: DataFrame) -> tuple[Any, TrainingHistory]:
        columns = self._columns()
        check_columns(dataset, columns)
        wanted = self.getNumWorkers() if self.isSet(self.numWorkers) else 1
        # A model to begin with is no plain data, which a message to the worker is of; and one job keeps rows in memory.
        is_plain = self._initial is None and plan.spill != "always"
        if self.getVia() == "servers" or wanted != 1 or not is_plain or _why_on_servers(plan):
            return super()._survey_and_train(plan, dataset)
        attempt = _OneJob(self, plan, dataset, columns)
        if attempt.bytes > SMALL_BYTES:
            return super()._survey_and_train(plan, dataset)
        trained = done_anew(attempt.run)
        if trained is not None:
            return self._model(trained[0]), trained[1]
        found = attempt.found
        if found is None:
            return super()._survey_and_train(plan, dataset)
        return done_anew(lambda: self._train_model(plan, found, attempt.dealer))

    def _train_model(self, plan: SolverOptions, found: Survey, dealt: Dealer) -> tuple[Any, TrainingHistory]:
        problem, options = self._objective(plan, found)
        weights, history = self._known(problem, found), NO_TRAINING
        if weights is None:
            placement = self._placed(options, problem, found, dealt)
            table = dealt(placement.workers)

            def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> tuple[Weights, TrainingHistory]:
                if placement.via == "local":
                    return train_locally(ps, table, problem, options, found.facts, on_step)
                trained = train(ps, table, problem, options, found.facts, on_step)
                return Weights.of(problem, trained.weight, trained.biases), trained.history

            weights, history = self._train_in_context(table, options.steps, run)
            history = replace(history, placement=placement)
        return self._model(weights), history

    def _objective(self, plan: SolverOptions, found: Survey) -> tuple[Problem, SolverOptions]:
        """Return what to minimize, and how, when the table is known."""
        problem = self._problem(found)
        options = storing(self._decided(plan, problem), problem, found)
        if options.solver == "sap":
            check_problem(problem)
        if options.solver == "ma-sgd":
            averaging.check_problem(problem)
        if self._initial is not None:
            biases = loss_of(problem).first_biases(found.facts)
            options = replace(options, start=start_of(self._initial, problem, biases))
        return problem, options

    def _placed(self, options: SolverOptions, problem: Problem, found: Survey, dealt: Dealer) -> Placement:
        """Choose the workers, and whether servers are between them."""
        values = sum(load.cost for load in found.loads.values())
        why = _why_on_servers(options) or _why_too_large(problem)
        work = Work(values, problem.size, options.steps, VALUE_S * problem.width, why)
        return place(work, dealt.slots, len(found.loads), dealt.requested_workers, self.getVia())


def storing(options: SolverOptions, problem: Problem, found: Survey) -> SolverOptions:
    """Return options by which vectors of a multinomial model hold all columns if the rows use most features.

    Then the columns of a feature lie on one server, as sufficient factors need it.
    """
    if problem.loss != "softmax" or options.solver not in TAKES_FACTORS:
        return options
    values = sum(load.cost - load.rows for load in found.loads.values())
    return replace(options, all_columns=options.factors == "always" or values >= problem.dim)


class _OneJob:
    """A fit in one Spark job: the worker surveys its rows and waits for the driver to say how to train.

    Attributes:
        found: the survey; None: the worker has met faults, or more rows than Spark expected, or has not come so far.
        dealer: of a surveyed table.
    """

    def __init__(self, estimator: LinearEstimator, plan: SolverOptions, dataset: DataFrame, columns: ColumnNames):
        self._estimator, self._plan, self._dataset, self._columns = estimator, plan, dataset, columns
        assert columns.label is not None
        self._table = together(dataset, columns, PART_COLUMN)
        self._labels = Labels(columns.label, estimator._CLASSES, field(dataset, columns.label))
        self.found: Survey | None = None
        self._known: Weights | None = None
        self._placement: Placement | None = None

    @property
    def bytes(self) -> int:
        """What Spark expects the rows to take."""
        return backend_of(self._table.frame).estimated_bytes(self._table.frame)

    @property
    def dealer(self) -> Dealer:
        assert self.found is not None
        estimator = self._estimator
        wanted = estimator.getNumWorkers() if estimator.isSet(estimator.numWorkers) else None
        return Dealer(self._dataset, self._columns, self.found, wanted)

    def run(self) -> tuple[Weights, TrainingHistory] | None:
        """Return the trained weights; None: it is not for one worker, or Spark has to survey the table.

        Raises:
            InputError: there are no rows.
        """
        columns, labels, table = self._columns, self._labels, self._table
        form = Form(known_dim(self._dataset, columns.features))
        read = ReadAndSurvey(columns, form, labels.classes, labels.most, MAX_SMALL * SMALL_BYTES)

        def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> tuple[Weights, TrainingHistory] | None:
            program = AfterSurvey(replace(table, frame=None), len(ps.servers))
            outcome = run_surveyed(ps, SurveyedTraining(table, read, packed, self._decide, program, self._plan.seed))
            return None if outcome is None else result_of(outcome, on_step)

        try:
            trained = self._estimator._train_in_context(table, self._plan.steps, run)
        except WorkerError:
            if self._dataset.isEmpty():
                raise InputError(NO_ROWS) from None
            raise
        if self._known is not None:
            return self._known, NO_TRAINING
        return None if trained is None else (trained[0], replace(trained[1], placement=self._placement))

    def _decide(self, report: dict[str, Any]) -> Message | Stop:
        seen = WorkerSurvey.unpacked(report)
        if seen is None:
            return STOP
        groups = seen.groups()
        self.found = found = survey_of(
            self._dataset, self._columns, self._labels, groups, seen.dim, seen.shift, seen.unit
        )
        estimator = self._estimator
        problem, options = estimator._objective(self._plan, found)
        self._known = estimator._known(problem, found)
        if self._known is not None:
            return STOP
        self._placement = estimator._placed(options, problem, found, self.dealer)
        if self._placement.via != "local" or form_of(problem).dtype != Form().dtype:
            return STOP
        return Task(problem, options, found.facts).message()


def _why_on_servers(options: SolverOptions) -> str:
    """Return why a model has to be on servers while it is trained; "" if it need not be."""
    if options.name:
        return "another driver may go on with this training"
    if has_checkpoints():
        return "checkpoints are made during the training"
    if options.staleness != 0:
        return "workers may be ahead of each other (staleness)"
    return ""


def _why_too_large(problem: Problem) -> str:
    """Return why a model cannot be in one worker's process; "" if it can."""
    if problem.size > min(MAX_LOCAL_WEIGHTS, of_weights.MAX_IN_DRIVER):
        return f"the model has {problem.size:,} weights"
    return ""
