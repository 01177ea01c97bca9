"""The table of server operations, and the decorator that fills it.

An operation is a plain function on the arrays of one shard. The annotation of a positional parameter declares what the
server passes; keyword-only parameters are scalars. From this table follow dispatch on the server, checks on the
caller's side, ``ps2 ops``, and the test that every operation agrees with a NumPy oracle.
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

# Kinds of positional parameters. Operands of the shard belong to one matrix or to co-located matrices. They have the
# dtype of the first operand, unless they declare another (``Of``). Row ids and values refer to the first operand.
Row = Annotated[Array, "row"]  # one row of the shard, shape (width,): a writable view
Block = Annotated[Array, "block"]  # all rows of the shard, shape (rows, width): a writable view
# All columns of a shard with layout "column", shape (width, k): the block of a column has its values in the k rows. It
# is a writable view.
Blocks = Annotated[Array, "blocks"]
# Columns of the shard; -1 is a sparse key that the shard does not have. An operation with slots writes Blocks and Rows
# at these columns only; with ``Op.span``, it writes that many columns of a Row from each slot on.
Slots = Annotated[npt.NDArray[np.int64], "slots"]
RowIds = Annotated[npt.NDArray[np.int64], "row_ids"]  # row numbers of the matrix
Values = Annotated[Array, "values"]  # numbers of the matrix's dtype, sent with the request
Unsigned = Annotated[Array, "unsigned"]  # unsigned integers of any width, sent with the request
Floats = Annotated[npt.NDArray[np.float64], "floats"]  # float64 numbers, sent with the request
Integers = Annotated[npt.NDArray[np.int64], "integers"]  # any int64 numbers, sent with the request
# The shard's interval of columns: column i of the shard is column ``begin + i`` of the matrix.
Partition = Annotated[partition.Partition, "partition"]

# The type of the keyword parameter ``columns`` of an operation with a ``Nonzero``.
Columns = npt.NDArray[np.int64] | None

FLOATS = ("float32", "float64")
ALL = tuple(DTYPES)


@dataclass(frozen=True)
class Range:
    """The range of a scalar: ``Annotated[float, Range(above=0)]``. No range contains NaN or infinities."""

    at_least: float = -math.inf
    above: float = -math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return math.isfinite(value) and value >= self.at_least and self.above < value < self.below

    def __str__(self) -> str:
        ends = ((">=", self.at_least), (">", self.above), ("<", self.below))
        return "a finite number " + " and ".join(f"{sign} {end:g}" for sign, end in ends if math.isfinite(end))


@dataclass(frozen=True)
class Of:
    """The dtype of one vector or matrix, independent of the other operands: ``Annotated[Row, Of("int32")]``."""

    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise DTypeError(f"Of: expected one of {', '.join(DTYPES)}, got {self.dtype!r}")


@dataclass(frozen=True)
class Tiny:
    """Makes the smallest valid array of a dtype, for an operand for which a single 1 (or index 0) is invalid.

    ``ps2.ops.warm`` calls operations with such arrays to compile their kernels.
    """

    make: Callable[[np.dtype[Any]], Array]


@dataclass(frozen=True)
class Param:
    """A keyword-only scalar of an operation."""

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
        row: the name of the operand. If the operation writes the row, it sets all of it to 0.
        when: returns True for the scalars of calls that can use ``columns``; other calls never get them.
    """

    row: str
    when: Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Optimizer:
    """Marks an operation as an optimizer step. Its rows are weight, state (initially zeros) and gradient.

    It has the scalars ``l1`` and ``l2``, for penalties on the weight. It has ``step``, from 1, if it depends on the
    step number; and ``lazy``, if it can skip columns whose gradient is 0.

    Attributes:
        rate: the name of the learning rate's scalar.
        catch_up: for an optimizer whose weights follow from sums over all steps (FTRL): the operation on weight and
            state that recomputes weights for larger penalties. The penalties of a step are then those of all steps so
            far.
        damping: the exponent with which n steps with 1 / n of a gradient, and the rate divided by ``n ** damping``, go
            about as far as one step with the gradient: 0 if a step is linear in the gradient (SGD), 0.5 if it is
            divided by the root of a sum of squares over all steps (Adagrad), 1 if by the root of their mean (Adam).
    """

    rate: str = "lr"
    catch_up: str | None = None
    damping: float = 0.0

    def check(self, name: str, signature: inspect.Signature, writes: tuple[str, ...]) -> None:
        """Raise ConfigError unless the operation has the parameters of an optimizer step."""
        names, parameters = list(signature.parameters), signature.parameters.values()
        rows = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        if rows[:1] != ["weight"] or rows[-1:] != ["gradient"] or not {self.rate, "l1", "l2"} <= set(names):
            raise ConfigError(
                f"operation {name!r}: an optimizer step takes weight, its state, gradient, and the scalars "
                f"{self.rate}, l1 and l2, got {', '.join(names)}"
            )
        if unwritten := [row for row in rows[:-1] if row not in writes]:
            raise ConfigError(
                f"operation {name!r}: writes: expected weight and its state, of which {', '.join(unwritten)} is missing"
            )
        known = {self.rate, "l1", "l2", "step", "lazy"}
        if unknown := [
            p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty and p.name not in known
        ]:
            raise ConfigError(
                f"operation {name!r}: {', '.join(unknown)}: expected a default, got none: estimators pass "
                f"{self.rate}, l1, l2, step and lazy only"
            )


