"""The table of server operations, and the decorator that fills it.

An operation is a plain function on the arrays of one shard. The annotation of a positional parameter declares which
array the server passes; keyword-only parameters are scalars. Servers use the table to execute operations, clients to
check arguments, ``ps2 ops`` to list operations, and a test to compare every operation with NumPy.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import numpy as np
import numpy.typing as npt
import xxhash

from ps2.errors import ConfigError, DTypeError, ShapeError
from ps2.matrix import partition
from ps2.matrix.partition import DTYPES
from ps2.ops.declaration import LOCAL, SHARD_KINDS, Reduce, check_annotations, check_declared
from ps2.ops.operands import Along, Answer, operand_axes, read_answers

Array = npt.NDArray[Any]

# Kinds of positional parameters. Rows and blocks of the shard belong to one matrix or to co-located matrices. They have
# the dtype of the first operand, unless they declare another one (``Of``). Row ids and values refer to the first
# operand.
Row = Annotated[Array, "row"]  # one row of the shard, shape (width,): a writable view
Block = Annotated[Array, "block"]  # all rows of the shard, shape (rows, width): a writable view
# All columns of a shard with layout "column", shape (width, k), with k rows in the matrix: a writable view.
Blocks = Annotated[Array, "blocks"]
# Columns of the shard; -1 stands for a sparse key that the shard does not have. An operation with slots writes Blocks
# and Rows only at these columns. With ``Op.span``, it writes so many consecutive columns of a Row from each slot on.
Slots = Annotated[npt.NDArray[np.int64], "slots"]
RowIds = Annotated[npt.NDArray[np.int64], "row_ids"]  # row numbers of the matrix
Values = Annotated[Array, "values"]  # sent with the request in the dtype of the matrix
Unsigned = Annotated[Array, "unsigned"]  # sent with the request: unsigned integers of 8 to 64 bits
Floats = Annotated[npt.NDArray[np.float64], "floats"]  # sent with the request
Integers = Annotated[npt.NDArray[np.int64], "integers"]  # sent with the request; any values
# The interval of the matrix's columns in the shard: column i of the shard is column ``begin + i`` of the matrix.
Partition = Annotated[partition.Partition, "partition"]

# The type of the keyword parameter ``columns`` of an operation with a ``Nonzero``.
Columns = npt.NDArray[np.int64] | None

KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
FLOATS = ("float32", "float64")
ALL = tuple(DTYPES)


@dataclass(frozen=True)
class Range:
    """The allowed range of a scalar: ``Annotated[float, Range(above=0)]``. NaN and infinities are never allowed."""

    at_least: float = -math.inf
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return math.isfinite(value) and value >= self.at_least and self.above < value < self.below

    def __str__(self) -> str:
        limits = ((">=", self.at_least), (">", self.above), ("<", self.below))
        return "a finite number " + " and ".join(f"{sign} {limit:g}" for sign, limit in limits if math.isfinite(limit))


@dataclass(frozen=True)
class Of:
    """The dtype of an operand that may differ from the first operand's dtype: ``Annotated[Row, Of("int32")]``."""

    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise DTypeError(f"Of: expected one of {', '.join(DTYPES)}, got {self.dtype!r}")


@dataclass(frozen=True)
class Tiny:
    """Makes the smallest valid array of a dtype, for an operand for which an array of a single 1 or 0 is invalid.

    ``ps2.ops.warm`` calls each operation with small arrays to compile its kernels.
    """

    make: Callable[[np.dtype[Any]], Array]


@dataclass(frozen=True)
class Param:
    """A scalar parameter of an operation. ``default`` is None if the parameter is required."""

    name: str
    type: type
    default: Any
    required: bool
    range: Range | None = None


