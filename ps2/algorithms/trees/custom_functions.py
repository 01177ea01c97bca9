"""Users' functions of rows, which the workers of boosted trees call: objectives and metrics.

A function gets margins, labels and weights as read-only float64 arrays, some rows at a time. It must compute each row
from this row alone. PS2 does not compile a function: a compiled exponential has other last bits than NumPy's. Users
can: a function with ``numba.njit`` is called as any other.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from ps2.algorithms.trees.layout import MIN_HESSIAN
from ps2.array_types import Float64s
from ps2.errors import ConfigError, WorkerError
from ps2.ops.guards import readable
from ps2.ops.parallel import over_blocks

# The cost of a row's gradient and hessian, in additions of array elements.
ROW_COST = 16
# The relative difference up to which two results for a row count as equal: NumPy may compute few rows in another way.
ROW_TOLERANCE = 1e-9
PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)


@dataclass(frozen=True, eq=False)
class RowFunction:
    """A function of margins, labels and weights; param: the keyword by which the user has passed it."""

    param: str
    function: Any

    def __post_init__(self) -> None:
        if not callable(self.function):
            hint = "; lossType names the losses of PS2" if self.param == "objective" else ""
            raise ConfigError(
                f"{self.param}: expected a function of margins, labels and weights, got {self.function!r}{hint}"
            )

    @property
    def name(self) -> str:
        function = self.function.func if isinstance(self.function, partial) else self.function
        return str(getattr(function, "__name__", type(function).__name__))

    def __call__(self, margins: Float64s, y: Float64s, weights: Float64s) -> Any:
        """Call the function; margins: shape (n, width), which the function gets as (n,) if there is one output."""
        by_output = margins[:, 0] if margins.shape[1] == 1 else margins
        try:
            return self.function(readable(by_output), readable(y), readable(weights))
        except Exception as error:  # a user's function may raise any exception
            frame = traceback.extract_tb(error.__traceback__)[-1]
            last_line = traceback.format_exception_only(error)[-1].strip()
            raise self.error(f"failed in line {frame.lineno} of {frame.filename}: {last_line}") from error

    def error(self, text: str) -> WorkerError:
        return WorkerError(f"{self.param}: {self.name}() {text}")

    def set_gradients(self, margins: Float64s, y: Float64s, weights: Float64s, out: Float64s) -> None:
        """Set ``out``, shape (width, n, 2), to hessians and gradients; WorkerError: the function's result is unusable.

        Args:
            margins: shape (n, width).
            weights: empty if each row has weight 1.
        """
        if len(y):
            rows = margins, y, weights if len(weights) else np.ones(len(y)), out.transpose(1, 0, 2)
            over_blocks(self._set_block, rows, cost=ROW_COST)

    def _set_block(self, margins: Float64s, y: Float64s, weights: Float64s, out: Float64s) -> None:
        result = self(margins, y, weights)
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise self.error(f"expected to return two arrays, gradients and hessians, got {_description(result)}")
        gradients = self._checked(result[0], "gradients", margins, y)
        hessians = self._checked(result[1], "hessians", margins, y)
        if (hessians < 0).any():
            raise self._row_error("hessians that are not negative", hessians, hessians < 0, margins, y)
        out[..., 0] = np.where((hessians > 0) | (gradients == 0), hessians, MIN_HESSIAN)
        out[..., 1] = gradients

    def _checked(self, values: Any, name: str, margins: Float64s, y: Float64s) -> Float64s:
        """Return a result as float64, shape (n, width); WorkerError: it has another shape or type, or is not finite."""
        shape = (len(y),) if margins.shape[1] == 1 else margins.shape
        if not isinstance(values, np.ndarray) or values.shape != shape or values.dtype.kind not in "fiu":
            expected = f"{name} as an array of numbers, shape {shape}"
            raise self.error(f"expected to return {expected}, got {_description(values)}")
        as_float = values.astype(np.float64).reshape(margins.shape)
        if not np.isfinite(as_float).all():
            raise self._row_error(f"finite {name}", as_float, ~np.isfinite(as_float), margins, y)
        return as_float

    def _row_error(self, expected: str, values: Float64s, is_wrong: Any, margins: Float64s, y: Float64s) -> WorkerError:
        row, output = np.argwhere(is_wrong)[0]
        value, margin = values[row, output], margins[row, output]
        return self.error(f"expected to return {expected}, got {value:g} for margin {margin:g} and label {y[row]:g}")

    def check_gradients(self, labels: Sequence[float], width: int) -> None:
        """Call the function for rows of margin 0 with these labels; WorkerError: it fails, or rows are not independent.

        A row's gradient may not depend on the other rows: workers have other rows on another fleet.
        """
        y = np.array(labels, np.float64)
        margins, weights, together = np.zeros((len(y), width)), np.ones(len(y)), np.empty((width, len(y), 2))
        self.set_gradients(margins, y, weights, together)
        for row in range(len(y)):
            part, alone = slice(row, row + 1), np.empty((width, 1, 2))
            self.set_gradients(margins[part], y[part], weights[part], alone)
            if not np.allclose(alone, together[:, part], rtol=ROW_TOLERANCE, atol=0.0):
                raise self.error(
                    "expected to return the gradient of each row from this row alone, got others for a row with label "
                    f"{y[row]:g} when there are {len(y)} rows"
                )

    def sums(self, margins: Float64s, y: Float64s, weights: Float64s) -> tuple[float, float]:
        """Return a metric's numerator and denominator for some rows; WorkerError: the result is unusable."""
        result = self(margins, y, weights if len(weights) else np.ones(len(y)))
        is_pair = isinstance(result, (tuple, list)) and len(result) == 2
        if not is_pair or not all(np.ndim(value) == 0 and np.isfinite(value) for value in result) or result[1] < 0:
            raise self.error(
                "expected to return two finite numbers, a sum and the sum of weights by which the total is divided, "
                f"got {result!r}"
            )
        return float(result[0]), float(result[1])

    @property
    def fingerprint(self) -> str:
        """The name, and a hash of the code and of the values that it uses: another driver must have the same."""
        digest = hashlib.sha256()
        function = getattr(self.function, "py_func", self.function)  # of numba
        for part in _parts(function, getattr(function, "__module__", None), set()):
            digest.update(part + b"\0")
        return f"{self.name} {digest.hexdigest()}"