@dataclass(frozen=True)
class Op:
    """An operation: one entry of the table.

    Attributes:
        name: the name in requests.
        module: the module that declares the operation.
        source: the hash of the module's source at declaration; empty for modules of ps2.
        fn: the function on one shard's arrays.
        operands: the kind of each positional parameter ("row", "block", "blocks", "partition", "slots", "row_ids",
            "values", "integers", "unsigned", "floats").
        names: the name of each positional parameter.
        axes: the axes of each positional parameter.
        own_dtypes: the declared dtypes (``Of``) of the shard's operands, by name.
        tiny: functions that make the smallest valid array, by name, for operands that declare one.
        answers: the returned arrays; empty if the function returns a number or nothing.
        writes: the names of the shard's operands that are changed; empty for a pure read.
        reduce: how the answers of all partitions are combined. None if there is no answer, or if its arrays have an
            axis of slots or columns, along which they are joined.
        blocks: the axis along which a call can be divided into several requests; None: one request per partition.
        dtypes: the dtypes that the first operand's matrix may have.
        params: the scalars.
        creates: whether absent sparse keys are added before the call.
        nonzero: the row of which only the nonzero columns are needed; None: there is none.
        span: the name of the scalar that gives the number of columns written from each slot on; None: one column.
        optimizer: the properties of an optimizer step; None for any other operation.
        initial: whether the answer has values of the matrix at the slots, so that absent keys (slot -1) read as their
            initial values. The answer's axes are the slots (a vector's values), the slots and the first positions of
            their blocks, or row ids and the slots.
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
        return sum(kind == "row" for kind in self.operands)

    @cached_property
    def arrays(self) -> tuple[str, ...]:
        """Kinds of the operands that are sent with the request, in order."""
        return tuple(kind for kind in self.operands if kind not in LOCAL)

    @cached_property
    def request_operands(self) -> tuple[tuple[str, str, Along], ...]:
        """Name, kind and axes of the operands that are sent with the request, in order."""
        operands = zip(self.names, self.operands, self.axes, strict=True)
        return tuple(operand for operand in operands if operand[1] not in LOCAL)

    @cached_property
    def shard_operands(self) -> tuple[tuple[str, str], ...]:
        """Name and kind of the shard's operands, in order."""
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
            others: the dtypes of the operands after the first; None: all operands belong to one matrix.

        Returns:
            All scalars with defaults filled in, each as the bool, int or float that the operation declares.

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
        return {p.name: self._scalar(p, params, dtype) for p in self.params.values()}

    def _check_dtypes(self, first: str, others: Sequence[str]) -> None:
        if len(others) != len(self.reads) - 1:
            operands = ", ".join(self.reads)
            raise ShapeError(f"operation {self.name!r} takes {operands}, got {len(others) + 1} vectors or matrices")
        for name, dtype in zip(self.reads, (first, *others), strict=True):
            expected = self.own_dtypes.get(name, first)
            if dtype != expected:
                why = "" if name in self.own_dtypes else f", as {self.reads[0]} is"
                raise DTypeError(f"operation {self.name!r}: {name}: expected {expected}{why}, got {dtype}")

    def _scalar(self, param: Param, params: Mapping[str, Any], dtype: str) -> bool | int | float:
        where = f"operation {self.name!r}, parameter {param.name!r}"
        if param.name not in params:
            if param.required:
                raise ConfigError(f"{where}: required, but not given")
            return param.default
        if param.type is bool:
            return self._flag(where, params[param.name])
        value = self._number(where, param, params[param.name], dtype)
        if param.range is not None and value not in param.range:
            raise ConfigError(f"{where}: expected {param.range}, got {value!r}")
        # Kernels round scalars to the vectors' dtype: 1e39 would become infinite, and 1e-50 would become 0.
        rounded = c_float(value).value if param.type is float and dtype == "float32" else value
        if param.range is not None and rounded not in param.range:
            raise ConfigError(f"{where}: expected {param.range} in float32, got {value!r}")
        if math.isinf(rounded) and math.isfinite(value):
            raise DTypeError(f"{where}: expected a number that fits float32, got {value!r}")
        return value

    @staticmethod
    def _flag(where: str, value: Any) -> bool:
        # Flags are sent as numbers.
        if isinstance(value, (bool, np.bool_, int, float, np.integer, np.floating)) and value in (0, 1):
            return bool(value)
        raise ConfigError(f"{where}: expected True or False, got {value!r}")

    @staticmethod
    def _number(where: str, param: Param, value: Any, dtype: str) -> int | float:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise ConfigError(f"{where}: expected a number, got {value!r}")
        if param.type is not int and dtype in FLOATS:
            try:
                number = float(value)
            except OverflowError:
                bits = int(value).bit_length()
                raise DTypeError(f"{where}: expected a number that fits {dtype}, got one of {bits} bits") from None
            if math.isinf(number) and np.isfinite(value):  # a longdouble
                raise DTypeError(f"{where}: expected a number that fits float64, got {value!r}")
            return number
        if isinstance(value, (float, np.floating)) and (not math.isfinite(value) or value != math.floor(value)):
            raise DTypeError(f"{where}: expected a whole number, got {value!r}")
        integer_dtype = "int64" if param.type is int else dtype
        low, high = LIMITS[integer_dtype]
        if not low <= int(value) <= high:
            raise DTypeError(f"{where}: expected an {integer_dtype}, got {value!r}")
        return int(value)