@dataclass(frozen=True)
class Nonzero:
    """Declares that an operation needs only the nonzero columns of a row.

    If the server knows these columns, it passes them as ``columns``: int64, distinct, in any order. The row can be 0 at
    some of them, and is 0 at all others. The results are bit-identical to those without ``columns``.

    Attributes:
        row: the name of the operand. If the operation writes the row, it sets the whole row to 0.
        when: function that returns True if a call with these scalars can use ``columns``. Other calls never get them.
    """

    row: str
    when: Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Optimizer:
    """Marks an operation as an optimizer step. Its rows are weight, state (initially zeros) and gradient.

    It has the scalars ``l1`` and ``l2``, the strengths of penalties on the weight. It has the scalar ``step``, from 1,
    if it depends on the step number, and ``lazy`` if it can skip columns whose gradient is 0.

    Attributes:
        rate: the name of the scalar with the learning rate.
        catch_up: the name of an operation on weight and state that recomputes weights for larger penalties; None: there
            is none. An optimizer needs it if its weights are functions of sums over all steps (FTRL). The penalties of
            a step are then cumulative: the sum of the penalties of all steps until then.
        damping: an exponent for splitting a step. n steps with 1 / n of a gradient, with the rate divided by
            ``n ** damping``, change the weight about as much as one step with the gradient. It is 0 if a step is linear
            in the gradient (SGD), 0.5 if a step is divided by the root of a sum of squared gradients over all steps
            (Adagrad), and 1 if it is divided by the root of their mean (Adam).
    """

    rate: str = "lr"
    catch_up: str | None = None
    damping: float = 0.0

    def check(self, name: str, signature: inspect.Signature, writes: tuple[str, ...]) -> None:
        """Raise ConfigError unless the operation has the parameters of an optimizer step."""
        names, parameters = list(signature.parameters), signature.parameters.values()
        rows = [parameter.name for parameter in parameters if parameter.kind is not KEYWORD_ONLY]
        scalars = [parameter for parameter in parameters if parameter.kind is KEYWORD_ONLY]
        if rows[:1] != ["weight"] or rows[-1:] != ["gradient"] or not {self.rate, "l1", "l2"} <= set(names):
            raise ConfigError(
                f"operation {name!r}: an optimizer step takes weight, its state, gradient, and the scalars "
                f"{self.rate}, l1 and l2, got {', '.join(names)}"
            )
        if missing := ", ".join(row for row in rows[:-1] if row not in writes):
            raise ConfigError(
                f"operation {name!r}: writes: expected weight and its state, of which {missing} is missing"
            )
        passed = {self.rate, "l1", "l2", "step", "lazy"}
        if without_default := [item.name for item in scalars if item.default is item.empty and item.name not in passed]:
            raise ConfigError(
                f"operation {name!r}: {', '.join(without_default)}: expected a default, got none: estimators pass "
                f"{self.rate}, l1, l2, step and lazy only"
            )


