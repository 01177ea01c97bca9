"""``fit`` of linear models and factorization machines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import DataFrame

from ps2.algorithms.frame.dealing import Dealer, gather_rows
from ps2.algorithms.frame.estimator import FleetEstimator, HasInitialModel
from ps2.algorithms.frame.labels import PART_COLUMN, Labels, ReadAndSurvey, WorkerSurvey, pack_survey
from ps2.algorithms.frame.placement import Work
from ps2.algorithms.frame.retry import retry_after_server_loss
from ps2.algorithms.frame.shared_settings import ViaSettings
from ps2.algorithms.frame.tables import SMALL_BYTES, Survey, check_columns, field, known_dim, survey_of
from ps2.algorithms.linear import model as trained_model
from ps2.algorithms.linear.losses import loss_of
from ps2.algorithms.linear.model import Weights
from ps2.algorithms.linear.models import WeightsModel, start_of, weights_of
from ps2.algorithms.linear.plan import LinearPlan, Problem
from ps2.algorithms.linear.program import form_of
from ps2.algorithms.linear.settings import PARAMS_BY_SOLVER, LossName, SolverName, SolverSettings, UsePolicy
from ps2.algorithms.linear.solvers import averaging
from ps2.algorithms.linear.solvers.optimizer import follows_from_sums, lazy_optimizers, step_of
from ps2.algorithms.linear.solvers.sap import check_problem
from ps2.algorithms.linear.trainer import AfterSurvey, Task, train_locally, train_weights
from ps2.algorithms.training.faults import ColumnNames, Form
from ps2.algorithms.training.only_worker import OnStep
from ps2.algorithms.training.record import Placement, TrainingHistory
from ps2.algorithms.training.run import SurveyedTraining
from ps2.coordinator.context import PS2Context
from ps2.errors import ConfigError
from ps2.ops.all import optimizer_steps
from ps2.run.message import STOP, Message, Stop
from ps2.run.spark.backend_lookup import backend_of

# Spark's estimate of a table's size may be too low. A fit in one job gives up if the table's Arrow batches take more
# than this many times ``SMALL_BYTES``.
MAX_SMALL = 4
# The cost of one stored value and one weight of its feature in each clock, in seconds (docs/decisions/0057).
VALUE_S = 4e-9
# The solvers that can send gradients as sufficient factors.
SOLVERS_WITH_FACTORS = tuple(solver for solver, names in PARAMS_BY_SOLVER.items() if "factors" in names)
# The parameters that only some solvers take.
SOLVER_PARAMS = sorted({name for names in PARAMS_BY_SOLVER.values() for name in names})
# The solvers and optimizers behind values of ``solver`` that are not solvers' names; None: param ``optimizer``.
ALIASES: dict[Any, tuple[SolverName, str | None]] = {
    "auto": ("l-bfgs", None),
    "adamW": ("minibatch", "adamW"),
    "gd": ("minibatch", "gd"),
}
SOLVERS_WITH_L1 = ("l-bfgs", "normal", "minibatch", "ma-sgd", "sap")
# The solvers that cannot start from a model, and the reason for the error message.
NO_INITIAL_MODEL = {
    "normal": "computes the minimum at once",
    "sap": "starts from weights of 0, as its paths do",
}
# The history of a model that is computed from the survey alone; its objective is 0, as in pyspark.ml.
NO_TRAINING = TrainingHistory([0.0], [], [], 0, 0, 0, "nothing was to be trained")


class LinearEstimator(SolverSettings, ViaSettings, HasInitialModel, FleetEstimator):
    """Base class of estimators of weights and biases."""

    _LOSSES: ClassVar[tuple[LossName, ...]] = ()
    _MODEL: ClassVar[type[WeightsModel]]
    if TYPE_CHECKING:  # so that type checkers accept the keyword in the constructor
        initialModel: Any = None

    def _read_initial_model(self, value: Any) -> Weights:
        weights = weights_of(value)
        if weights is None or weights.problem.loss not in self._LOSSES:
            raise ConfigError(
                f"initialModel: expected a model of {type(self).__name__}, ps2's or pyspark.ml's, "
                f"got {type(value).__name__}"
            )
        return weights

    def _problem(self, survey: Survey) -> Problem:
        l1, l2 = self._strengths()
        return Problem(
            loss=self._LOSSES[0],
            dim=survey.dim,
            fit_intercept=self.getFitIntercept(),
            l1=l1,
            l2=l2,
            standardize=self.hasParam("standardization") and self.getOrDefault("standardization"),
        )

    def _complete(self, plan: LinearPlan, problem: Problem) -> LinearPlan:
        """Return the plan, completed with fields that depend on the surveyed table."""
        return plan

    def _trivial_weights(self, problem: Problem, survey: Survey) -> Weights | None:
        """Return the weights if the survey alone determines them; None: train them."""
        return None

    def _model(self, weights: Weights) -> Any:
        return self._MODEL._of(weights)

    def _strengths(self) -> tuple[float, float]:
        strength = self.getRegParam()
        l1_fraction = self.getOrDefault("elasticNetParam") if self.hasParam("elasticNetParam") else 0.0
        return strength * l1_fraction, strength * (1.0 - l1_fraction)

    def _check(self) -> None:
        super()._check()
        solver, optimizer = choose_solver(self)
        check_solver(self, solver, optimizer, self._strengths()[0])
        if self._initial is not None:
            check_initial_model(solver, optimizer)

    def _plan(self) -> LinearPlan:
        solver, optimizer = choose_solver(self)
        factors: UsePolicy = self.getOrDefault("factors") if self.hasParam("factors") else "auto"
        settings = self._values(SolverSettings)
        return LinearPlan(settings=settings, name=self._name, solver=solver, optimizer=optimizer, factors=factors)

    def _survey_and_train(self, plan: LinearPlan, dataset: DataFrame) -> tuple[Any, TrainingHistory]:
        columns = self._columns()
        check_columns(dataset, columns)
        may_be_local = self.getVia() != "servers" and self._requested_workers in (None, 1) and plan.staleness == 0
        # A fit in one job cannot send an initial model to the worker, and cannot spill rows to files.
        fits_one_job = self._initial is None and plan.settings.spill != "always"
        if not may_be_local or not fits_one_job or self._why_durable():
            return super()._survey_and_train(plan, dataset)
        job = _OneJob(self, plan, dataset, columns)
        frame = job.table.frame
        if backend_of(frame).estimated_bytes(frame) > SMALL_BYTES:
            return super()._survey_and_train(plan, dataset)
        trained = retry_after_server_loss(job.run)
        if trained is not None:
            return self._model(trained[0]), trained[1]
        survey = job.survey
        if survey is None:
            return super()._survey_and_train(plan, dataset)
        return retry_after_server_loss(lambda: self._train_model(plan, survey, job.dealer))

    def _train_model(self, plan: LinearPlan, survey: Survey, dealer: Dealer) -> tuple[Any, TrainingHistory]:
        problem, plan = self._objective(plan, survey)
        weights, history = self._trivial_weights(problem, survey), NO_TRAINING
        if weights is None:
            placement = self._place(estimate_work(problem, plan, survey), dealer)
            table = dealer(placement.workers)

            def run(ps: PS2Context, on_step: OnStep) -> tuple[Weights, TrainingHistory]:
                training = train_locally if placement.via == "local" else train_weights
                return training(ps, table, problem, plan, survey.facts, on_step)

            weights, history = self._train_in_context(table, plan.settings.maxIter, run)
            history = replace(history, placement=placement)
        return self._model(weights), history

    def _objective(self, plan: LinearPlan, survey: Survey) -> tuple[Problem, LinearPlan]:
        """Return the objective and the completed plan for a surveyed table; ConfigError: they contradict each other."""
        problem = self._problem(survey)
        plan = _with_storage(self._complete(plan, problem), problem, survey)
        if plan.solver == "sap":
            check_problem(problem)
        if plan.solver == "ma-sgd":
            averaging.check_problem(problem)
        if self._initial is not None:
            biases = loss_of(problem).initial_biases(survey.facts)
            plan = replace(plan, start=start_of(self._initial, problem, biases))
        return problem, plan


def estimate_work(problem: Problem, plan: LinearPlan, survey: Survey) -> Work:
    """Return the training's work, by which the cost model chooses between servers and one worker."""
    why_servers = ""
    if plan.staleness != 0:
        why_servers = "workers may be ahead of each other (staleness)"
    elif problem.size > trained_model.MAX_IN_DRIVER:
        why_servers = f"the model has {problem.size:,} weights"
    return Work.of_clocks(survey.cost, problem.size, plan.settings.maxIter, VALUE_S * problem.width, why_servers)


