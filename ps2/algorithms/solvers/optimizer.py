"""Steps of an optimiser on the servers, and penalties that wait for a column's next step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ps2.algorithms.solvers.solver import Bench
from ps2.algorithms.training.parameters import Int64Array, Parameters
from ps2.client.dcv import DCV

# What a column's penalty depends on beside its weight, in the order that "settle_scaled" takes them.
METRIC = {"adagrad": "square", "rmsprop": "square", "adam": "square"}
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
        self._at = bench.space.weight() if bench.recipe.lazy and self._name != "ftrl" else None

    def step(self, number: int) -> None:
        """Take step ``number``, from 1, and zero the gradient; within ``batch()``."""
        self._decay(number)
        states = self._states.values()
        weights = [state.weight for state in states] + ([] if self._at is None else [self._at])
        plain = DECAYING.get(self._name, self._name)
        name = plain if self._at is None else f"lazy_{plain}"
        self._model.weight.zip(*weights, self._gradient.weight).apply(name, **self._scalars(number, is_weight=True))
        biases = [state.bias for state in states]
        self._model.bias.zip(*biases, self._gradient.bias).apply(plain, **self._scalars(number, is_weight=False))
        for vector in self._gradient.each:
            vector.zero()

    def settle(self, number: int) -> None:
        """Let penalties that wait for a column's next step take effect, up to step ``number``."""
        settling = self.settling()
        if settling is not None:
            settling.to_step(number)(None)

    def settling(self) -> Settling | None:
        """Return how to do that for some columns; None: nothing ever waits."""
        problem = self._problem
        if not self._recipe.lazy or not (problem.l1 or problem.l2) or self._name in DECAYING:
            return None
        vectors = [self._model.weight]
        if self._name == "ftrl":
            vectors += [state.weight for state in self._states.values()]
        elif self._name in METRIC:
            vectors.append(self._states[METRIC[self._name]].weight)
        if self._at is not None:
            vectors.append(self._at)
        return Settling(self._name, tuple(vectors), self._recipe.step_size, problem.l1, problem.l2)

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
        if self._name == "ftrl":
            lazy = self._recipe.lazy and is_weight
            return {"alpha": self._recipe.step_size, "l1": number * l1, "l2": number * l2, "lazy": lazy}
        scalars = {"lr": self._rate(number), "l1": l1, "l2": l2}
        if self._name in ("adam", "adamW") or (self._at is not None and is_weight):
            scalars["step"] = number
        return scalars


@dataclass(frozen=True, eq=False)
class Settling:
    """Brings penalties up to date at columns; picklable."""

    optimizer: str
    vectors: tuple[DCV, ...]
    step_size: float
    l1: float
    l2: float

    def to_step(self, number: int) -> Callable[[Int64Array | None], object]:
        """Return a function of columns (None: all) that brings them up to a step."""
        weight, *others = self.vectors
        name, scalars = self._call(number)
        return lambda columns: weight.zip(*others).apply(name, columns, **scalars)

    def _call(self, number: int) -> tuple[str, Mapping[str, float]]:
        if self.optimizer == "ftrl":
            return "settle_ftrl", {"alpha": self.step_size, "l1": number * self.l1, "l2": number * self.l2}
        scalars = {"lr": self.step_size, "l1": self.l1, "l2": self.l2, "step": number}
        if self.optimizer == "momentum":
            scalars["momentum"] = 0.9
        if self.optimizer == "adam":
            scalars["beta1"] = 0.999
        return "settle_scaled" if self.optimizer in METRIC else "settle_plain", scalars
