"""Optimizers of embedding tables: their server operations, hyperparameters, and lengths of a key's block. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ps2.errors import ConfigError
from ps2.ops import embedding_steps
from ps2.ops.all import lookup

# The largest gradient of optimizers that sum squares, in float32: once a sum is infinite, its key never learns again.
LARGEST_SQUARED = 1e15


@dataclass(frozen=True)
class OptimizerKind:
    """An optimizer of embedding tables, without values of its hyperparameters.

    Attributes:
        operation: name of the server operation that takes its step (``ps2.ops.embedding_steps``).
        defaults: its hyperparameters by name, with their default values.
        block: ``block(k, linear)`` returns the length of a key's block: k weights, of which the first ``linear`` take
            steps of FTRL, and the optimizer's state.
        takes_linear: True if the operation has a parameter ``linear``.
        largest_gradient: largest absolute value of a gradient; None: any finite one.
    """

    operation: str
    defaults: Mapping[str, float]
    block: Callable[[int, int], int]
    takes_linear: bool = False
    largest_gradient: float | None = LARGEST_SQUARED


PENALTIES = {"l1": 0.0, "l2": 0.0}
FTRL = {"alpha": 0.05, "beta": 1.0}
ADAGRAD = {"lr": 0.05, "eps": 1e-8}
KINDS: Mapping[str, OptimizerKind] = {
    "sgd": OptimizerKind(
        "embedding_sgd", {"lr": 0.05} | PENALTIES, lambda k, _: embedding_steps.sgd_block(k), largest_gradient=None
    ),
    "adagrad": OptimizerKind("embedding_adagrad", ADAGRAD | PENALTIES, lambda k, _: embedding_steps.adagrad_block(k)),
    "adam": OptimizerKind(
        "embedding_adam",
        {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8} | PENALTIES,
        lambda k, _: embedding_steps.adam_block(k),
    ),
    "ftrl": OptimizerKind("embedding_ftrl", FTRL | PENALTIES, lambda k, _: embedding_steps.ftrl_block(k, k), True),
    "ftrl+adagrad": OptimizerKind(
        "embedding_ftrl", FTRL | PENALTIES | ADAGRAD | {"decay": 0.0}, embedding_steps.ftrl_block, True
    ),
}


@dataclass(frozen=True)
class TableOptimizer:
    """An optimizer with values of its hyperparameters, for a table of k weights for each key.

    Attributes:
        name: one of ``KINDS``.
        k: number of weights of a key.
        linear: with "ftrl+adagrad", how many of a key's weights, the first ones, take steps of FTRL.
        scalars: the scalar arguments of the operation, by the operation's names for them.
    """

    name: str
    k: int
    linear: int
    scalars: Mapping[str, float]

    @property
    def largest_gradient(self) -> float | None:
        """Largest absolute value of a gradient; None: any finite one."""
        return KINDS[self.name].largest_gradient

    @staticmethod
    def of(name: Any, k: int, linear: int, values: Mapping[str, float | None]) -> TableOptimizer:
        """Return an optimizer.

        Args:
            name: the user's value.
            values: hyperparameters by name; None takes the default.

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
        some = {key: value for key, value in values.items() if value is not None}
        for key in some:
            if key not in kind.defaults:
                raise ConfigError(f"{key}: optimizer {name!r} takes {', '.join(kind.defaults)}")
        scalars = {**kind.defaults, **some}
        if kind.takes_linear:
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
        """The hyperparameters by name, without other arguments of the operation."""
        return {key: self.scalars[key] for key in KINDS[self.name].defaults}

    def changed(self, values: Mapping[str, float]) -> TableOptimizer:
        """Return a copy with some hyperparameters replaced; raises like ``of``."""
        return TableOptimizer.of(self.name, self.k, self.linear, {**self.hyperparameters, **values})
