"""Steps of an optimizer on the servers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ps2.algorithms.linear.parameters import Int64Array, Parameters
from ps2.algorithms.linear.solvers.solver import SolverContext
from ps2.client.dcv import DCV
from ps2.ops.all import optimizer_steps
from ps2.ops.table import Op

# pyspark.ml's update rules of factorization machines: the operation, before which weights and intercept decay.
DECAYING = {"adamW": "adam", "gd": "sgd"}


def step_of(name: str) -> Op:
    """Return the operation that is the step of an optimizer."""
    return optimizer_steps()[DECAYING.get(name, name)]


def states_of(name: str) -> tuple[str, ...]:
    """Return the vectors that an optimizer keeps beside weight and gradient."""
    return step_of(name).reads[1:-1]


def lazy_ones() -> list[str]:
    """Return the optimizers whose step can leave columns alone where the gradient is 0."""
    return sorted(name for name, op in optimizer_steps().items() if "lazy" in op.params)


class Optimizer:
    """Steps of one optimizer on the servers.

    Which there are, and what they take, their operations declare. FTRL keeps its penalties out of the steps: its
    weights follow from sums over all steps (McMahan et al., 2013).
    "adamW" and "gd" let everything decay by the L2 penalty before the step, by as much whatever the gradients were
    (Loshchilov & Hutter, 2019).
    """

    def __init__(self, context: SolverContext, model: Parameters, gradient: Parameters) -> None:
        self._name = context.options.optimizer
        self._problem, self._options = context.problem, context.options
        self._model, self._gradient = model, gradient
        self._op = step_of(self._name)
        assert self._op.optimizer is not None
        self._declared = self._op.optimizer
        self._states = {name: context.space.new() for name in states_of(self._name)}

    @property
    def follows_sums(self) -> bool:
        """Whether weights follow from sums over all steps, as FTRL's do."""
        return self._declared.catch_up is not None

    def step(self, number: int) -> None:
        """Take step ``number``, from 1, and zero the gradient; within ``batch()``."""
        self._decay(number)
        states = self._states.values()
        name = self._op.name
        weights, biases = [state.weight for state in states], [state.bias for state in states]
        self._model.weight.zip(*weights, self._gradient.weight).apply(name, **self._scalars(number, is_weight=True))
        self._model.bias.zip(*biases, self._gradient.bias).apply(name, **self._scalars(number, is_weight=False))
        for vector in self._gradient.each:
            vector.zero()

    def decayed(self, model: Parameters) -> tuple[DCV, ...]:
        """Return the vectors of a model that an L2 penalty applies to."""
        return model.each if self._name in DECAYING else (model.weight,)

    def catching_up(self) -> CatchUp | None:
        """Return how to bring columns up to date before they are read; None: they always are."""
        problem, declared = self._problem, self._declared
        if declared.catch_up is None or not self._options.lazy or not (problem.l1 or problem.l2):
            return None
        sums = tuple(state.weight for state in self._states.values())
        rate = {declared.rate: self._options.step_size}
        return CatchUp(declared.catch_up, self._model.weight, sums, rate, problem.l1, problem.l2)

    def _decay(self, number: int) -> None:
        if self._name in DECAYING and self._problem.l2:
            share = self._problem.l2 * (self._rate(number) if self._name == "gd" else 1.0)
            for vector in self._model.each:
                vector.mul(1.0 - share)

    def _rate(self, number: int) -> float:
        return self._options.step_size / (math.sqrt(number) if self._name == "gd" else 1.0)

    def _scalars(self, number: int, is_weight: bool) -> dict[str, Any]:
        penalised = is_weight and self._name not in DECAYING
        l1, l2 = (self._problem.l1, self._problem.l2) if penalised else (0.0, 0.0)
        scalars: dict[str, Any] = {"l1": l1, "l2": l2}
        if self._options.lazy and is_weight:
            scalars["lazy"] = True
        if self.follows_sums:
            scalars |= {"l1": number * l1, "l2": number * l2}
        if "step" in self._op.params:
            scalars["step"] = number
        return scalars | {self._declared.rate: self._rate(number)}


@dataclass(frozen=True, eq=False)
class CatchUp:
    """Applies the penalties that lazy steps of FTRL have left at columns, as they grow with every step; picklable."""

    operation: str
    weight: DCV
    sums: tuple[DCV, ...]
    rate: Mapping[str, float]
    l1: float
    l2: float

    def to_step(self, number: int) -> Callable[[Int64Array | None], object]:
        """Return a function of columns (None: all) that brings them up to a step."""
        scalars = {**self.rate, "l1": number * self.l1, "l2": number * self.l2}
        return lambda columns: self.weight.zip(*self.sums).apply(self.operation, columns, **scalars)