def _description(value: Any) -> str:
    """Describe a value in a message."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}, shape {value.shape}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _parts(value: Any, module: str | None, seen: set[int]) -> Iterator[bytes]:
    """Yield what identifies a value, from functions of ``module`` their code; of other objects, only their names."""
    if isinstance(value, PLAIN):
        yield repr(value).encode()
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape}".encode() + value.tobytes()
    elif isinstance(value, (set, frozenset)):
        yield repr(sorted(map(repr, value))).encode()
    elif isinstance(value, (tuple, list, Mapping)):
        for item in value.items() if isinstance(value, Mapping) else value:
            yield from _parts(item, module, seen)
    elif isinstance(value, CodeType):
        yield value.co_code
        yield from _parts((value.co_consts, value.co_names), module, seen)
    elif isinstance(value, partial):
        yield from _parts((value.func, value.args, value.keywords), module, seen)
    elif isinstance(value, FunctionType) and value.__module__ == module:
        if id(value) not in seen:
            seen.add(id(value))
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            names = value.__globals__.keys() & set(value.__code__.co_names)
            used = {name: value.__globals__[name] for name in sorted(names)}
            yield from _parts((value.__code__, value.__defaults__, value.__kwdefaults__, cells, used), module, seen)
    elif type(value).__module__ == module and "__call__" in vars(type(value)):
        yield from _parts((vars(type(value))["__call__"], vars(value)), module, seen)
    else:
        yield str(getattr(value, "__qualname__", getattr(value, "__name__", type(value).__qualname__))).encode()


def check_functions(
    objective: RowFunction | None, metric: RowFunction | None, labels: Sequence[float], width: int
) -> None:
    """Call functions for rows of margin 0 with these labels; WorkerError: one fails, or its result is unusable."""
    if objective is not None:
        objective.check_gradients(labels, width)
    if metric is not None:
        metric.sums(np.zeros((len(labels), width)), np.array(labels, np.float64), np.empty(0))