def _with_storage(plan: LinearPlan, problem: Problem, survey: Survey) -> LinearPlan:
    """Return the plan with dense vectors for a multinomial model whose rows use most features.

    Sufficient factors need dense vectors: these keep all columns of a feature on the same server.
    """
    if problem.loss != "softmax" or plan.solver not in SOLVERS_WITH_FACTORS:
        return plan
    stored_values = sum(load.cost - load.rows for load in survey.loads.values())
    return replace(plan, all_columns=plan.factors == "always" or stored_values >= problem.dim)


class _OneJob:
    """A fit in one Spark job: the worker surveys its rows, waits for the driver's plan, and trains.

    ``survey`` is None if the job has not reported it, rows are faulty, or they exceed MAX_SMALL.
    """

    def __init__(self, estimator: LinearEstimator, plan: LinearPlan, dataset: DataFrame, columns: ColumnNames):
        self._estimator, self._plan, self._dataset, self._columns = estimator, plan, dataset, columns
        assert columns.label is not None
        self.table = gather_rows(dataset, columns, PART_COLUMN)
        self._labels = Labels(columns.label, estimator._CLASSES, field(dataset, columns.label))
        self.survey: Survey | None = None
        self._trivial_weights: Weights | None = None
        self._placement: Placement | None = None

    @property
    def dealer(self) -> Dealer:
        """Deals the rows of the surveyed table to workers."""
        assert self.survey is not None
        return Dealer(self._dataset, self._columns, self.survey, self._estimator._requested_workers)

    def run(self) -> tuple[Weights, TrainingHistory] | None:
        """Return the trained weights; None: the training needs servers, or Spark has to survey the table."""
        columns, labels, table = self._columns, self._labels, self.table
        form = Form(known_dim(self._dataset, columns.features))
        read = ReadAndSurvey(columns, form, labels.classes, labels.limit, MAX_SMALL * SMALL_BYTES)

        def training(servers: int) -> SurveyedTraining:
            program = AfterSurvey(replace(table, frame=None), servers)
            return SurveyedTraining(table, read, pack_survey, self._decide, program, self._plan.seed)

        steps = self._plan.settings.maxIter
        trained = self._estimator._train_in_one_job(self._dataset, table, steps, training)
        if self._trivial_weights is not None:
            return self._trivial_weights, NO_TRAINING
        return None if trained is None else (trained[0], replace(trained[1], placement=self._placement))

    def _decide(self, report: dict[str, Any]) -> Message | Stop:
        """Return the worker's training task, given its report of the survey; STOP: this job must not train."""
        rows = WorkerSurvey.unpack(report)
        if rows is None:
            return STOP
        groups = rows.groups()
        self.survey = survey = survey_of(
            self._dataset, self._columns, self._labels, groups, rows.dim, rows.shift, rows.unit
        )
        problem, plan = self._estimator._objective(self._plan, survey)
        self._trivial_weights = self._estimator._trivial_weights(problem, survey)
        if self._trivial_weights is not None:
            return STOP
        self._placement = self._estimator._place(estimate_work(problem, plan, survey), self.dealer)
        if self._placement.via != "local" or form_of(problem).dtype != Form().dtype:
            return STOP
        return Task(problem, plan, survey.facts).message()