@dataclass(frozen=True)
class Op:
    """An operation: one entry of the table.

    Attributes:
        name: the name in requests.
        module: the module that declares the operation.
        source: the hash of the module's source code when it was imported; "" for modules of ps2.
        fn: the function on one shard's arrays.
        operands: the kind of each positional parameter ("row", "block", "blocks", "partition", "slots", "row_ids",
            "values", "integers", "unsigned", "floats").
        names: the name of each positional parameter.
        axes: the axes of each positional parameter.
        own_dtypes: the dtype of each of the shard's operands that declares one (``Of``), by name.
        tiny: the function that makes the smallest valid array, for each operand that declares one (``Tiny``), by name.
        answers: the returned arrays; empty if the function returns a number or nothing.
        writes: the names of the shard's operands that the operation changes; empty for a pure read.
        reduce: the method that combines the answers of all partitions; None: there is no answer, or its arrays are
            joined along their axis of slots or columns.
        blocks: the axis along which a call can be divided into several requests; None: one request per partition.
        dtypes: the allowed dtypes of the first operand's matrix.
        params: the scalars, by name.
        creates: True if the server adds absent sparse keys before the call.
        nonzero: declares a row of which the operation needs only the nonzero columns; None: there is none.
        span: the name of the scalar with the number of columns that are written from each slot on; None: one column.
        optimizer: the properties of an optimizer step; None for any other operation.
        initial: True if the answer contains values of the matrix at the slots. Keys that the shard does not have (slot
            -1) then get their initial values. The answer's axes are slots (values of a vector), slots and positions
            (the first values of each key's block), or row ids and slots.
        doc: the docstring.
    """

    name: str
    module: str
    source: str
    fn: Callable[..., Any]
    operands: tuple[str, ...]
    names: tuple[str, ...]
    axes: tuple[Along, ...]
    own_dtypes: Mapping[str, str]
    tiny: Mapping[str, Callable[[np.dtype[Any]], Array]]
    answers: tuple[Answer, ...]
    writes: tuple[str, ...]
    reduce: Reduce | None
    blocks: str | None
    dtypes: tuple[str, ...]
    params: Mapping[str, Param]
    creates: bool
    nonzero: Nonzero | None
    span: str | None
    optimizer: Optimizer | None
    initial: bool
    doc: str

    @cached_property
    def rows(self) -> int:
        """Number of operands of kind "row"."""
        return sum(kind == "row" for kind in self.operands)

    @cached_property
    def arrays(self) -> tuple[str, ...]:
        """The kinds of the operands that are sent with the request, in order."""
        return tuple(kind for kind in self.operands if kind not in LOCAL)

    @cached_property
    def request_operands(self) -> tuple[tuple[str, str, Along], ...]:
        """(name, kind, axes) of each operand that is sent with the request, in order."""
        operands = zip(self.names, self.operands, self.axes, strict=True)
        return tuple(operand for operand in operands if operand[1] not in LOCAL)

    @cached_property
    def shard_operands(self) -> tuple[tuple[str, str], ...]:
        """(name, kind) of each of the shard's operands, in order."""
        operands = zip(self.names, self.operands, strict=True)
        return tuple(operand for operand in operands if operand[1] in SHARD_KINDS)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.shard_operands)

    @cached_property
    def row_names(self) -> tuple[str, ...]:
        return tuple(name for name, kind in self.shard_operands if kind == "row")

    def check(
        self, rows: int, dtype: str, params: Mapping[str, Any], others: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Check a call against the table.

        Args:
            rows: the number of rows of the call.
            dtype: the dtype of the first operand's matrix.
            params: the call's scalars.
            others: the dtypes of the shard's operands after the first one; None: all operands belong to one matrix.

        Returns:
            The values of all scalars, converted to the declared type (bool, int or float), with defaults.

        Raises:
            ShapeError: the number of rows or operands is wrong.
            DTypeError: the operation does not accept a dtype, or a scalar is not of the right type.
            ConfigError: a scalar is unknown, missing or out of range.
        """
        if rows != self.rows:
            expected = ", ".join(self.reads)
            raise ShapeError(f"operation {self.name!r} takes {self.rows} vectors ({expected}), got {rows}")
        if dtype not in self.dtypes:
            raise DTypeError(f"operation {self.name!r} works on {' or '.join(self.dtypes)}, got {dtype}")
        if others is not None or self.own_dtypes:
            self._check_dtypes(dtype, [dtype] * (len(self.reads) - 1) if others is None else others)
        for name in params:
            if name not in self.params:
                known = ", ".join(self.params) or "none"
                raise ConfigError(f"operation {self.name!r} has no parameter {name!r}; it has: {known}")
        return {param.name: self._scalar(param, params, dtype) for param in self.params.values()}

    def _check_dtypes(self, first: str, others: Sequence[str]) -> None:
        if len(others) != len(self.reads) - 1:
            operands = ", ".join(self.reads)
            raise ShapeError(f"operation {self.name!r} takes {operands}, got {len(others) + 1} vectors or matrices")
        for name, dtype in zip(self.reads, (first, *others), strict=True):
            expected = self.own_dtypes.get(name, first)
            if dtype != expected:
                reason = "" if name in self.own_dtypes else f", as {self.reads[0]} is"
                raise DTypeError(f"operation {self.name!r}: {name}: expected {expected}{reason}, got {dtype}")

    def _scalar(self, param: Param, params: Mapping[str, Any], dtype: str) -> bool | int | float:
        subject = f"operation {self.name!r}, parameter {param.name!r}"
        if param.name not in params:
            if param.required:
                raise ConfigError(f"{subject}: required, but not given")
            return param.default
        if param.type is bool:
            return self._flag(subject, params[param.name])
        value = self._number(subject, param, params[param.name], dtype)
        if param.range is not None and value not in param.range:
            raise ConfigError(f"{subject}: expected {param.range}, got {value!r}")
        # Kernels round scalars to the vectors' dtype. In float32, 1e39 would become infinite, and 1e-50 would become 0.
        rounded = c_float(value).value if param.type is float and dtype == "float32" else value
        if param.range is not None and rounded not in param.range:
            raise ConfigError(f"{subject}: expected {param.range} in float32, got {value!r}")
        if math.isinf(rounded) and math.isfinite(value):
            raise DTypeError(f"{subject}: expected a number that fits float32, got {value!r}")
        return value

    @staticmethod
    def _flag(subject: str, value: Any) -> bool:
        # The wire format has no type for bool: 0 and 1 are accepted.
        if isinstance(value, (bool, np.bool_, int, float, np.integer, np.floating)) and value in (0, 1):
            return bool(value)
        raise ConfigError(f"{subject}: expected True or False, got {value!r}")

    @staticmethod
    def _number(subject: str, param: Param, value: Any, dtype: str) -> int | float:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise ConfigError(f"{subject}: expected a number, got {value!r}")
        if param.type is not int and dtype in FLOATS:
            try:
                number = float(value)
            except OverflowError:
                bits = int(value).bit_length()
                raise DTypeError(f"{subject}: expected a number that fits {dtype}, got one of {bits} bits") from None
            if math.isinf(number) and np.isfinite(value):  # a large np.longdouble
                raise DTypeError(f"{subject}: expected a number that fits float64, got {value!r}")
            return number
        if isinstance(value, (float, np.floating)) and (not math.isfinite(value) or value != math.floor(value)):
            raise DTypeError(f"{subject}: expected a whole number, got {value!r}")
        integer_dtype = "int64" if param.type is int else dtype
        low, high = LIMITS[integer_dtype]
        if not low <= int(value) <= high:
            raise DTypeError(f"{subject}: expected an {integer_dtype}, got {value!r}")
        return int(value)


LIMITS = {name: (int(np.iinfo(name).min), int(np.iinfo(name).max)) for name in ("int32", "int64")}
TABLE: dict[str, Op] = {}
# The package of the families. A family's module ``ops`` declares its operations, with names such as "trees.split".
FAMILIES_FOLDER = "algorithms"


def op(
    *,
    writes: tuple[str, ...] = (),
    reduce: Reduce | None = None,
    blocks: str | None = None,
    dtypes: tuple[str, ...] = ALL,
    creates: bool = False,
    nonzero: Nonzero | None = None,
    span: str | None = None,
    optimizer: Optimizer | None = None,
    initial: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function on one shard's arrays as a server operation with its name; ``Op`` describes the arguments."""

    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        name = _operation_name(fn)
        if optimizer is not None:
            optimizer.check(name, inspect.signature(fn), writes)
        hints = get_type_hints(fn, include_extras=True)
        signature = inspect.signature(fn).parameters.values()
        arrays = [parameter for parameter in signature if parameter.kind is not KEYWORD_ONLY]
        scalars = [scalar for scalar in signature if scalar.kind is KEYWORD_ONLY and scalar.name != "columns"]
        check_annotations(name, arrays, scalars, hints)
        annotations = {array.name: get_args(hints[array.name])[1:] for array in arrays}
        shard_operands = [array.name for array in arrays if annotations[array.name][0] in SHARD_KINDS]
        check_declared(name, shard_operands, writes, reduce, hints)
        TABLE[name] = Op(
            name=name,
            module=fn.__module__,
            source="" if is_builtin(fn.__module__) else _source_hash(fn.__module__),
            fn=fn,
            operands=tuple(annotations[array.name][0] for array in arrays),
            names=tuple(array.name for array in arrays),
            axes=tuple(operand_axes(array.name, annotations[array.name]) for array in arrays),
            own_dtypes=_own_dtypes(name, annotations),
            tiny={operand: tiny.make for operand, tiny in _annotated(annotations, Tiny).items()},
            answers=read_answers(hints.get("return")),
            writes=writes,
            reduce=reduce,
            blocks=blocks,
            dtypes=dtypes,
            params={scalar.name: _param(scalar, hints[scalar.name]) for scalar in scalars},
            creates=creates,
            nonzero=nonzero,
            span=span,
            optimizer=optimizer,
            initial=initial,
            doc=inspect.getdoc(fn) or "",
        )
        return fn

    return declare


@cache
def families() -> Mapping[str, str]:
    """Return the name of each family's module ``ops``, by the prefix of its operations ("trees" for "trees.split")."""
    folder = Path(__file__).parents[1]
    files = sorted((folder / FAMILIES_FOLDER).glob("**/ops.py"))
    return {path.parent.name: ".".join(("ps2", *path.relative_to(folder).with_suffix("").parts)) for path in files}


def _operation_name(fn: Callable[..., Any]) -> str:
    """Return an operation's name, with the family as prefix if a family of ps2 declares it."""
    parts = fn.__module__.split(".")
    is_family = parts[:2] == ["ps2", FAMILIES_FOLDER] and parts[-1] == "ops"
    name = f"{parts[-2]}.{fn.__name__}" if is_family else fn.__name__
    if name in TABLE and TABLE[name].module != fn.__module__:
        raise ConfigError(
            f"operation {name!r} is declared by modules {TABLE[name].module!r} and {fn.__module__!r}: rename one of "
            "them"
        )
    return name


def _annotated(by_operand: Mapping[str, Sequence[Any]], kind: type) -> dict[str, Any]:
    """Return the annotation of class ``kind`` of each operand that has one, by the operand's name."""
    return {operand: item for operand, items in by_operand.items() for item in items if isinstance(item, kind)}


def _own_dtypes(name: str, annotations: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    dtypes = {operand: annotation.dtype for operand, annotation in _annotated(annotations, Of).items()}
    for operand in dtypes:
        if annotations[operand][0] not in SHARD_KINDS:
            raise ConfigError(f"operation {name!r}: {operand}: Of is for vectors and matrices of the shard only")
    return dtypes


def _source_hash(module: str) -> str:
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):  # the module has no file, such as the cells of a notebook
        return ""
    return xxhash.xxh3_128_hexdigest(source.encode())


def _param(parameter: inspect.Parameter, hint: Any) -> Param:
    scalar_type, *ranges = get_args(hint) or (hint,)
    required = parameter.default is parameter.empty
    return Param(parameter.name, scalar_type, None if required else parameter.default, required, *ranges)


def is_builtin(module: str) -> bool:
    """Return True if ``module`` belongs to ps2."""
    return module.startswith("ps2.")
