"""Settings of an embedding table and its optimizer, which all handles to the table share. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ps2.array_types import Int64s
from ps2.client.arguments import MAX_KEYS, as_integers
from ps2.errors import CheckpointCorruptError, ConfigError, LimitError, OutOfRangeError
from ps2.matrix.partition import MAX_SPARSE_DIM, WIRES, Wire, hash_bucket
from ps2.number_checks import is_whole
from ps2.ops import embedding_steps
from ps2.ops.all import lookup

# Limit of gradients for optimizers that sum their squares in float32: a key with an infinite sum would stop learning.
MAX_GRADIENT = 1e15


@dataclass(frozen=True)
class OptimizerKind:
    """An optimizer of embedding tables, without values of its hyperparameters.

    Attributes:
        operation: the server operation that takes the optimizer's step.
        defaults: default values of the hyperparameters.
        block: ``block(k, linear)`` returns the length of a key's block: k weights and the optimizer's state; the first
            ``linear`` weights take steps of FTRL.
        takes_linear: True if the operation has the argument ``linear``.
        max_gradient: the limit of a gradient's absolute value; None: no limit.
    """

    operation: str
    defaults: Mapping[str, float]
    block: Callable[[int, int], int]
    takes_linear: bool = False
    max_gradient: float | None = MAX_GRADIENT


# Default hyperparameters.
PENALTIES = {"l1": 0.0, "l2": 0.0}
FTRL = {"alpha": 0.05, "beta": 1.0}
ADAGRAD = {"lr": 0.05, "eps": 1e-8}
KINDS: Mapping[str, OptimizerKind] = {
    "sgd": OptimizerKind(
        "embedding_sgd", {"lr": 0.05} | PENALTIES, lambda k, _: embedding_steps.sgd_block(k), max_gradient=None
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
        k: number of weights of a key.
        linear: with "ftrl+adagrad", how many leading weights of a key take steps of FTRL.
        scalars: the operation's scalar arguments: the hyperparameters and, if the operation has it, ``linear``.
    """

    name: str
    k: int
    linear: int
    scalars: Mapping[str, float]

    @property
    def max_gradient(self) -> float | None:
        return KINDS[self.name].max_gradient

    @staticmethod
    def of(name: Any, k: int, linear: int, values: Mapping[str, float | None]) -> TableOptimizer:
        """Return the optimizer ``name``; a hyperparameter that is None gets its default."""
        if name not in KINDS:
            raise ConfigError(f"optimizer: expected one of {', '.join(KINDS)}, got {name!r}")
        kind = KINDS[name]
        if name == "ftrl+adagrad" and not 1 <= linear < k:
            raise ConfigError(
                f"optimizer 'ftrl+adagrad': expected zeroColumns, the number of weights that take steps of FTRL, from "
                f"1 to k - 1 = {k - 1}, got {linear}"
            )
        set_values = {key: value for key, value in values.items() if value is not None}
        for key in set_values:
            if key not in kind.defaults:
                raise ConfigError(f"{key}: expected a hyperparameter of optimizer {name!r}: {', '.join(kind.defaults)}")
        scalars = {**kind.defaults, **set_values}
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
        """The hyperparameters by name: ``scalars`` without ``linear``."""
        return {key: self.scalars[key] for key in KINDS[self.name].defaults}

    def changed(self, values: Mapping[str, float]) -> TableOptimizer:
        """Return a copy with some hyperparameters replaced; raises like ``of``."""
        return TableOptimizer.of(self.name, self.k, self.linear, {**self.hyperparameters, **values})


MAX_HASH_BITS = 31
FORMAT = "ps2.embedding-table.1"


@dataclass(frozen=True)
class TableSettings:
    """Settings of an embedding table, except its ``KeyPolicy``, which is part of the matrix's spec.

    Attributes:
        dim: the exclusive upper limit of keys.
        hash_bits: the number of bits of a key's hash, which is its column. Keys can collide. None: keys are columns.
        zero_columns: the number of leading weights of a key that begin at 0.
        wire: dtype of gradients in messages; None: float32.
    """

    optimizer: TableOptimizer
    dim: int = MAX_SPARSE_DIM
    hash_bits: int | None = None
    zero_columns: int = 0
    wire: Wire | None = None

    def __post_init__(self) -> None:
        bits, zeros = self.hash_bits, self.zero_columns
        if bits is not None and not (is_whole(bits) and 1 <= bits <= MAX_HASH_BITS):
            raise ConfigError(f"hashBits: expected None or an integer from 1 to {MAX_HASH_BITS}, got {bits!r}")
        if not is_whole(zeros) or not 0 <= zeros <= self.k:
            raise ConfigError(f"zeroColumns: expected an integer from 0 to k = {self.k}, got {zeros!r}")
        if self.wire is not None and self.wire not in WIRES:
            raise ConfigError(f"wire: expected None or one of {', '.join(WIRES)}, got {self.wire!r}")

    @property
    def k(self) -> int:
        return self.optimizer.k

    @property
    def matrix_dim(self) -> int:
        """Number of columns of the table's matrix."""
        return self.dim if self.hash_bits is None else 1 << self.hash_bits

    def checked_keys(self, keys: Any) -> Int64s:
        """Return keys of any shape as a C-contiguous int64 array of the same shape."""
        array = as_integers("keys", keys)
        if array.size > MAX_KEYS:
            raise LimitError(f"keys: at most {MAX_KEYS:,} in one call, got {array.size:,}")
        if array.size:
            low, high = int(array.min()), int(array.max())
            if low < 0 or high >= self.dim:
                bad = low if low < 0 else high
                position = int(np.argmax(array.reshape(-1) == bad))
                raise OutOfRangeError(f"keys: {bad} (at position {position}) is outside [0, {self.dim})")
        return array

    def columns(self, keys: Int64s) -> Int64s:
        """Return the matrix's column of each key, int64 of shape (n,): the key or, with ``hash_bits``, its hash."""
        return keys if self.hash_bits is None else hash_bucket(keys) >> np.int64(32 - self.hash_bits)

    def to_json(self) -> dict[str, Any]:
        optimizer = self.optimizer
        return {
            "format": FORMAT,
            "k": self.k,
            "optimizer": optimizer.name,
            "linear": optimizer.linear,
            "hyperparameters": optimizer.hyperparameters,
            "dim": self.dim,
            "hashBits": self.hash_bits,
            "zeroColumns": self.zero_columns,
            "wire": self.wire,
        }

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> TableSettings:
        """Return the settings that ``to_json`` wrote; raise CheckpointCorruptError if one is missing or invalid."""
        try:
            optimizer = TableOptimizer.of(
                content["optimizer"], content["k"], content["linear"], content["hyperparameters"]
            )
            return TableSettings(
                optimizer, content["dim"], content["hashBits"], content["zeroColumns"], content["wire"]
            )
        except (KeyError, TypeError, ConfigError) as error:
            raise CheckpointCorruptError(f"settings of an embedding table: {error!r}") from error


def num_possible_keys(keys: int | Literal["hashed"]) -> int:
    """Return the number of possible keys; raise ConfigError if ``keys`` is neither "hashed" nor such a number."""
    if keys == "hashed":
        return MAX_SPARSE_DIM
    if not is_whole(keys) or not 1 <= keys <= MAX_SPARSE_DIM:
        raise ConfigError(f"keys: expected 'hashed', or a number of keys from 1 to 2**63, got {keys!r}")
    return int(keys)
