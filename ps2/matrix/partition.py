"""Partitioning of a matrix: pure functions of its ``MatrixSpec`` (paper, section 4.3).

A dense matrix is partitioned by columns: each partition is a half-open interval ``[begin, end)``. A sparse matrix is
partitioned by the hash of the key, which spreads any set of keys evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ps2.array_types import Int64s
from ps2.errors import ConfigError, DTypeError, OutOfRangeError
from ps2.matrix.key_policy import KeyPolicy
from ps2.number_checks import is_whole
from ps2.splitmix import scrambled

Kind = Literal["dense", "sparse"]
Layout = Literal["row", "column"]
Wire = Literal["float16", "bfloat16"]

DTYPES = {name: np.dtype(name) for name in ("float32", "float64", "int32", "int64")}
WIRES = get_args(Wire)
MAX_SPARSE_DIM = 2**63
MAX_DENSE_DIM = 2**40
MAX_ROWS = 2**31 - 1
# Limit of a column's block (its values in all rows), because a block is sent in one message.
MAX_BLOCK_BYTES = 4 << 20
# Keys of sparse matrices are hashed to this many buckets, and each partition has an interval of buckets.
HASH_SPACE = 2**32


@dataclass(frozen=True)
class MatrixSpec:
    """The properties of a matrix that are fixed when it is created.

    Attributes:
        dim: the number of columns; the keys of a sparse matrix are in ``[0, dim)``.
        rows: the number of rows at creation; a matrix may grow.
        dtype: "float32", "float64", "int32" or "int64".
        kind: "dense", or "sparse" (hashed keys).
        align: for dense matrices: partitions begin at multiples of this number of columns.
        partitions_per_server: with more than 1, single partitions can later be moved to other servers.
        wire: the dtype of values in messages, "float16" or "bfloat16"; None: ``dtype``.
        layout: the contiguous unit in memory: "row": a row of a partition; "column": a block, the values of a column in
            all rows.
        key_policy: for sparse matrices: the rules by which keys get and lose their slots, and their initial values.
            None: a key gets its slot at its first touch, with zeros, and never loses it.
    """

    dim: int
    rows: int
    dtype: str = "float32"
    kind: Kind = "dense"
    align: int = 1
    partitions_per_server: int = 1
    wire: Wire | None = None
    layout: Layout = "row"
    key_policy: KeyPolicy | None = None

    def __post_init__(self) -> None:
        for name in ("dim", "rows", "align", "partitions_per_server"):
            value = getattr(self, name)
            if not is_whole(value):
                raise ConfigError(f"{name}: expected an integer, got {value!r}")
            object.__setattr__(self, name, int(value))
            if value <= 0:
                raise ConfigError(f"{name}: expected a positive integer, got {value}")
        if self.kind not in ("dense", "sparse"):
            raise ConfigError(f"kind: expected 'dense' or 'sparse', got {self.kind!r}")
        limit = MAX_SPARSE_DIM if self.kind == "sparse" else MAX_DENSE_DIM
        if self.dim > limit:
            raise ConfigError(f"dim: a {self.kind} vector has at most {limit} columns, got {self.dim}")
        if self.rows > MAX_ROWS:
            raise ConfigError(f"rows: a matrix has at most {MAX_ROWS} rows, got {self.rows}")
        if self.dtype not in DTYPES:
            raise DTypeError(f"dtype: expected one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.kind == "sparse" and self.align != 1:
            raise ConfigError(f"align: a sparse matrix is partitioned by hash, so expected align=1, got {self.align}")
        if self.layout not in get_args(Layout):
            raise ConfigError(f"layout: expected 'row' or 'column', got {self.layout!r}")
        if self.layout == "column" and self.block_bytes > MAX_BLOCK_BYTES:
            raise ConfigError(
                f"rows: with layout 'column' a column's values in all rows take at most {MAX_BLOCK_BYTES:,} bytes, got "
                f"{self.rows:,} rows of {self.dtype}"
            )
        if self.wire is not None and (self.wire not in WIRES or self.np_dtype.kind != "f"):
            raise ConfigError(
                f"wire: expected {' or '.join(WIRES)}, for a vector of floats, got {self.wire!r} for {self.dtype}"
            )
        if self.key_policy is not None:
            self._check_key_policy(self.key_policy)

    def _check_key_policy(self, policy: KeyPolicy) -> None:
        if self.kind != "sparse":
            raise ConfigError(f"key_policy: only a sparse matrix has managed keys, got kind={self.kind!r}")
        if self.np_dtype.kind != "f" and not policy.initial.is_zero:
            raise ConfigError(f"init: expected 'zeros' for a matrix of {self.dtype}, got {policy.initial.kind!r}")
        # A row that is added later is 0 at the active keys, so its initial values must be 0, too.
        if self.layout == "row" and not policy.initial.is_zero and policy.initial.end > self.rows:
            raise ConfigError(f"initEnd: expected at most the matrix's {self.rows} rows, got {policy.initial.end}")

    @property
    def np_dtype(self) -> np.dtype[np.generic]:
        return DTYPES[self.dtype]

    @property
    def block_bytes(self) -> int:
        """The bytes of a column's values in all rows."""
        return self.rows * self.np_dtype.itemsize

    @property
    def space(self) -> int:
        """The size of the partitioned range: the number of columns, or of hash buckets."""
        return HASH_SPACE if self.kind == "sparse" else self.dim


