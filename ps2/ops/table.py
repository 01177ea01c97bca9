"""The one table of server operations, and the decorator that fills it.

An operation is a plain function on the arrays of one shard. Its positional parameters say by their annotation what they
are given; its keyword-only parameters are scalars. From this table come dispatch on the server, the checks on the
caller's side, ``ps2 ops``, and the test that every operation agrees with a NumPy oracle.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import numpy as np
import numpy.typing as npt
import xxhash

from ps2.errors import ConfigError, DTypeError, ShapeError
from ps2.matrix import partition
from ps2.matrix.partition import DTYPES
from ps2.ops.operands import Along, Answer, answers_of, axes_of

Array = npt.NDArray[Any]

# What a positional parameter is given. Those of the shard are of one matrix, or of several that are co-located: the
# dtype of all is that of the first, unless one says its own (``Of``), and row numbers and values are of the first.
Row = Annotated[Array, "row"]  # one row of the shard, shape (width,): a writable view
Block = Annotated[Array, "block"]  # all rows of the shard, shape (rows, width): a writable view
# All columns of a shard with layout "column", shape (width, k): the block of a column is its values in the k rows. A
# writable view.
Blocks = Annotated[Array, "blocks"]
# Local columns; -1 is a sparse key that the shard does not hold. With them, a Row is written at these columns only, or
# at as many from each of them on as ``Op.span`` says; and Blocks only at these columns.
Slots = Annotated[npt.NDArray[np.int64], "slots"]
RowIds = Annotated[npt.NDArray[np.int64], "row_ids"]  # row numbers of the matrix
Values = Annotated[Array, "values"]  # numbers of the matrix's dtype that travelled with the request
Unsigned = Annotated[Array, "unsigned"]  # unsigned integers that travelled with the request, as narrow as they came
Floats = Annotated[npt.NDArray[np.float64], "floats"]  # float64 numbers that travelled with the request
Integers = Annotated[npt.NDArray[np.int64], "integers"]  # any int64 numbers that travelled with the request
# The columns that the shard holds: what a column's number in the matrix is, is its number here plus ``begin``.
Partition = Annotated[partition.Partition, "partition"]
OF_SHARD = ("row", "block", "blocks")
# Kinds that do not travel with the request.
LOCAL = (*OF_SHARD, "partition")

# What the keyword parameter ``columns`` of an operation with a ``Nonzero`` is given.
Columns = npt.NDArray[np.int64] | None

# How the parts' answers become one. "best": that whose first column (or first array, if there are several) is largest,
# row by row; of equals the first. "concat": one after the other. "list": a list of them, by partition.
Reduce = Literal["sum", "max", "min", "best", "concat", "list"]
FLOATS = ("float32", "float64")
ALL = tuple(DTYPES)


@dataclass(frozen=True)
class Range:
    """Where a scalar must lie: ``Annotated[float, Range(above=0)]``. NaN and infinities lie in no range."""

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
    """The dtype of a vector or matrix, whatever the others have: ``Annotated[Row, Of("int32")]``."""

    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise DTypeError(f"Of: expected one of {', '.join(DTYPES)}, got {self.dtype!r}")


@dataclass(frozen=True)
class Tiny:
    """Makes, of a dtype, the smallest array that an operand may be, where a single 1 (of indices: 0) is none.

    With it an operation is called to have its kernels compiled (``ps2.ops.warm``).
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
    """A row of which an operation needs to see only the columns that are not 0.

    If the server knows where they are, it passes them as ``columns``: int64, each once, in any order; some may be
    zeros, but the row is 0 at all others. The results, to the bit, are those without them.

    Attributes:
        row: name of the operand. If the operation writes it, it leaves zeros.
        when: tells from the scalars whether a call is one of these; others are never passed columns.
    """

    row: str
    when: Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Optimizer:
    """That an operation is a step of an optimiser: its rows are weight, state (zeros at the beginning) and gradient.

    It has the scalars ``l1`` and ``l2``, of penalties on the weight; ``step``, from 1, if it depends on that; and
    ``lazy``, if it can leave columns alone whose gradient is 0.

    Attributes:
        rate: the scalar that is the learning rate.
        catch_up: if weights follow from sums over all steps (FTRL): an operation on weight and state, that has weights
            follow from larger penalties. Those of a step are then of all steps so far.
    """

    rate: str = "lr"
    catch_up: str | None = None

    def check(self, name: str, signature: inspect.Signature) -> None:
        """Raise ConfigError unless an operation takes what the step of an optimiser is given."""
        given = list(signature.parameters)
        rows = [p.name for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
        if rows[:1] != ["weight"] or rows[-1:] != ["gradient"] or not {self.rate, "l1", "l2"} <= set(given):
            raise ConfigError(
                f"operation {name!r}: the step of an optimiser takes weight, its state, gradient, and the scalars "
                f"{self.rate}, l1 and l2, got {', '.join(given)}"
            )


@dataclass(frozen=True)
class Op:
    """One line of the table.

    Attributes:
        name: what a request calls it.
        module: that declares it.
        source: a hash of that module's, if it is not ours, as it was then.
        fn: the function on one shard's arrays.
        operands: kind of each positional parameter ("row", "block", "blocks", "partition", "slots", "row_ids",
            "values", "integers", "unsigned", "floats").
        names: name of each positional parameter.
        axes: what each positional parameter runs along.
        own_dtypes: of the operands of the shard that need not have the dtype of the first, by name.
        tiny: makes the smallest array of an operand, by name, where it says so itself.
        answers: the arrays that it returns; none if it returns a number, or nothing.
        writes: names of the operands of the shard that it changes; empty for a pure read.
        reduce: how the answers of all partitions become one; None if there is none, or arrays along slots or columns,
            which are laid side by side.
        blocks: the axis along which a call may be cut into several; None: its arrays travel in one piece a partition.
        dtypes: those that it accepts of its first operand's matrix.
        params: its scalars.
        creates: absent sparse keys are added before it runs (a read leaves them absent).
        nonzero: the row of which it can do with the columns that are not 0; None if there is none.
        span: the scalar that says how many columns, from each slot on, it writes; None if it writes at slots only.
        optimizer: what is to be known of a step of an optimiser; None: it is none.
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
    doc: str

    @cached_property
    def rows(self) -> int:
        return sum(kind == "row" for kind in self.operands)

    @cached_property
    def arrays(self) -> tuple[str, ...]:
        """Kinds of the operands that travel with the request, in order."""
        return tuple(kind for kind in self.operands if kind not in LOCAL)

    @cached_property
    def given(self) -> tuple[tuple[str, str, Along], ...]:
        """Name, kind and axes of the operands that travel with the request, in order."""
        every = zip(self.names, self.operands, self.axes, strict=True)
        return tuple(operand for operand in every if operand[1] not in LOCAL)

    @cached_property
    def of_shard(self) -> tuple[tuple[str, str], ...]:
        """Name and kind of the operands of the shard, in order."""
        every = zip(self.names, self.operands, strict=True)
        return tuple(operand for operand in every if operand[1] in OF_SHARD)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.of_shard)

    @cached_property
    def row_names(self) -> tuple[str, ...]:
        return tuple(name for name, kind in self.of_shard if kind == "row")

    def check(
        self, rows: int, dtype: str, params: Mapping[str, Any], others: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Check a call against the table.

        Args:
            rows: how many rows the call names.
            dtype: of the first operand's matrix.
            params: the call's scalars.
            others: dtypes of the operands after the first; None: all are of one matrix.

        Returns:
            All scalars, defaults filled in, each as the bool, int or float that the operation declares.

        Raises:
            ShapeError, DTypeError, ConfigError: naming what was expected and what came.
        """
        if rows != self.rows:
            wanted = ", ".join(self.reads)
            raise ShapeError(f"operation {self.name!r} takes {self.rows} vectors ({wanted}), got {rows}")
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
            wanted = ", ".join(self.reads)
            raise ShapeError(f"operation {self.name!r} takes {wanted}, got {len(others) + 1} vectors or matrices")
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
        return value

    @staticmethod
    def _flag(where: str, value: Any) -> bool:
        # It travels as a number.
        if isinstance(value, (bool, np.bool_, int, float, np.integer, np.floating)) and value in (0, 1):
            return bool(value)
        raise ConfigError(f"{where}: expected True or False, got {value!r}")

    @staticmethod
    def _number(where: str, param: Param, value: Any, dtype: str) -> int | float:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise ConfigError(f"{where}: expected a number, got {value!r}")
        if param.type is not int and dtype in FLOATS:
            return float(value)
        if isinstance(value, (float, np.floating)) and (not math.isfinite(value) or value != math.floor(value)):
            raise DTypeError(f"{where}: expected a whole number, got {value!r}")
        wanted = "int64" if param.type is int else dtype
        least, most = LIMITS[wanted]
        if not least <= int(value) <= most:
            raise DTypeError(f"{where}: expected an {wanted}, got {value!r}")
        return int(value)


LIMITS = {name: (int(np.iinfo(name).min), int(np.iinfo(name).max)) for name in ("int32", "int64")}
TABLE: dict[str, Op] = {}
# Below which a family's operations are the module ``ops`` of a package: that is the first part of their names.
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
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a function on one shard's arrays as a server operation named after it."""

    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        name = _named(fn)
        if optimizer is not None:
            optimizer.check(name, inspect.signature(fn))
        hints = get_type_hints(fn, include_extras=True)
        signature = inspect.signature(fn).parameters.values()
        arrays = [p for p in signature if p.kind is not p.KEYWORD_ONLY]
        scalars = [p for p in signature if p.kind is p.KEYWORD_ONLY and p.name != "columns"]
        notes = {p.name: get_args(hints[p.name])[1:] for p in arrays}
        TABLE[name] = Op(
            name=name,
            module=fn.__module__,
            source="" if is_own(fn.__module__) else _source(fn.__module__),
            fn=fn,
            operands=tuple(notes[p.name][0] for p in arrays),
            names=tuple(p.name for p in arrays),
            axes=tuple(axes_of(p.name, notes[p.name]) for p in arrays),
            own_dtypes=_own_dtypes(name, notes),
            tiny={name: note.make for name, said in notes.items() for note in said if isinstance(note, Tiny)},
            answers=answers_of(hints.get("return")),
            writes=writes,
            reduce=reduce,
            blocks=blocks,
            dtypes=dtypes,
            params={p.name: _param(p, hints[p.name]) for p in scalars},
            creates=creates,
            nonzero=nonzero,
            span=span,
            optimizer=optimizer,
            doc=inspect.getdoc(fn) or "",
        )
        return fn

    return declare


@cache
def families() -> Mapping[str, str]:
    """Return our families' modules, by the first part of their operations' names ("trees.split")."""
    folder = Path(__file__).parents[1]
    found = sorted((folder / FAMILIES_IN).glob("**/ops.py"))
    return {path.parent.name: ".".join(("ps2", *path.relative_to(folder).with_suffix("").parts)) for path in found}


def _named(fn: Callable[..., Any]) -> str:
    """Return the name of an operation: with that of its family, if it is one of ours."""
    parts = fn.__module__.split(".")
    is_family = parts[:2] == ["ps2", FAMILIES_IN] and parts[-1] == "ops"
    name = f"{parts[-2]}.{fn.__name__}" if is_family else fn.__name__
    if name in TABLE and TABLE[name].module != fn.__module__:
        raise ConfigError(
            f"operation {name!r} is declared by module {TABLE[name].module!r} and by {fn.__module__!r}: give one of "
            "them another name"
        )
    return name


def _own_dtypes(name: str, notes: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    found = {operand: note.dtype for operand, said in notes.items() for note in said if isinstance(note, Of)}
    for operand in found:
        if notes[operand][0] not in OF_SHARD:
            raise ConfigError(f"operation {name!r}: {operand}: only vectors and matrices of the shard have an Of")
    return found


def _source(module: str) -> str:
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError):  # it was made in memory, as a notebook's cells are
        return ""
    return xxhash.xxh3_128_hexdigest(source.encode())


def _param(parameter: inspect.Parameter, hint: Any) -> Param:
    kind, *notes = get_args(hint) or (hint,)
    required = parameter.default is parameter.empty
    return Param(parameter.name, kind, None if required else parameter.default, required, *notes)


def is_own(module: str) -> bool:
    """Tell whether operations of that module come with this package."""
    return module.startswith("ps2.")
