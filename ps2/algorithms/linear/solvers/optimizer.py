"""Steps of an optimiser on the servers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ps2.algorithms.linear.parameters import Int64Array, Parameters
from ps2.algorithms.linear.solvers.solver import Bench
from ps2.client.dcv import DCV

# Vectors of each optimiser beside weight and gradient, in the order that its operation takes them.
STATE = {
    "sgd": (),
    "momentum": ("velocity",),
    "adagrad": ("square",),
    "rmsprop": ("square",),
    "adam": ("velocity", "square"),
    "ftrl": ("z", "square"),
    "adamW": ("velocity", "square"),
    "gd": (),
}
# pyspark.ml's update rules of factorization machines: the operation, before which weights and intercept decay.
DECAYING = {"adamW": "adam", "gd": "sgd"}
# Operations that can leave columns alone whose gradient is 0; with a penalty FTRL's only: weights follow from sums.
LAZY = ("adagrad", "adam", "ftrl")


class Optimizer:
    """Steps of one optimiser on the servers.

    FTRL keeps its penalties out of the steps: its weights follow from sums over all steps (McMahan et al., 2013).
    "adamW" and "gd" let everything decay by the L2 penalty before the step, by as much whatever the gradients were
    (Loshchilov & Hutter, 2019).
    """

    def __init__(self, bench: Bench, model: Parameters, gradient: Parameters) -> None:
        self._name = bench.recipe.optimizer
        self._problem, self._recipe = bench.problem, bench.recipe
        self._model, self._gradient = model, gradient
        self._states = {name: bench.space.new() for name in STATE[self._name]}

    def step(self, number: int) -> None:
        """Take step ``number``, from 1, and zero the gradient; within ``batch()``."""
        self._decay(number)
        states = self._states.values()
        name = DECAYING.get(self._name, self._name)
        weights, biases = [state.weight for state in states], [state.bias for state in states]
        self._model.weight.zip(*weights, self._gradient.weight).apply(name, **self._scalars(number, is_weight=True))
        self._model.bias.zip(*biases, self._gradient.bias).apply(name, **self._scalars(number, is_weight=False))
        for vector in self._gradient.each:
            vector.zero()

    def decayed(self, model: Parameters) -> tuple[DCV, ...]:
        """Return what of a model an L2 penalty is on."""
        return model.each if self._name in DECAYING else (model.weight,)

    def catching_up(self) -> CatchUp | None:
        """Return how to bring columns up to date before they are read; None: they always are."""
        problem = self._problem
        if self._name != "ftrl" or not self._recipe.lazy or not (problem.l1 or problem.l2):
            return None
        sums = (self._states["z"].weight, self._states["square"].weight)
        return CatchUp(self._model.weight, sums, self._recipe.step_size, problem.l1, problem.l2)

    def _decay(self, number: int) -> None:
        if self._name in DECAYING and self._problem.l2:
            share = self._problem.l2 * (self._rate(number) if self._name == "gd" else 1.0)
            for vector in self._model.each:
                vector.mul(1.0 - share)

    def _rate(self, number: int) -> float:
        return self._recipe.step_size / (math.sqrt(number) if self._name == "gd" else 1.0)

    def _scalars(self, number: int, is_weight: bool) -> dict[str, Any]:
        penalised = is_weight and self._name not in DECAYING
        l1, l2 = (self._problem.l1, self._problem.l2) if penalised else (0.0, 0.0)
        scalars: dict[str, Any] = {"l1": l1, "l2": l2}
        if self._recipe.lazy and is_weight:
            scalars["lazy"] = True
        if self._name == "ftrl":
            return scalars | {"alpha": self._recipe.step_size, "l1": number * l1, "l2": number * l2}
        scalars["lr"] = self._rate(number)
        return scalars | {"step": number} if self._name in ("adam", "adamW") else scalars


@dataclass(frozen=True, eq=False)
class CatchUp:
    """Applies the penalties that lazy steps of FTRL have left at columns, as they grow with every step; picklable."""

    weight: DCV
    sums: tuple[DCV, DCV]
    step_size: float
    l1: float
    l2: float

    def to_step(self, number: int) -> Callable[[Int64Array | None], object]:
        """Return a function of columns (None: all) that brings them up to a step."""
        scalars = {"alpha": self.step_size, "l1": number * self.l1, "l2": number * self.l2}
        return lambda columns: self.weight.zip(*self.sums).apply("ftrl_weights", columns, **scalars)
