"""Dimension Co-located Vectors (paper, section 4)."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from ps2.client import plans
from ps2.client.batch import hold, in_batch, submit, submit_all, submit_later
from ps2.client.fleet import FleetRef
from ps2.client.session import Session
from ps2.client.sessions import current_session, session_of
from ps2.client.task import note_unpickled, note_used
from ps2.errors import ConfigError, DTypeError, NotFoundError, ShapeError, UsageError
from ps2.partition import MatrixSpec, Wire
from ps2.route import Route

if TYPE_CHECKING:
    from ps2.client.matrix import DCVMatrix
    from ps2.client.zipped import ZippedDCV

Scalar = int | float
DEFAULT_ROWS = 4
MAX_NAME = 255


class DCV:
    """A handle to one row of a matrix on the fleet; made by ``DCV.dense``, ``DCV.sparse`` and ``derive``.

    It works in the driver and, pickled in a closure, in every task. It holds ids and the route, never a channel.
    Methods that change the vector return it, so that calls chain. Inside ``ps.batch()`` the methods that read return a
    ``Deferred`` instead of the answer.

    A row is freed by ``free()``, or when its handle is garbage-collected, was never pickled and has no name. Vectors of
    one matrix are co-located: column operations between them move no data. Others are realigned through this process
    first, with a ``NotColocatedWarning``.

    On a sparse vector an absent key is 0; ``fill``, ``mul``, ``div``, the arithmetic with a number, and
    ``mapPartitions`` act on the active keys only: those that any row of the matrix has been pushed or added to.
    """

    # numpy must leave `array * dcv` to us instead of trying it element by element.
    __array_ufunc__ = None

    def __init__(self, fleet: FleetRef, matrix: int, row: int, spec: MatrixSpec, route: Route) -> None:
        """Not for users: ``DCV.dense``, ``DCV.sparse``, ``derive`` and ``load`` make vectors."""
        self._fleet = fleet
        self._matrix = matrix
        self._row = row
        self._spec = spec
        self._route = route
        self._freed = False
        self._copy = ""
        self._owner: weakref.finalize[..., Any] | None = None

    # -- creation --------------------------------------------------------------------------------------------------

    @staticmethod
    def dense(  # noqa: PLR0913 - most of them are keywords
        dim: int,
        rows: int = DEFAULT_ROWS,
        dtype: str = "float32",
        *,
        align: int = 1,
        partitionsPerServer: int = 1,
        wire: Wire | None = None,
        name: str | None = None,
    ) -> DCV:
        """Make a dense vector of zeros (paper, section 4.2).

        Args:
            dim: number of columns.
            rows: rows to reserve in its matrix for vectors derived from it; more are added when they run out.
            dtype: "float32", "float64" or "int64".
            align: keep blocks of this many columns on one server.
            partitionsPerServer: partitions that each server holds.
            wire: "float16" or "bfloat16" halves what values take on the network, both ways, and rounds them to the
                nearest: by at most 2**-11 (float16: of numbers from 6.1e-5 to 65,504; smaller ones by 2**-25) or 2**-8
                (bfloat16: of all) of their size. What is stored and computed on the servers stays in ``dtype``.
            name: by which ``ps.vector(name)`` finds it, here and in a later driver; it stays until ``free()``. 1 to 255
                printable characters.

        Raises:
            ConfigError, DTypeError: an argument cannot be used, or another vector has this name.
            LimitError: the servers' memory limit does not allow it; nothing was allocated.
            StoppedError: there is no PS2Context.
        """
        return create(MatrixSpec(dim, rows, _dtype_name(dtype), "dense", align, partitionsPerServer, wire), name)

    @staticmethod
    def sparse(
        dim: int,
        rows: int = DEFAULT_ROWS,
        dtype: str = "float32",
        *,
        partitionsPerServer: int = 1,
        wire: Wire | None = None,
        name: str | None = None,
    ) -> DCV:
        """Make a sparse vector: int64 keys in ``[0, dim)``, dim up to 2**63, memory for the keys that were touched.

        The rows of its matrix share one key index a partition, so operations between them run at dense speed over the
        active keys. Arguments and errors are those of ``dense``.
        """
        return create(MatrixSpec(dim, rows, _dtype_name(dtype), "sparse", 1, partitionsPerServer, wire), name)

    def derive(self, name: str | None = None) -> DCV:
        """Make a vector of zeros co-located with this one (paper, section 4.3). ``DCV.derive(u)`` is the same.

        Args:
            name: by which ``ps.vector(name)`` finds it, here and in a later driver; it stays until ``free()``.

        Raises:
            ConfigError: another vector has this name.
            LimitError: the matrix has to grow for it, and the servers' memory limit does not allow it.
        """
        self._check_usable()
        row = self._session.take_rows(self._matrix, 1, _name(name))[0]
        vector = DCV(self._fleet, self._matrix, row, self._spec, self._route)
        return vector if name else _owned(self._session, vector)

    duplicate = derive

    def free(self) -> None:
        """Give the row back; every handle to it fails from now on. The matrix goes with its last row.

        In a task this handle fails from now on, and the others when the task's stage is over: another attempt of the
        task would write to the row again.
        """
        self._check_usable()
        self._session.free_rows(self._matrix, [self._row])
        self._disown()
        self._freed = True

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def dim(self) -> int:
        return self._spec.dim

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._spec.np_dtype

    @property
    def isSparse(self) -> bool:
        return self._spec.kind == "sparse"

    def isColocated(self, other: DCV) -> bool:
        """Tell whether column operations between the two vectors move no data."""
        return self._fleet.id == other._fleet.id and self._matrix == other._matrix

    def __len__(self) -> int:
        return self.dim

    def __bool__(self) -> bool:
        return True  # len() fails at 2**63

    def __repr__(self) -> str:
        return f"DCV({self._spec.kind}, dim={self.dim}, {self._spec.dtype}, matrix={self._matrix:x}, row={self._row})"

    # -- row access ------------------------------------------------------------------------------------------------

    def pull(self, indices: Any = None, out: Any = None) -> Any:
        """Read the vector, or some of it (paper, Table 1).

        A vector is read block by block (4 MiB), each as it is at one moment; so is what lies on different servers.
        In a task that is retried, or run twice, it may bring a newer state than the first attempt saw: what tasks write
        counts once, what they read is as it is now.

        Args:
            indices: int64 of shape (n,), any order, duplicates allowed; None reads all. The same indices again cost
                less: they travel as a hash.
            out: an array of the vector's dtype and the answer's shape to read into; it is returned.

        Returns:
            An array of the vector's dtype: shape (dim,), or (n,) in the order of the indices. For a sparse vector
            without indices: ``(keys, values)`` of its active keys, sorted by key.

        Raises:
            OutOfRangeError: an index is not in ``[0, dim)``.
            DTypeError, ShapeError: the indices are not integers, or the answer does not fit ``out``.
        """
        if indices is not None:
            return self._submit(plans.pull_columns(self._target(), indices, out))
        if not self.isSparse:
            return self._submit(plans.pull(self._target(), 0, self.dim, out))
        if out is not None:
            raise UsageError(
                "pull: out goes with indices; how many active keys a sparse vector has is not known before"
            )
        counts = None if in_batch() else self._submit(plans.count_active(self._target()))
        return self._submit(plans.pull_active(self._target(), counts))

    def push(self, values: Any, indices: Any = None) -> DCV:
        """Overwrite the vector, or some of it (paper, Table 1). Of several values for one index the last wins.

        Args:
            values: shape (dim,), or that of the indices.
            indices: int64 of shape (n,), any order; None writes all. A sparse vector needs them.

        Raises:
            ShapeError, DTypeError, OutOfRangeError: naming what was expected and what came.
        """
        return self._write("push", "scatter", values, indices)

    def pushPull(self, values: Any, indices: Any = None) -> Any:
        """Add values as ``add`` does, and read what they come to as ``pull`` does, in one round trip.

        Args:
            values: shape (dim,), or that of the indices.
            indices: int64 of shape (n,), any order, duplicates accumulate; None is all. A sparse vector needs them.

        Returns:
            The new values, in the order of the indices. Additions of others may be among them.

        Raises:
            OutOfRangeError: a sum does not fit the float16 that it travels as; what was added stays added.
        """
        if indices is not None:
            return self._submit(plans.push_pull_columns(self._target(), values, indices))
        if self.isSparse:
            raise UsageError("pushPull: a sparse vector needs indices with the values")
        return self._submit(plans.push_pull(self._target(), values))

    def add(self, values: Any, indices: Any = None, wait: bool = True) -> DCV:
        """Add another vector, a number, or values at indices, in place; duplicates accumulate (paper, Table 1).

        Args:
            values: a DCV or a number (computed on the servers), or an array as for ``push``.
            indices: as for ``push``.
            wait: False returns at once, with a copy of the values on its way: at most 64 MB, then it waits for some to
                be applied. The next call that waits, of whatever vector, comes after them, and raises what failed;
                ``flush()`` does nothing else. A task must end with one or the other.
        """
        return self._arithmetic("add", values, indices, wait)

    def addFactors(self, b: Any, x: Any, keys: Any, wait: bool = True) -> DCV:
        """Add ``sum over s of x[s, f] * b[s, k]`` to column ``keys[f] * width + k`` for all f and k.

        That is the gradient of a model with ``width`` numbers a feature. Only b and x travel; the servers take the sum,
        in float64. Worth it where x and b take fewer bytes than their product: ``ps2.client.factors.sizes`` tells.

        Args:
            b: shape (samples, width); goes to each server that holds some of the keys. The vector is dense and was made
                with an ``align`` that is a multiple of width.
            x: scipy sparse (its entries travel) or an array (all of it does), of shape (samples, len(keys)).
            keys: int64, any order, duplicates accumulate.
            wait: as for ``add``.

        Raises:
            UsageError: the vector is sparse, or not aligned so.
            ShapeError, DTypeError, OutOfRangeError: naming what was expected and what came.
        """
        from ps2.client import factors

        return self._change(factors.add_factors(self._target(), b, x, keys), wait)

    def sub(self, values: Any, indices: Any = None, wait: bool = True) -> DCV:
        """Subtract in place; arguments as for ``add``."""
        return self._arithmetic("sub", values, indices, wait)

    def flush(self) -> DCV:
        """Wait until all additions of this process made with ``wait=False`` are applied; raise what failed of them."""
        self._session.flush()
        return self

    def mul(self, values: Any, indices: Any = None) -> DCV:
        """Multiply in place; arguments as for ``add``. An absent key of a sparse vector stays absent."""
        return self._arithmetic("mul", values, indices)

    def div(self, values: Any, indices: Any = None) -> DCV:
        """Divide in place by IEEE rules; arguments as for ``add``. Not for int64, which holds no fractions."""
        return self._arithmetic("div", values, indices)

    def sum(self) -> float:
        """Return the sum of the elements, accumulated in float64 (paper, Table 1)."""
        return self._scalar("sum")

    def nnz(self) -> int:
        """Return how many elements are not 0, as an int (paper, Table 1)."""
        return self._submit(self._plan("nnz").then(int))

    def norm1(self) -> float:
        """Return the sum of absolute values, accumulated in float64."""
        return self._scalar("norm1")

    def norm2(self) -> float:
        """Return the Euclidean norm, accumulated in float64 (paper, Table 1)."""
        return self._submit(self._plan("norm2_squared").then(np.sqrt).then(float))

    def max(self) -> float:
        """Return the largest element; the absent keys of a sparse vector count as 0."""
        return self._extreme("max")

    def min(self) -> float:
        """Return the smallest element; the absent keys of a sparse vector count as 0."""
        return self._extreme("min")

    # -- column access ---------------------------------------------------------------------------------------------

    def dot(self, other: DCV) -> float:
        """Return the inner product, computed where the vectors lie, accumulated in float64 (paper, Figure 4)."""
        return self._scalar("dot", self._beside(other))

    @staticmethod
    def gram(us: Sequence[DCV], vs: Sequence[DCV]) -> Any:
        """Return the inner products of each of some vectors with each of others, in one pass over them.

        Args:
            us, vs: any number of vectors, some of them in both if you like; one request a server.

        Returns:
            float64 of shape (len(us), len(vs)), accumulated in float64.
        """
        left, right = _vectors("gram: us", us), _vectors("gram: vs", vs)
        first = left[0]
        near = [first._beside(vector) for vector in (*left, *right)]
        rows = [vector._row for vector in near]
        return first._submit(plans.gram(first._target(*near), rows[: len(left)], rows[len(left) :]))

    def combine(self, vectors: Sequence[DCV], alphas: Any) -> DCV:
        """Set this vector to the sum of ``alphas[i] * vectors[i]`` on the servers, in one pass over them.

        Args:
            vectors: one or more; this one may be among them.
            alphas: float64 of shape (len(vectors),). Sums are float64 until they are rounded to the vector's dtype.
        """
        near = [self._beside(vector) for vector in _vectors("combine: vectors", vectors)]
        hold(*near)
        return self._change(plans.combine(self._target(), [vector._row for vector in near], alphas), wait=True)

    def axpy(self, other: DCV, alpha: Scalar) -> DCV:
        """Set ``self += alpha * other`` on the servers (paper, Table 1)."""
        return self._apply("axpy", self._beside(other), alpha=alpha)

    def iaxpy(self, other: DCV, alpha: Scalar) -> DCV:
        """The name of ``axpy`` in the paper's Figure 6."""
        return self.axpy(other, alpha)

    def copy(self, other: DCV) -> DCV:
        """Overwrite this vector with another (paper, Table 1)."""
        return self._apply("copy", self._beside(other))

    def fill(self, value: Scalar) -> DCV:
        """Set every element (of a sparse vector: every active key) to a number."""
        return self._apply("fill", value=value)

    def zero(self) -> DCV:
        """Set every element to 0."""
        return self.fill(0)

    def zip(self, *others: DCV) -> ZippedDCV:
        """Bring vectors together for one operation on the same columns of all of them (paper, Figure 3)."""
        from ps2.client.zipped import ZippedDCV

        return ZippedDCV((self, *others))

    def matrix(self) -> DCVMatrix:
        """Return all rows of this vector's matrix as one; rows that are reserved and not in use become its own."""
        from ps2.client.matrix import DCVMatrix

        return DCVMatrix.of(self)

    # -- arithmetic: new vectors -----------------------------------------------------------------------------------

    def __add__(self, other: DCV | Scalar) -> DCV:
        return self._new("add", other)

    def __sub__(self, other: DCV | Scalar) -> DCV:
        return self._new("sub", other)

    def __mul__(self, other: DCV | Scalar) -> DCV:
        return self._new("mul", other)

    def __truediv__(self, other: DCV | Scalar) -> DCV:
        return self._new("div", other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Scalar) -> DCV:
        if not _is_number(other):
            return NotImplemented
        return self._derived(_Step("copy", (self,)), _Step("mul_scalar", value=-1), _Step("add_scalar", value=other))

    def __rtruediv__(self, other: Scalar) -> DCV:
        if not _is_number(other):
            return NotImplemented
        return self._derived(_Step("fill", value=other), _Step("div", (self,)))

    def __neg__(self) -> DCV:
        return self._new("mul", -1)

    # -- files -----------------------------------------------------------------------------------------------------

    def save(self, url: str) -> None:
        """Write the vector, as it is stored, to a folder: ``manifest.json`` beside NumPy files; see ``load``.

        The servers write the values, each its own; none pass through this process, which writes the manifest. What lies
        in one partition is saved as it is at one moment; the moments of two partitions may differ.

        Args:
            url: a path or any fsspec URL that the servers and this process can write, and that is one place for all of
                them. What was saved there before stays whole until the new one is.

        Raises:
            RecoveryError: it cannot be written; nothing is left of it.
        """
        from ps2.client import storage

        storage.save(self, url)

    @staticmethod
    def load(url: str, rows: int = DEFAULT_ROWS) -> DCV:
        """Make a vector from what ``save`` wrote, on a fleet of any size; the servers read the values.

        Args:
            url: of the folder, which the servers and this process can read.
            rows: rows to reserve in its matrix, as for ``dense``; ``align`` is that of the vector that was saved.

        Raises:
            CheckpointMissingError: there is no complete save at this place.
            CheckpointCorruptError: the files are not what the manifest says.
            LimitError: the servers' memory limit does not allow it. After any error nothing stays allocated.
        """
        from ps2.client import storage

        return storage.load(url, rows)

    # -- inside ----------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        # A copy may live in tasks or on disk: this process no longer knows when the row's last handle is gone.
        self._check_usable()
        self._disown()
        session_of(self._fleet)  # a stopped one is told here, not by every task
        return {**self.__dict__, "_owner": None, "_copy": uuid.uuid4().hex[:12]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        note_unpickled(state["_copy"])
        self.__dict__.update(state)

    @property
    def _session(self) -> Session:
        note_used(self._copy)
        return session_of(self._fleet)

    def _as_stored(self) -> DCV:
        """Return a handle to the same row whose values travel as they are stored, for files and copies."""
        self._check_usable()
        return DCV(self._fleet, self._matrix, self._row, replace(self._spec, wire=None), self._route)

    def _target(self, *others: DCV) -> plans.Target:
        for vector in (self, *others):
            vector._check_usable()
        hold(self, *others)
        rows = (self._row, *(other._row for other in others))
        return plans.Target(self._matrix, self._spec, self._route, rows)

    def _submit(self, plan: plans.Plan[Any]) -> Any:
        return submit(self._session, plan)

    def _plan(self, name: str, *others: DCV, **params: Any) -> plans.Plan[Any]:
        return plans.call(self._target(*others), name, params)

    def _scalar(self, name: str, *others: DCV) -> float:
        return self._submit(self._plan(name, *others))

    def _apply(self, name: str, *others: DCV, **params: Any) -> DCV:
        self._submit(self._plan(name, *others, **params))
        return self

    def _extreme(self, name: str) -> float:
        plan = self._plan(name)
        if not self.isSparse:
            return self._submit(plan)
        count = self._plan("count")
        pick = np.maximum if name == "max" else np.minimum
        size = len(plan.operations)

        def merge(results: list[Any]) -> float:
            extreme, active = plan.merge(results[:size]), count.merge(results[size:])
            return float(pick(extreme, 0.0)) if active < self.dim else float(extreme)

        both = plans.Plan(self._matrix, self._route, plan.operations + count.operations, merge, mutates=False)
        return self._submit(both)

    def _write(self, whole: str, scattered: str, values: Any, indices: Any, wait: bool = True) -> DCV:
        if indices is not None:
            plan = plans.push_columns(self._target(), scattered, values, indices)
        elif self.isSparse:
            raise UsageError(f"{whole}: a sparse vector needs indices with the values")
        else:
            plan = plans.push(self._target(), whole, values, 0, self.dim)
        return self._change(plan, wait)

    def _arithmetic(self, verb: str, values: Any, indices: Any, wait: bool = True) -> DCV:
        if indices is None and isinstance(values, DCV):
            return self._change(self._plan(verb, self._beside(values)), wait)
        if indices is None and isinstance(values, Real):
            return self._change(self._plan(f"{verb}_scalar", value=values), wait)
        if isinstance(values, DCV):
            raise UsageError(f"{verb}: indices go with an array of values, not with a DCV")
        return self._write(f"push_{verb}", f"scatter_{verb}", values, indices, wait)

    def _change(self, plan: plans.Plan[Any], wait: bool) -> DCV:
        if wait:
            self._submit(plan)
        else:
            submit_later(self._session, plan)
        return self

    def _new(self, verb: str, other: DCV | Scalar) -> DCV:
        if not isinstance(other, DCV) and not _is_number(other):
            return NotImplemented
        if isinstance(other, DCV):
            step = _Step(verb, (self._beside(other),))
        else:
            step = _Step(f"{verb}_scalar", value=other)
        return self._derived(_Step("copy", (self,)), step)

    def _derived(self, *steps: _Step) -> DCV:
        """Return a new vector that the steps have been taken on."""
        for step in steps:
            step.plan_on(self)  # checked before a row is taken
        result = self.derive()
        submit_all(self._session, [step.plan_on(result) for step in steps])
        return result

    def _beside(self, other: DCV) -> DCV:
        """Return a vector with the other's data that is co-located with this one."""
        from ps2.client.realign import beside

        if not isinstance(other, DCV):
            raise DTypeError(f"expected a DCV, got {type(other).__name__}")
        self._check_usable()
        other._check_usable()
        return other if self.isColocated(other) else beside(self, other)

    def _check_usable(self) -> None:
        if self._freed:
            raise NotFoundError(f"{self!r} was freed")

    def _disown(self) -> None:
        if self._owner is not None:
            self._owner.detach()
            self._owner = None


@dataclass(frozen=True)
class _Step:
    """An operation on a vector that does not exist yet; ``value`` is that of an operation with a number."""

    name: str
    others: tuple[DCV, ...] = ()
    value: Scalar | None = None

    def plan_on(self, vector: DCV) -> plans.Plan[Any]:
        params = {} if self.value is None else {"value": self.value}
        return vector._plan(self.name, *self.others, **params)


def _vectors(name: str, vectors: Sequence[DCV]) -> list[DCV]:
    found = list(vectors)
    if not found:
        raise ShapeError(f"{name}: expected one or more vectors, got none")
    for vector in found:
        if not isinstance(vector, DCV):
            raise DTypeError(f"{name}: expected DCVs, got {type(vector).__name__}")
    return found


def derive_all(vector: DCV, count: int) -> list[DCV]:
    """Make so many vectors as ``vector.derive()`` does, by one call."""
    vector._check_usable()
    session = vector._session
    rows = session.take_rows(vector._matrix, count) if count else []
    return [_owned(session, DCV(vector._fleet, vector._matrix, row, vector._spec, vector._route)) for row in rows]


def free_all(vectors: Iterable[DCV]) -> None:
    """Free vectors of one fleet, by one call a matrix."""
    of_matrix: dict[int, list[DCV]] = {}
    for vector in vectors:
        vector._check_usable()
        of_matrix.setdefault(vector._matrix, []).append(vector)
    for matrix, some in of_matrix.items():
        some[0]._session.free_rows(matrix, [vector._row for vector in some])
        for vector in some:
            vector._disown()
            vector._freed = True


def _is_number(value: object) -> bool:
    return isinstance(value, Real)


def create(spec: MatrixSpec, name: str | None = None) -> DCV:
    """Make a vector of zeros, the first row of a matrix."""
    session = current_session()
    info = session.new_matrix(spec, _name(name))
    vector = DCV(session.fleet, info.id, 0, info.spec, info.route)
    return vector if name else _owned(session, vector)


def _owned(session: Session, vector: DCV) -> DCV:
    """Free the vector's row when its only handle is garbage-collected."""
    vector._owner = weakref.finalize(vector, session.drop, vector._matrix, [vector._row], session.holder)
    vector._owner.atexit = False
    return vector


def _name(name: str | None) -> str:
    if name is None:
        return ""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        got = f"{len(name):,} characters" if isinstance(name, str) and len(name) > MAX_NAME else repr(name)
        raise ConfigError(f"name: expected a text of 1 to {MAX_NAME} printable characters, got {got}")
    return name


def _dtype_name(dtype: Any) -> str:
    try:
        if dtype is None:
            raise TypeError("numpy would take it for float64")
        return np.dtype(dtype).name
    except TypeError as error:
        raise DTypeError(f"dtype: expected 'float32', 'float64' or 'int64', got {dtype!r}") from error
