"""Settings of an embedding table that all its handles share. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ps2.array_types import Int64s
from ps2.client.arguments import MAX_KEYS, as_integers
from ps2.client.embedding_optimizers import TableOptimizer
from ps2.errors import CheckpointCorruptError, ConfigError, LimitError, OutOfRangeError
from ps2.matrix.partition import MAX_SPARSE_DIM, WIRES, Wire, hash_bucket
from ps2.number_checks import is_whole

MAX_HASH_BITS = 31
FORMAT = "ps2.embedding-table.1"


@dataclass(frozen=True)
class TableSettings:
    """Settings of an embedding table, except ``KeyPolicy``, which the matrix's spec holds.

    Attributes:
        optimizer: the optimizer; it holds k, the number of weights of a key.
        dim: keys are in [0, dim).
        hash_bits: keys are folded to this many bits, so that some collide; None: keys are not folded.
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
        """Return keys of any shape as a C-contiguous int64 array of the same shape.

        Raises:
            DTypeError: the keys are not integers.
            OutOfRangeError: a key is not in [0, dim).
            LimitError: there are more keys than one call takes.
        """
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
        """Return the matrix's column of each key, int64 of shape (n,): the key itself, unless keys are folded."""
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


def key_bound(keys: int | Literal["hashed"]) -> int:
    """Return the bound of keys, which are in [0, bound); raise ConfigError unless ``keys`` is "hashed" or a number."""
    if keys == "hashed":
        return MAX_SPARSE_DIM
    if not is_whole(keys) or not 1 <= keys <= MAX_SPARSE_DIM:
        raise ConfigError(f"keys: expected 'hashed', or a number of keys from 1 to 2**63, got {keys!r}")
    return int(keys)
