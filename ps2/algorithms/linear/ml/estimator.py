"""``fit`` of linear models and factorization machines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ps2.algorithms.estimators.dealing import Dealer
from ps2.algorithms.estimators.estimator import FleetEstimator
from ps2.algorithms.estimators.tables import Survey
from ps2.algorithms.estimators.via import HasVia
from ps2.algorithms.linear import weights as of_weights
from ps2.algorithms.linear.local import train_locally
from ps2.algorithms.linear.ml.params import TAKES, TrainingSetters, check_coordinates, options_of
from ps2.algorithms.linear.problem import Problem, SolverOptions
from ps2.algorithms.linear.solvers.sap import check_problem
from ps2.algorithms.linear.trainer import train
from ps2.algorithms.linear.weights import Weights
from ps2.algorithms.training.placement import Placement
from ps2.algorithms.training.placement_costs import MOST_LOCAL_WEIGHTS, Work, place
from ps2.algorithms.training.record import StepReport, TrainingHistory
from ps2.coordinator.context import PS2Context

# Of a model that is known without training; pyspark.ml's has the same objective.
# Seconds that one clock computes with a stored value, for each weight of a feature (decision 57).
VALUE_S = 4e-9
# Solvers whose gradients may travel as sufficient factors.
TAKES_FACTORS = tuple(solver for solver, names in TAKES.items() if "factors" in names)
NO_TRAINING = TrainingHistory([0.0], [], [], 0, 0, 0, "nothing was to be trained")


class LinearEstimator(HasVia, FleetEstimator, TrainingSetters):
    """What the estimators of weights and biases have in common."""

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
        return replace(options, name=self._name)

    def _found(self, plan: SolverOptions, found: Survey, dealt: Dealer) -> tuple[Any, TrainingHistory]:
        problem = self._problem(found)
        options = storing(self._decided(plan, problem), problem, found)
        if options.solver == "sap":
            check_problem(problem)
        weights, history = self._known(problem, found), NO_TRAINING
        if weights is None:
            placement = self._placed(options, problem, found, dealt)
            table = dealt(placement.workers)

            def run(ps: PS2Context, on_step: Callable[[StepReport], None]) -> tuple[Weights, TrainingHistory]:
                if placement.via == "local":
                    return train_locally(ps, table, problem, options, found.facts, on_step)
                trained = train(ps, table, problem, options, found.facts, on_step)
                return Weights.of(problem, trained.weight, trained.biases), trained.history

            weights, history = self._trained(table, options.steps, run)
            history = replace(history, placement=placement)
        return self._model(weights), history

    def _placed(self, options: SolverOptions, problem: Problem, found: Survey, dealt: Dealer) -> Placement:
        """Choose the workers, and whether servers are between them."""
        values = sum(load.cost for load in found.loads.values())
        work = Work(values, problem.size, options.steps, VALUE_S * problem.width, _why_on_servers(options, problem))
        return place(work, dealt.slots, len(found.loads), dealt.wanted, self.getVia())


def storing(options: SolverOptions, problem: Problem, found: Survey) -> SolverOptions:
    """Return options by which vectors of a multinomial model hold all columns if the rows use most features.

    Then the columns of a feature lie on one server, as sufficient factors need it.
    """
    if problem.loss != "softmax" or options.solver not in TAKES_FACTORS:
        return options
    values = sum(load.cost - load.rows for load in found.loads.values())
    return replace(options, all_columns=options.factors == "always" or values >= problem.dim)


def _why_on_servers(options: SolverOptions, problem: Problem) -> str:
    """Return why a model has to be on servers while it is trained; "" if it need not be."""
    active = PS2Context.getActive()
    if options.name:
        return "another driver may go on with this training"
    if active is not None and (active.conf.checkpointEverySteps or active.conf.checkpointEveryS):
        return "checkpoints are made during the training"
    if problem.size > min(MOST_LOCAL_WEIGHTS, of_weights.MOST_IN_DRIVER):
        return f"the model has {problem.size:,} weights"
    if options.staleness != 0:
        return "workers may be ahead of each other (staleness)"
    return ""
