"""The optimizers of embedding tables: their operations, hyperparameters, and the state in each block. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ps2.errors import ConfigError
from ps2.ops import embedding_steps
from ps2.ops.all import lookup

# Squares of gradients are added up in float32: a sum that overflows would end the learning of its key without a word.
LARGEST_SQUARED = 1e15


@dataclass(frozen=True)
class StepKind:
    """An optimizer of embedding tables.

    Attributes:
        operation: the operation that takes its step.
        defaults: its hyperparameters.
        block: returns the length of a block of k weights, of which the first ``linear`` are linear weights.
        is_linear: its operation takes the number of weights that take steps of FTRL as ``linear``.
        largest_gradient: the largest absolute value of a gradient that it takes; None: any finite one.
    """

    operation: str
    defaults: Mapping[str, float]
    block: Callable[[int, int], int]
    is_linear: bool = False
    largest_gradient: float | None = LARGEST_SQUARED


PENALTIES = {"l1": 0.0, "l2": 0.0}
FTRL = {"alpha": 0.05, "beta": 1.0}
ADAGRAD = {"lr": 0.05, "eps": 1e-8}
KINDS: Mapping[str, StepKind] = {
    "sgd": StepKind(
        "embedding_sgd", {"lr": 0.05} | PENALTIES, lambda k, _: embedding_steps.sgd_block(k), largest_gradient=None
    ),
    "adagrad": StepKind("embedding_adagrad", ADAGRAD | PENALTIES, lambda k, _: embedding_steps.adagrad_block(k)),
    "adam": StepKind(
        "embedding_adam",
        {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8} | PENALTIES,
        lambda k, _: embedding_steps.adam_block(k),
    ),
    "ftrl": StepKind("embedding_ftrl", FTRL | PENALTIES, lambda k, _: embedding_steps.ftrl_block(k, k), True),
    "ftrl+adagrad": StepKind(
        "embedding_ftrl", FTRL | PENALTIES | ADAGRAD | {"decay": 0.0}, embedding_steps.ftrl_block, True
    ),
}


@dataclass(frozen=True)
class TableOptimizer:
    """An optimizer with its hyperparameters, for a table of k weights a key.

    Attributes:
        name: one of ``KINDS``.
        k: number of weights of a key.
        linear: for "ftrl+adagrad": how many of them, the first ones, take steps of FTRL.
        scalars: the hyperparameters, in the operation's own names.
    """

    name: str
    k: int
    linear: int
    scalars: Mapping[str, float]

    @property
    def largest_gradient(self) -> float | None:
        """The largest absolute value of a gradient; None: any finite one."""
        return KINDS[self.name].largest_gradient

    @staticmethod
    def of(name: Any, k: int, linear: int, given: Mapping[str, float | None]) -> TableOptimizer:
        """Return an optimizer with the given hyperparameters; None takes the default.

        Raises:
            ConfigError: there is no such optimizer, it does not have a hyperparameter, or one is out of range.
        """
        if name not in KINDS:
            raise ConfigError(f"optimizer: expected one of {', '.join(KINDS)}, got {name!r}")
        kind = KINDS[name]
        if name == "ftrl+adagrad" and not 1 <= linear < k:
            raise ConfigError(
                f"optimizer 'ftrl+adagrad': expected zeroColumns from 1 to k - 1 = {k - 1}, the weights that take "
                f"steps of FTRL, got {linear}"
            )
        some = {key: value for key, value in given.items() if value is not None}
        for key in some:
            if key not in kind.defaults:
                raise ConfigError(f"{key}: optimizer {name!r} takes {', '.join(kind.defaults)}")
        scalars = {**kind.defaults, **some}
        if kind.is_linear:
            scalars["linear"] = k if name == "ftrl" else linear
        checked = lookup(kind.operation).check(0, "float32", scalars)
        return TableOptimizer(name, k, linear, checked)

    @property
    def operation(self) -> str:
        return KINDS[self.name].operation

    @property
    def block(self) -> int:
        """Length of a key's block: its weights, and the state of the optimizer."""
        return KINDS[self.name].block(self.k, self.linear)

    @property
    def hyperparameters(self) -> dict[str, float]:
        """The hyperparameters by name, without what the operation needs besides."""
        return {key: self.scalars[key] for key in KINDS[self.name].defaults}

    def changed(self, given: Mapping[str, float]) -> TableOptimizer:
        """Return the optimizer with some other hyperparameters; raises like ``of``."""
        return TableOptimizer.of(self.name, self.k, self.linear, {**self.hyperparameters, **given})
