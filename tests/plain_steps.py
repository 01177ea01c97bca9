"""The steps of optimizers for a logistic model, in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from training import Rows, logistic_gradient, plan_of

from ps2.algorithms.linear.losses import loss_of
from ps2.algorithms.linear.plan import LinearPlan, Problem

STEPS = 8
EPS, LR = 1e-8, 0.3


class Plain:
    """One vector, stepped by the formulas."""

    def __init__(self, w: Any, name: str, l1: float = 0.0, l2: float = 0.0) -> None:
        self.w, self.name, self.l1, self.l2 = np.array(w), name, l1, l2
        self.v, self.s, self.t = np.zeros_like(self.w), np.zeros_like(self.w), 0

    def step(self, g: Any) -> None:
        self.t += 1
        if self.name == "ftrl":
            self._ftrl(g)
            return
        if self.name == "adam":
            self.s = 0.999 * self.s + 0.001 * g**2
            self.v = 0.9 * self.v + 0.1 * g
            move, h = self.v / (1 - 0.9**self.t), np.sqrt(self.s / (1 - 0.999**self.t)) + EPS
        elif self.name == "momentum":
            self.v = 0.9 * self.v + g
            move, h = 0.1 * self.v, 0.1
        elif self.name == "sgd":
            move, h = g, 1.0
        elif self.name in ("adagrad", "rmsprop"):
            keep, add = (1.0, 1.0) if self.name == "adagrad" else (0.9, 0.1)
            self.s = keep * self.s + add * g**2
            move, h = g, np.sqrt(self.s) + EPS
        else:
            raise NotImplementedError(f"the formula of optimizer {self.name!r} is missing here")
        w = self.w - LR * move / h
        self.w = np.sign(w) * np.maximum(np.abs(w) - LR * self.l1 / h, 0) / (1 + LR * self.l2 / h)

    def _ftrl(self, g: Any) -> None:
        self.v += g - (np.sqrt(self.s + g**2) - np.sqrt(self.s)) / LR * self.w
        self.s += g**2
        excess = np.sign(self.v) * np.maximum(np.abs(self.v) - self.t * self.l1, 0)
        self.w = -excess / ((1 + np.sqrt(self.s)) / LR + self.t * self.l2)


def expected(rows: Rows, problem: Problem, name: str) -> tuple[Any, Any]:
    """Weights and intercept after full steps."""
    first = loss_of(problem).initial_biases(rows.facts(2))
    w = Plain(np.zeros(problem.dim), name, problem.l1, problem.l2)
    b = Plain(np.zeros(1) if name == "ftrl" else first, name)
    for _ in range(STEPS):
        gradient, of_bias = logistic_gradient(rows, w.w, b.w)
        w.step(gradient)
        b.step(of_bias)
    return w.w, b.w


def minibatches(optimizer: str, lazy: bool = False, steps: int = STEPS, **more: Any) -> LinearPlan:
    return plan_of("minibatch", optimizer=optimizer, lazy=lazy, maxIter=steps, stepSize=LR, **more)