def choose_solver(params: Any) -> tuple[SolverName, str]:
    """Return an estimator's solver and optimizer; raise ConfigError if they contradict each other."""
    name, optimizer = params.getSolver(), params.getOptimizer()
    solver, fixed_optimizer = ALIASES.get(name, (name, None))
    if params.isSet("optimizer"):
        if not params.isSet("solver") or name == "auto":
            return "minibatch", optimizer
        if fixed_optimizer not in (None, optimizer):
            raise ConfigError(
                f"optimizer: solver {name!r} has an update rule of its own, got {optimizer!r}; 'minibatch' takes it"
            )
    return solver, fixed_optimizer or optimizer


def check_solver(params: Any, solver: SolverName, optimizer: str, l1: float) -> None:
    """Raise ConfigError if a solver does not support the params that are set, or an L1 penalty of strength ``l1``."""
    for name in SOLVER_PARAMS:
        if name in PARAMS_BY_SOLVER.get(solver, ()) or not params.hasParam(name) or not params.isSet(name):
            continue
        if _differs(params, name):
            solvers = ", ".join(repr(other) for other, names in PARAMS_BY_SOLVER.items() if name in names)
            raise ConfigError(f"{name}: solver {params.getSolver()!r} does not take it, only {solvers}")
    if l1 > 0 and solver not in SOLVERS_WITH_L1:
        raise ConfigError(
            f"elasticNetParam: solver {solver!r} takes L2 penalties only, got {params.getElasticNetParam():g}; "
            f"{', '.join(map(repr, SOLVERS_WITH_L1))} take both"
        )
    if params.getLazy():
        _check_lazy(optimizer, params.getRegParam())
    _check_local_steps(params)
    if solver == "sap":
        _check_coordinates(params, l1)