LIMITS = {name: (int(np.iinfo(name).min), int(np.iinfo(name).max)) for name in ("int32", "int64")}
TABLE: dict[str, Op] = {}
# The folder of the families. A family's module ``ops`` declares its operations, whose names begin with the family's.
FAMILIES_IN = "algorithms"


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
    """Declare a function on one shard's arrays as a server operation named after it."""

    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        name = _named(fn)
        if optimizer is not None:
            optimizer.check(name, inspect.signature(fn), writes)
        hints = get_type_hints(fn, include_extras=True)
        signature = inspect.signature(fn).parameters.values()
        arrays = [p for p in signature if p.kind is not p.KEYWORD_ONLY]
        scalars = [p for p in signature if p.kind is p.KEYWORD_ONLY and p.name != "columns"]
        check_annotations(name, arrays, scalars, hints)
        notes = {p.name: get_args(hints[p.name])[1:] for p in arrays}
        check_declared(name, [p.name for p in arrays if notes[p.name][0] in SHARD_KINDS], writes, reduce, hints)
        TABLE[name] = Op(
            name=name,
            module=fn.__module__,
            source="" if is_own(fn.__module__) else _source(fn.__module__),
            fn=fn,
            operands=tuple(notes[p.name][0] for p in arrays),
            names=tuple(p.name for p in arrays),
            axes=tuple(operand_axes(p.name, notes[p.name]) for p in arrays),
            own_dtypes=_own_dtypes(name, notes),
            tiny={
                name: note.make for name, annotations in notes.items() for note in annotations if isinstance(note, Tiny)
            },
            answers=read_answers(hints.get("return")),
            writes=writes,
            reduce=reduce,
            blocks=blocks,
            dtypes=dtypes,
            params={p.name: _param(p, hints[p.name]) for p in scalars},
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
    """Return the module ``ops`` of each family of ps2, by the prefix of its operations ("trees" for "trees.split")."""
    folder = Path(__file__).parents[1]
    files = sorted((folder / FAMILIES_IN).glob("**/ops.py"))
    return {path.parent.name: ".".join(("ps2", *path.relative_to(folder).with_suffix("").parts)) for path in files}


def _named(fn: Callable[..., Any]) -> str:
    """Return an operation's name, prefixed by its family's name if a family of ps2 declares it."""
    parts = fn.__module__.split(".")
    is_family = parts[:2] == ["ps2", FAMILIES_IN] and parts[-1] == "ops"
    name = f"{parts[-2]}.{fn.__name__}" if is_family else fn.__name__
    if name in TABLE and TABLE[name].module != fn.__module__:
        raise ConfigError(
            f"operation {name!r} is declared by modules {TABLE[name].module!r} and {fn.__module__!r}: rename one of "
            "them"
        )
    return name


def _own_dtypes(name: str, notes: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    dtypes = {
        operand: note.dtype for operand, annotations in notes.items() for note in annotations if isinstance(note, Of)
    }
    for operand in dtypes:
        if notes[operand][0] not in SHARD_KINDS:
            raise ConfigError(f"operation {name!r}: {operand}: Of is for vectors and matrices of the shard only")
    return dtypes


def _source(module: str) -> str:
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):  # the module has no file: a notebook's cells, for example
        return ""
    return xxhash.xxh3_128_hexdigest(source.encode())


def _param(parameter: inspect.Parameter, hint: Any) -> Param:
    kind, *notes = get_args(hint) or (hint,)
    required = parameter.default is parameter.empty
    return Param(parameter.name, kind, None if required else parameter.default, required, *notes)


def is_own(module: str) -> bool:
    """Return True if ``module`` belongs to ps2."""
    return module.startswith("ps2.")
