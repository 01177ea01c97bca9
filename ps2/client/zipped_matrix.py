"""Operations on vectors, for all rows of several matrices at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ps2.client.batch import submit_all
from ps2.client.declared import declared
from ps2.client.handle import Handle
from ps2.client.plans import Target
from ps2.client.session import Session
from ps2.errors import ConfigError, ShapeError, UsageError
from ps2.ops.all import lookup


class Matrix(Protocol):
    """A ``DCVMatrix``, as far as this module uses it."""

    _first: Handle

    @property
    def number(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def _session(self) -> Session: ...
    def _target(self) -> Target: ...
    def _colocated(self, where: str, kind: str, given: Any) -> Handle: ...


M = TypeVar("M", bound=Matrix)


class ZippedMatrix(Generic[M]):
    """The result of ``m.zip(other, ...)``: matrices of equal shape for operations on vectors, row by row."""

    def __init__(self, matrices: tuple[M, ...]) -> None:
        first, *others = matrices
        for other in others:
            handle = first._colocated("zip", "block", other)
            if handle._matrix == first.number:
                raise ConfigError("zip: the same matrix is given twice")
            if other.shape != first.shape:
                raise ShapeError(f"zip: expected matrices of shape {first.shape}, got {other.shape}")
        self._matrices = matrices

    def apply(self, name: str, **scalars: Any) -> Any:
        """Run an operation on vectors, such as "adagrad", on each row of the matrices, in one request per server.

        Args:
            scalars: the operation's scalars.

        Returns:
            The answers of the rows, float64 of shape (rows,); the first matrix if the operation returns nothing.

        Raises:
            UsageError: the operation takes something else than vectors and scalars.
            NotFoundError, ConfigError, DTypeError, ShapeError: there is no such operation, or its arguments are wrong.
        """
        op = lookup(name)
        if set(op.operands) != {"row"}:
            raise UsageError(f"operation {name!r}: expected one on vectors and scalars; m.apply runs those on matrices")
        first = self._matrices[0]
        others = [matrix._first for matrix in self._matrices[1:]]
        target = replace(first._target(), others=first._first._others(others))
        plans = [
            declared(replace(target, rows=(row,) * len(self._matrices)), name, scalars) for row in range(first.shape[0])
        ]
        answers = submit_all(first._session, plans)
        return np.array(answers) if op.reduce else first
