"""``fit`` of linear models and factorization machines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import DataFrame

from ps2.algorithms.frame.dealing import Dealer
from ps2.algorithms.frame.estimator import FleetEstimator, HasInitialModel
from ps2.algorithms.frame.labels import pack_survey
from ps2.algorithms.frame.one_job import OneJob
from ps2.algorithms.frame.placement import Work
from ps2.algorithms.frame.shared_settings import ViaSettings
from ps2.algorithms.frame.tables import Survey, known_dim
from ps2.algorithms.linear import model as trained_model
from ps2.algorithms.linear.losses import loss_of
from ps2.algorithms.linear.model import Weights
from ps2.algorithms.linear.models import WeightsModel, start_of, weights_of
from ps2.algorithms.linear.plan import LinearPlan, Problem
from ps2.algorithms.linear.program import form_of
from ps2.algorithms.linear.settings import (
    PARAMS_BY_SOLVER,
    STEP_PARAMS,
    FactorizationSettings,
    LossName,
    SolverName,
    SolverSettings,
    UsePolicy,
)
from ps2.algorithms.linear.solvers import averaging
from ps2.algorithms.linear.solvers.optimizer import follows_from_sums, lazy_optimizers, step_of
from ps2.algorithms.linear.solvers.sap import check_problem
from ps2.algorithms.linear.trainer import AfterSurvey, Task, train_locally, train_weights
from ps2.algorithms.training.faults import ColumnNames, Form
from ps2.algorithms.training.only_worker import OnStep, train_surveyed
from ps2.algorithms.training.record import Placement, TrainingHistory
from ps2.algorithms.training.run import SurveyedTraining
from ps2.coordinator.context import PS2Context
from ps2.errors import ConfigError
from ps2.ops.all import optimizer_steps
from ps2.run.message import STOP, Message, Stop

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
    if TYPE_CHECKING:  # so that type checkers accept the keywords in the constructor
        initialModel: Any = None
        validationData: DataFrame | None = None

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

    def _one_job(self, plan: LinearPlan, dataset: DataFrame) -> OneJob | None:
        # A fit in one job cannot send an initial model to the worker, and cannot spill rows to files.
        fits_one_job = plan.staleness == 0 and self._initial is None and plan.settings.spill != "always"
        return _LinearJob(self, plan, dataset, self._check_table(dataset)) if fits_one_job else None

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


class _LinearJob(OneJob):
    def __init__(self, estimator: LinearEstimator, plan: LinearPlan, dataset: DataFrame, columns: ColumnNames):
        super().__init__(estimator, dataset, columns, Form(known_dim(dataset, columns.features)))
        self._plan = plan
        self._trivial_weights: Weights | None = None
        self._placement: Placement | None = None

    def run(self) -> tuple[Any, TrainingHistory] | None:
        estimator: LinearEstimator = self._estimator
        table, seed = self.table, self._plan.seed

        def run(ps: PS2Context, on_step: OnStep) -> Any:
            program = AfterSurvey(replace(table, frame=None), len(ps.servers))
            training = SurveyedTraining(table, self._read, pack_survey, self._decide, program, seed)
            return train_surveyed(ps, training, on_step)

        trained = estimator._train_in_one_job(self._dataset, table, self._plan.settings.maxIter, run)
        if self._trivial_weights is not None:
            return estimator._model(self._trivial_weights), NO_TRAINING
        if trained is None:
            return None
        return estimator._model(trained[0]), replace(trained[1], placement=self._placement)

    def _decide(self, report: dict[str, Any]) -> Message | Stop:
        """Return the worker's training task, given its report of the survey; STOP: this job must not train."""
        survey, estimator = self._receive(report), self._estimator
        if survey is None:
            return STOP
        problem, plan = estimator._objective(self._plan, survey)
        self._trivial_weights = estimator._trivial_weights(problem, survey)
        if self._trivial_weights is not None:
            return STOP
        self._placement = estimator._place(estimate_work(problem, plan, survey), self.dealer)
        if self._placement.via != "local" or form_of(problem).dtype != Form().dtype:
            return STOP
        return Task(problem, plan, survey.facts).message()


def choose_solver(params: Any) -> tuple[SolverName, str]:
    """Return an estimator's solver and optimizer; raise ConfigError if they contradict each other."""
    name, optimizer = params.getSolver(), params.getOptimizer()
    if name == "auto" and isinstance(params, FactorizationSettings) and _needs_adamw(params):
        name = "adamW"
    solver, fixed_optimizer = ALIASES.get(name, (name, None))
    if params.isSet("optimizer"):
        if not params.isSet("solver") or name == "auto":
            return "minibatch", optimizer
        if fixed_optimizer not in (None, optimizer):
            raise ConfigError(
                f"optimizer: solver {name!r} has an update rule of its own, got {optimizer!r}; 'minibatch' takes it"
            )
    return solver, fixed_optimizer or optimizer


def _needs_adamw(params: Any) -> bool:
    """Return whether a factorization machine's params have a meaning of pyspark.ml's that only "adamW" keeps."""
    return params.getRegParam() > 0 or any(params.isSet(name) for name in STEP_PARAMS)


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
