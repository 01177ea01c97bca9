"""The steps of solver "minibatch": an optimizer's operations on the servers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ps2.algorithms.linear.parameters import Parameters
from ps2.algorithms.linear.plan import LinearPlan, Problem
from ps2.array_types import Int64s
from ps2.client.dcv import DCV
from ps2.ops.all import optimizer_steps
from ps2.ops.table import Op
from ps2.ops.table import Optimizer as DeclaredOptimizer

# pyspark.ml's update rules for factorization machines, and the operations of their steps. Before a step, the L2 penalty
# multiplies weights and intercept by a factor below 1.
DECAYING = {"adamW": "adam", "gd": "sgd"}


def step_of(name: str) -> Op:
    """Return the operation for the step of an optimizer."""
    return optimizer_steps()[DECAYING.get(name, name)]


def states_of(name: str) -> tuple[str, ...]:
    """Return the names of the vectors of an optimizer's state."""
    return step_of(name).reads[1:-1]


def follows_from_sums(name: str) -> bool:
    """Return whether an optimizer computes weights only from sums over all steps, as FTRL does."""
    declaration = step_of(name).optimizer
    return declaration is not None and declaration.catch_up is not None


def lazy_optimizers() -> list[str]:
    """Return the names of the optimizers whose step can skip columns where the gradient is 0."""
    return sorted(name for name, op in optimizer_steps().items() if "lazy" in op.params)


@dataclass(frozen=True, eq=False)
class Optimizer:
    """Takes steps of one optimizer on the servers; picklable.

    FTRL computes weights, with all penalties, from sums over all steps (McMahan et al., 2013). "adamW" and "gd" apply
    the L2 penalty as a decay of weights and intercept before the step (Loshchilov & Hutter, 2019).

    Under BSP the driver takes one step with the sum of all workers' gradients. Under SSP and ASP each worker takes
    steps with its own gradient, so it reads its own updates at once (Xing et al., 2016, section 3.2).

    Attributes:
        states: the vectors of the optimizer's state, by name.
        steps_per_clock: 1 under BSP, else the number of workers. Learning rate and penalties of a step are divided by
            it, so all steps of a clock together change weights about as much as one step under BSP.
    """

    problem: Problem
    plan: LinearPlan
    model: Parameters
    gradient: Parameters
    states: Mapping[str, Parameters]
    steps_per_clock: int = 1

    def step(self, number: int) -> None:
        """Request a step of clock ``number``, from 1, and set the gradient to 0; call this within ``batch()``."""
        self._decay(number)
        states, name = self.states.values(), step_of(self.plan.optimizer).name
        weights, biases = [state.weight for state in states], [state.bias for state in states]
        self.model.weight.zip(*weights, self.gradient.weight).apply(name, **self._scalars(number, is_weight=True))
        self.model.bias.zip(*biases, self.gradient.bias).apply(name, **self._scalars(number, is_weight=False))
        for vector in self.gradient.vectors:
            vector.zero()

    def penalised(self, model: Parameters) -> tuple[DCV, ...]:
        """Return the vectors of a model to which an L2 penalty applies."""
        return model.vectors if self.plan.optimizer in DECAYING else (model.weight,)

    def catch_up(self) -> CatchUp | None:
        """Return the object that applies the penalties that lazy steps skip; None: no step skips penalties."""
        problem, declaration = self.problem, self._declaration
        if declaration.catch_up is None or not self.plan.settings.lazy or not (problem.l1 or problem.l2):
            return None
        sums = tuple(state.weight for state in self.states.values())
        return CatchUp(
            declaration.catch_up, self.model.weight, sums, {declaration.rate: self._rate(1)}, problem.l1, problem.l2
        )

    @property
    def _declaration(self) -> DeclaredOptimizer:
        declaration = step_of(self.plan.optimizer).optimizer
        assert declaration is not None
        return declaration

    def _decay(self, number: int) -> None:
        if self.plan.optimizer in DECAYING and self.problem.l2:
            decay = self.problem.l2 * (self._rate(number) if self.plan.optimizer == "gd" else 1.0)
            for vector in self.model.vectors:
                vector.mul(1.0 - decay / self.steps_per_clock)

    def _rate(self, number: int) -> float:
        rate = self.plan.settings.stepSize / (math.sqrt(number) if self.plan.optimizer == "gd" else 1.0)
        return rate / self.steps_per_clock**self._declaration.damping

    def _scalars(self, number: int, is_weight: bool) -> dict[str, Any]:
        penalised = is_weight and self.plan.optimizer not in DECAYING
        l1, l2 = (self.problem.l1, self.problem.l2) if penalised else (0.0, 0.0)
        # FTRL needs the sum of the penalties of all steps so far, other optimizers the penalties of one step.
        factor = number if follows_from_sums(self.plan.optimizer) else 1.0 / self.steps_per_clock
        scalars: dict[str, Any] = {"l1": factor * l1, "l2": factor * l2}
        if self.plan.settings.lazy and is_weight:
            scalars["lazy"] = True
        if "step" in step_of(self.plan.optimizer).params:
            scalars["step"] = number * self.steps_per_clock
        return scalars | {self._declaration.rate: self._rate(number)}


@dataclass(frozen=True, eq=False)
class CatchUp:
    """Applies the penalties that lazy steps of FTRL have skipped. FTRL's penalties grow with each step. Picklable."""

    operation: str
    weight: DCV
    sums: tuple[DCV, ...]
    rate: Mapping[str, float]
    l1: float
    l2: float

    def to_step(self, number: int) -> Callable[[Int64s | None], object]:
        """Return a function that applies the penalties of all steps up to ``number`` to columns (None: all columns)."""
        scalars = {**self.rate, "l1": number * self.l1, "l2": number * self.l2}
        return lambda columns: self.weight.zip(*self.sums).apply(self.operation, columns, **scalars)