def check_initial_model(solver: str, optimizer: str) -> None:
    """Raise ConfigError if a solver cannot start from an initial model."""
    if solver in NO_INITIAL_MODEL:
        raise ConfigError(
            f"initialModel: solver {solver!r} {NO_INITIAL_MODEL[solver]}, and cannot use it; 'l-bfgs' can"
        )
    if solver == "minibatch" and follows_from_sums(optimizer):
        raise ConfigError(
            f"initialModel: optimizer {optimizer!r} computes weights from sums of gradients, which a model does not "
            "have; 'adagrad' takes it"
        )


def _check_lazy(optimizer: str, penalty: float) -> None:
    if penalty > 0 and not follows_from_sums(optimizer):
        optimizers = ", ".join(repr(name) for name in optimizer_steps() if follows_from_sums(name))
        raise ConfigError(
            f"lazy: with a penalty, which changes all weights in each step, only optimizer {optimizers} takes it, "
            f"got {optimizer!r} with regParam {penalty:g}"
        )
    if "lazy" not in step_of(optimizer).params:
        optimizers = ", ".join(map(repr, lazy_optimizers()))
        raise ConfigError(f"lazy: optimizer {optimizer!r} does not take it, only {optimizers}")


def _check_local_steps(params: Any) -> None:
    """Raise ConfigError for params of local steps that would have no effect with the other params."""
    if _differs(params, "momentum") and not params.getAdaptiveMomentum():
        raise ConfigError(f"momentum: adaptiveMomentum=False uses no momentum, got {params.getMomentum():g}")
    if params.getLocalSearch() == "never":
        for name in ("momentum", "adaptiveMomentum", "localSteps"):
            if _differs(params, name):
                value = params.getOrDefault(name)
                raise ConfigError(f"{name}: localSearch='never' takes no local steps, got {value}")


def _check_coordinates(params: Any, l1: float) -> None:
    """Raise ConfigError for params that solver "sap" cannot use."""
    if l1 <= 0:
        raise ConfigError(
            "solver: 'sap' is for L1 penalties: expected regParam and elasticNetParam above 0, got "
            f"{params.getRegParam():g} and {params.getElasticNetParam():g}; 'l-bfgs' takes L2 penalties alone, and none"
        )
    if params.isSet("validationIndicatorCol"):
        raise ConfigError("validationIndicatorCol: solver 'sap' does not support early stopping")


def _differs(params: Any, name: str) -> bool:
    """Return whether a param's value differs from its default."""
    param = params.getParam(name)
    return bool(params.getOrDefault(param) != params._defaultParamMap.get(param))
