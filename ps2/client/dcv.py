"""Dimension Co-located Vectors (paper, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

from ps2.client import factors, plans, storage
from ps2.client.arguments import checked_vectors, dtype_name, is_number
from ps2.client.batch import in_batch, keep_alive, submit_all
from ps2.client.declared import DeclaredStep, declared, extreme
from ps2.client.handle import Handle, create
from ps2.client.matrix import DCVMatrix
from ps2.client.realign import colocated_copy, same_matrix_copy, warn_if_rounded
from ps2.client.zipped import ZippedDCV
from ps2.errors import DTypeError, UsageError
from ps2.matrix.key_policy import ALL_ROWS, Clock, Initial, InitialKind, make_policy
from ps2.matrix.partition import Layout, MatrixSpec, Wire
from ps2.name_hints import hints_keywords

Scalar = int | float
DEFAULT_ROWS = 4


class DCV(Handle):
    """A handle to one row of a matrix on the fleet, made by ``DCV.dense``, ``DCV.sparse`` and ``derive``.

    A handle works in the driver and, pickled in a closure, in every task. It holds ids and the route, never a channel.
    Methods that change the vector return it, so that calls chain. Inside ``ps.batch()``, methods that read return a
    ``Deferred`` instead of the answer.

    ``free()`` frees the row. Garbage collection frees it if the handle was never pickled and has no name. Vectors of
    one matrix are co-located, and so are dense vectors of matrices with equal partitioning: column operations between
    them move no data. Other vectors, and vectors of a dtype that the operation does not take, are first copied through
    this process to the servers of the first vector, with a ``NotColocatedWarning``.

    On a sparse vector, an absent key counts as 0. ``fill``, ``mul``, ``div``, arithmetic with a number, and
    ``mapPartitions`` act on active keys only: the keys that any row of the matrix has been pushed or added to.
    """

    # Without this, numpy would evaluate `array * dcv` element by element instead of calling DCV's operator.
    __array_ufunc__ = None

    # -- creation --------------------------------------------------------------------------------------------------

    @staticmethod
    @hints_keywords
    def dense(  # noqa: PLR0913 - most of them are keywords
        dim: int,
        rows: int = DEFAULT_ROWS,
        dtype: str = "float32",
        *,
        align: int = 1,
        partitionsPerServer: int = 1,
        wire: Wire | None = None,
        layout: Layout = "row",
        name: str | None = None,
        reuse: bool = False,
    ) -> DCV:
        """Create a dense vector of zeros (paper, section 4.2).

        Args:
            dim: number of columns.
            rows: rows to reserve in the vector's matrix for derived vectors. The matrix grows when they run out.
            dtype: "float32", "float64", "int32" or "int64". Integer sums wrap around on overflow.
            align: keep blocks of this many columns on one server.
            partitionsPerServer: number of partitions on each server.
            wire: "float16" or "bfloat16" halves the size of values on the network, in both directions, and rounds them
                to the nearest. The relative error is at most 2**-11 for float16 (numbers from 6.1e-5 to 65,504; below
                that, an absolute error of 2**-25), and 2**-8 for bfloat16. The servers store and compute in ``dtype``.
            layout: "row" stores each row contiguously. "column" stores each column's values in all rows contiguously,
                as a block; ``matrix()`` moves blocks. A "column" matrix never has more than ``rows`` rows. Operations
                on its single rows are slower, because the servers gather each row into a copy first.
            name: the name by which ``ps.vector(name)`` finds the vector, here and in a later driver. A named vector
                stays until ``free()``. 1 to 255 printable characters.
            reuse: return the vector of this name if there is one, whatever its values and the rows of its matrix.

        Raises:
            ConfigError, DTypeError: an argument is invalid; or another vector has this name, and ``reuse`` is false or
                the vector has another dim, dtype or layout.
            LimitError: the servers' memory limit does not allow it; nothing was allocated.
            StoppedError: there is no PS2Context.
        """
        spec = MatrixSpec(dim, rows, dtype_name(dtype), "dense", align, partitionsPerServer, wire, layout)
        return create(DCV, spec, name, reuse)

    @staticmethod
    @hints_keywords
    def sparse(  # noqa: PLR0913 - most of them are keywords
        dim: int,
        rows: int = DEFAULT_ROWS,
        dtype: str = "float32",
        *,
        partitionsPerServer: int = 1,
        wire: Wire | None = None,
        layout: Layout = "row",
        name: str | None = None,
        reuse: bool = False,
        admitAfter: int = 1,
        expireAfterS: float | None = None,
        maxKeys: int | None = None,
        init: InitialKind = "zeros",
        initScale: float = 0.01,
        seed: int = 0,
        initBegin: int = 0,
        initEnd: int | None = None,
        clock: Clock = "wall",
    ) -> DCV:
        """Create a sparse vector: int64 keys in ``[0, dim)``, dim up to 2**63, memory only for keys that were touched.

        All rows of its matrix share one key index per partition, so operations between them run at dense speed over the
        active keys. Other arguments, and errors, are those of ``dense``.

        Args:
            admitAfter: a key gets its slot at its ``admitAfter``-th touch, at most the 255th. A touch is a push or an
                addition that names the key. The values of earlier touches are dropped (docs/keys.md).
            expireAfterS: seconds without a touch after which a key is removed, with its values in all rows.
            maxKeys: maximum number of keys of the matrix; the least recently touched keys are removed first.
            init: initial values of keys: "zeros", "normal" (standard deviation ``initScale``) or "uniform" (on
                ``[-initScale, initScale)``). They depend only on the seed, the key and the row.
            initBegin, initEnd: ``init`` applies to the rows in ``[initBegin, initEnd)``; other rows begin as zeros.
                Default: the first row with layout "row", all rows with layout "column".
            clock: "wall": the driver advances the matrix's time; "event": the program does, by ``advance``.
        """
        end = initEnd if initEnd is not None else ALL_ROWS if layout == "column" else 1
        policy = make_policy(admitAfter, expireAfterS, maxKeys, Initial(init, initScale, seed, initBegin, end), clock)
        spec = MatrixSpec(dim, rows, dtype_name(dtype), "sparse", 1, partitionsPerServer, wire, layout, policy)
        return create(DCV, spec, name, reuse)

    # -- row access ------------------------------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Pull, for ``np.asarray(vector)``. ``copy`` is ignored, because a pull always returns a new array."""
        if self.isSparse or in_batch():
            reason = "inside a batch" if in_batch() else "of a sparse vector"
            raise UsageError(f"numpy cannot make an array {reason}: call pull()")
        values = self.pull()
        return values if dtype is None else values.astype(dtype)

    def pull(self, indices: Any = None, out: Any = None) -> Any:
        """Read the vector, or its values at some indices (paper, Table 1).

        A read is atomic per block (4 MiB), not across blocks or servers. A retried or speculative task may see a newer
        state than the first attempt: writes of tasks count once, but reads always return the current state.

        Args:
            indices: int64 of shape (n,), any order, duplicates allowed; None reads all. Repeated reads at the same
                indices cost less: their grouping by partition is cached, and a digest replaces a large key set.
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
        if self._spec.kind == "dense":
            return self._submit(plans.pull(self._target(), 0, self._spec.dim, out))
        if out is not None:
            raise UsageError("pull: out needs indices: the number of active keys is not known in advance")
        # Managed keys may be removed between two replies.
        in_one_reply = in_batch() or self._spec.key_policy is not None
        counts = None if in_one_reply else self._submit(plans.count_active(self._target()))
        return self._submit(plans.pull_active(self._target(), counts))

    def push(self, values: Any, indices: Any = None) -> DCV:
        """Overwrite the vector, or its values at some indices (paper, Table 1). At a repeated index, the last one wins.

        Args:
            values: shape (dim,), or the shape of the indices.
            indices: int64 of shape (n,), any order; None writes all. A sparse vector needs indices.

        Raises:
            ShapeError, DTypeError, OutOfRangeError: the values or indices do not fit the vector.
        """
        return self._write("push", "scatter", values, indices)

    def pushPull(self, values: Any, indices: Any = None) -> Any:
        """Add values as ``add`` does and return the new values, in one round trip.

        Args:
            values: shape (dim,), or the shape of the indices.
            indices: int64 of shape (n,), any order, duplicates accumulate; None means all. A sparse vector needs
                indices.

        Returns:
            The new values, in the order of the indices. They may include additions of other workers.

        Raises:
            OutOfRangeError: a sum does not fit its wire dtype, float16; the addition itself remains applied.
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
            indices: the indices, as for ``push``.
            wait: False queues a copy of the values and returns at once. If 64 MiB are in flight, the call blocks until
                some are applied. The next call that waits, on any vector, runs after all queued additions and
                raises their first error. ``flush()`` is such a call. A task must end with a call that waits.
        """
        return self._arithmetic("add", values, indices, wait)

    def addFactors(self, b: Any, x: Any, keys: Any, wait: bool = True) -> DCV:
        """Add ``sum over s of x[s, f] * b[s, k]`` to column ``keys[f] * width + k`` for all f and k.

        This is the gradient of a model with ``width`` values per feature. Only b and x are sent; the servers compute
        the sum, in float64. This is faster than ``add`` if x and b take fewer bytes than their product:
        ``ps2.client.factors.sizes`` returns both sizes.

        Args:
            b: shape (samples, width), sent to each server that holds some of the keys. The vector must be dense, with
                an ``align`` that is a multiple of width.
            x: shape (samples, len(keys)); a scipy sparse matrix (only its entries are sent) or an array.
            keys: int64, any order, duplicates accumulate.
            wait: see ``add``.

        Raises:
            UsageError: the vector is sparse, or its ``align`` is not a multiple of width.
            ShapeError, DTypeError, OutOfRangeError: the arguments do not fit each other or the vector.
        """
        return self._change(factors.add_factors(self._target(), b, x, keys), wait)

    def sub(self, values: Any, indices: Any = None, wait: bool = True) -> DCV:
        """Subtract in place; arguments as for ``add``."""
        return self._arithmetic("sub", values, indices, wait)

    def flush(self) -> DCV:
        """Wait until all ``wait=False`` additions of this process are applied; raise the first error among them."""
        self._session.dispatch.flush()
        return self

    def mul(self, values: Any, indices: Any = None) -> DCV:
        """Multiply in place; arguments as for ``add``. An absent key of a sparse vector stays absent."""
        return self._arithmetic("mul", values, indices)

    def div(self, values: Any, indices: Any = None) -> DCV:
        """Divide in place by IEEE rules; arguments as for ``add``. Not available for integer dtypes."""
        return self._arithmetic("div", values, indices)

    def sum(self) -> float:
        """Return the sum of the elements, accumulated in float64 (paper, Table 1)."""
        return self._scalar("sum")

    def nnz(self) -> int:
        """Return the number of nonzero elements, as an int (paper, Table 1)."""
        return self._submit(self._plan("nnz").then(int))

    def norm1(self) -> float:
        """Return the sum of absolute values, accumulated in float64."""
        return self._scalar("norm1")

    def norm2(self) -> float:
        """Return the Euclidean norm, accumulated in float64 (paper, Table 1)."""
        plan = self._plan("norm2_squared").then(np.sqrt).then(float)
        return self._submit(warn_if_rounded("norm2", plan, self._target()))

    def max(self) -> float:
        """Return the largest element; the absent keys of a sparse vector count as 0."""
        return self._scalar("max")

    def min(self) -> float:
        """Return the smallest element; the absent keys of a sparse vector count as 0."""
        return self._scalar("min")

    # -- column access ---------------------------------------------------------------------------------------------

    def dot(self, other: DCV) -> float:
        """Return the inner product, computed on the servers, accumulated in float64 (paper, Figure 4)."""
        return self._scalar("dot", colocated_copy(self, other))

    @staticmethod
    def gram(us: Sequence[DCV], vs: Sequence[DCV]) -> Any:
        """Return all inner products between two lists of vectors, computed in one pass.

        Args:
            us, vs: any number of vectors; a vector may be in both. One request per server.

        Returns:
            float64 of shape (len(us), len(vs)), accumulated in float64.
        """
        left, right = checked_vectors(DCV, "gram: us", us), checked_vectors(DCV, "gram: vs", vs)
        first = left[0]
        vectors = [same_matrix_copy(first, vector) for vector in (*left, *right)]
        rows = [vector._row for vector in vectors]
        return first._submit(first._plan("gram", *vectors, rows_u=rows[: len(left)], rows_v=rows[len(left) :]))

    def combine(self, vectors: Sequence[DCV], alphas: Any) -> DCV:
        """Set this vector to the sum of ``alphas[i] * vectors[i]`` on the servers, in one pass.

        Args:
            vectors: one or more; this vector may be among them.
            alphas: float64 of shape (len(vectors),). Sums are float64 until they are rounded to the vector's dtype.
        """
        copies = [same_matrix_copy(self, vector) for vector in checked_vectors(DCV, "combine: vectors", vectors)]
        keep_alive(*copies)
        return self._change(self._plan("combine", rows=[vector._row for vector in copies], alphas=alphas))

    def axpy(self, other: DCV, alpha: Scalar) -> DCV:
        """Set ``self += alpha * other`` on the servers (paper, Table 1)."""
        return self._change(self._plan("axpy", colocated_copy(self, other), alpha=alpha))

    def iaxpy(self, other: DCV, alpha: Scalar) -> DCV:
        """Alias of ``axpy``, named as in the paper's Figure 6."""
        return self.axpy(other, alpha)

    def copy(self, other: DCV) -> DCV:
        """Overwrite this vector with another (paper, Table 1)."""
        return self._change(self._plan("copy", colocated_copy(self, other)))

    def fill(self, value: Scalar) -> DCV:
        """Set every element to a number; on a sparse vector, every active key."""
        return self._change(self._plan("fill", value=value))

    def zero(self) -> DCV:
        """Set every element to 0."""
        return self.fill(0)

    def zip(self, *others: DCV) -> ZippedDCV[DCV]:
        """Combine vectors for operations that read or change the same columns of all of them (paper, Figure 3)."""
        return ZippedDCV((self, *others))

    def matrix(self) -> DCVMatrix:
        """Return the vector's matrix with all its rows. The handle takes over the reserved rows that are not in use."""
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
        if not is_number(other):
            return NotImplemented
        return self._derived(
            DeclaredStep("copy", (self,)), DeclaredStep("mul_scalar", value=-1), DeclaredStep("add_scalar", value=other)
        )

    def __rtruediv__(self, other: Scalar) -> DCV:
        if not is_number(other):
            return NotImplemented
        return self._derived(DeclaredStep("fill", value=other), DeclaredStep("div", (self,)))

    def __neg__(self) -> DCV:
        return self._new("mul", -1)

    # -- files -----------------------------------------------------------------------------------------------------

    def save(self, url: str) -> None:
        """Write the vector in its stored dtype to a folder: ``manifest.json`` and NumPy files; see ``load``.

        Each server writes its own values; this process writes only the manifest. The save is atomic per partition, not
        across partitions.

        Args:
            url: a path or any fsspec URL that the servers and this process can write to; it must be the same folder for
                all of them. An earlier save in this folder stays complete until the new save is complete.

        Raises:
            RecoveryError: the save cannot be written; its partial files are removed.
        """
        storage.save(self, [self._row], url)

    @staticmethod
    def load(url: str, rows: int = DEFAULT_ROWS) -> DCV:
        """Create a vector from what ``save`` wrote, on a fleet of any size; the servers read the values.

        Args:
            url: the folder, which the servers and this process can read.
            rows: rows to reserve in its matrix, as for ``dense``. All other settings are those of the saved vector,
                except that ``wire`` is None.

        Raises:
            UsageError: the save does not hold a single vector.
            CheckpointMissingError: there is no complete save at this path.
            CheckpointCorruptError: the files do not match the manifest.
            LimitError: the servers' memory limit does not allow it. After any error nothing stays allocated.
        """
        return storage.load(DCV, url, rows)

    # -- internal --------------------------------------------------------------------------------------------------

    def _plan(self, name: str, *others: DCV, **params: Any) -> plans.Plan[Any]:
        return declared(self._target(*others), name, params)

    def _scalar(self, name: str, *others: DCV) -> float:
        target = self._target(*others)
        plan = extreme(target, name) if name in ("max", "min") else declared(target, name, {})
        return self._submit(warn_if_rounded(name, plan, target))

    def _write(self, dense_name: str, sparse_name: str, values: Any, indices: Any, wait: bool = True) -> DCV:
        """Run operation ``dense_name`` on all columns, or ``sparse_name`` at indices."""
        if isinstance(values, DCV):
            raise DTypeError(f"values: expected numbers that fit {self.dtype}, got a DCV: use copy")
        if indices is None and self._spec.kind == "sparse":
            raise UsageError(f"{dense_name}: a sparse vector needs indices with the values")
        if indices is not None:
            return self._change(plans.push_columns(self._target(), sparse_name, values, indices), wait)
        return self._change(plans.push(self._target(), dense_name, values, 0, self._spec.dim), wait)

    def _arithmetic(self, verb: str, values: Any, indices: Any, wait: bool = True) -> DCV:
        if indices is None and isinstance(values, DCV):
            return self._change(self._plan(verb, colocated_copy(self, values)), wait)
        if indices is None and isinstance(values, Real):
            return self._change(self._plan(f"{verb}_scalar", value=values), wait)
        if isinstance(values, DCV):
            raise UsageError(f"{verb}: pass indices with an array of values, not with a DCV")
        return self._write(f"push_{verb}", f"scatter_{verb}", values, indices, wait)

    def _new(self, verb: str, other: DCV | Scalar) -> DCV:
        if isinstance(other, DCV):
            step = DeclaredStep(verb, (colocated_copy(self, other),))
        elif is_number(other):
            step = DeclaredStep(f"{verb}_scalar", value=other)
        else:
            return NotImplemented
        return self._derived(DeclaredStep("copy", (self,)), step)

    def _derived(self, *steps: DeclaredStep) -> DCV:
        """Return a new vector after applying the steps to it in order."""
        for step in steps:
            step.plan_on(self._target(*step.others))  # invalid arguments must fail before a row is allocated
        result = self.derive()
        submit_all(self._session, [step.plan_on(result._target(*step.others)) for step in steps])
        return result