@dataclass(frozen=True)
class Partition:
    """A half-open column interval ``[begin, end)``; for a sparse matrix, an interval of hash buckets."""

    index: int
    begin: int
    end: int

    @property
    def width(self) -> int:
        return self.end - self.begin


def partition_bounds(spec: MatrixSpec, servers: int) -> tuple[int, ...]:
    """Return the ``n + 1`` ascending bounds of the matrix's ``n`` partitions.

    The sizes of partitions differ by at most ``align`` columns. If there are fewer groups of ``align`` columns than
    servers, each group is a partition, so no partition is empty.
    """
    groups = -(-spec.space // spec.align)
    count = min(servers * spec.partitions_per_server, groups)
    return tuple(min(groups * i // count * spec.align, spec.space) for i in range(count + 1))


def partitions(bounds: tuple[int, ...]) -> tuple[Partition, ...]:
    return tuple(Partition(i, bounds[i], bounds[i + 1]) for i in range(len(bounds) - 1))


def assign_owners(count: int, servers: int) -> tuple[int, ...]:
    """Return the server index of each of ``count`` partitions: contiguous runs of partitions, as even as possible."""
    used_servers = min(count, servers)
    return tuple(i * used_servers // count for i in range(count))


def hash_bucket(keys: Int64s) -> Int64s:
    """Return the bucket in ``[0, HASH_SPACE)`` of each int64 key (the upper half of SplitMix64's output)."""
    buckets: Int64s = (scrambled(keys.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
    return buckets


def partition_of(spec: MatrixSpec, bounds: tuple[int, ...], columns: Int64s) -> Int64s:
    """Return the partition index of each column or key."""
    positions = hash_bucket(columns) if spec.kind == "sparse" else columns
    return np.searchsorted(np.asarray(bounds[1:], dtype=np.int64), positions, side="right").astype(np.int64)


def check_columns(spec: MatrixSpec, columns: Int64s) -> None:
    """Raise OutOfRangeError if a column is not in ``[0, dim)``."""
    if columns.size == 0:
        return
    low, high = int(columns.min()), int(columns.max())
    if low < 0 or high >= spec.dim:
        invalid = low if low < 0 else high
        position = int(np.argmax(columns == invalid))
        raise OutOfRangeError(f"index {invalid} (at position {position}) is outside [0, {spec.dim})")
