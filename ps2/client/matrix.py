"""Many rows of one matrix at once (DeepWalk's embeddings, LDA's counts: paper, sections 5.2.2 and 5.2.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ps2.client import blocks, pairs, plans, storage
from ps2.client.arguments import Distribution, random_params
from ps2.client.batch import keep_alive
from ps2.client.declared import declared
from ps2.client.fleet import Owner
from ps2.client.handle import Handle, KeyCalls, derive_all, existing_handle, matrix_html
from ps2.client.managed_matrix import ManagedMatrix, Mark
from ps2.client.session import Session
from ps2.client.zipped import ZippedMatrix
from ps2.errors import ConfigError, DTypeError, NotColocatedError, UsageError
from ps2.interrupts import shielded
from ps2.matrix.key_policy import KeyPolicy
from ps2.ops.all import has_answer, lookup
from ps2.ops.kernels import Int64s


class DCVMatrix(KeyCalls):
    """All rows of a matrix, made by ``DCV.matrix()``. Each call is one request per server, however many rows it names.

    Rows are int64 ids in ``[0, rows)``, any order, duplicates allowed. Like a DCV, the matrix works in the driver
    and in tasks. Inside ``ps.batch()``, methods that read return a ``Deferred``.

    Methods that change rows return the matrix. With ``wait=False`` they queue a copy of the values and return at once.
    If 64 MiB are in flight already, they block until some are applied. The next call that waits, on any vector or
    matrix, runs after all queued changes and raises their first error. ``flush()`` is such a call. A task must end with
    a call that waits. Additions may be applied in any order, but a ``push`` keeps its place in the order of the calls.

    The rows that the handle took over are freed with it. If it was created from a named vector, only ``free()`` frees
    them, and ``ps.vector(name).matrix()`` finds them again in a later driver.
    """

    def __init__(self, first: Handle, rows: int, owned: list[int]) -> None:
        """Not for users: ``DCV.matrix()`` creates it."""
        self._first = first  # the handle to the vector, or to row 0
        self._rows = rows
        self._owned = owned  # ids of the rows that are freed with this handle
        self._spare: list[Handle] = []  # rows for intermediate results of ``pairUpdate``
        self._owner: Owner | None = None
        if not first._name:
            session = first._session
            self._owner = session.owners.add(self, first._matrix, owned, session.holder)

    @classmethod
    @shielded
    def of(cls, vector: Handle) -> DCVMatrix:
        vector._check_usable()
        session = vector._session
        owned = session.take_rows(vector._matrix)
        return cls(vector, session.matrix(vector._matrix).spec.rows, owned)

    @classmethod
    def existing(cls, matrix: int) -> DCVMatrix:
        """Return a handle to a matrix that another process created. The handle takes no rows and frees none.

        Args:
            matrix: the matrix's ``number``.

        Raises:
            NotFoundError: there is no such matrix.
        """
        first = existing_handle(Handle, matrix)
        return cls(first, first._spec.rows, [])

    @property
    def number(self) -> int:
        """The number by which ``existing`` finds the matrix."""
        return self._first._matrix

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def dim(self) -> int:
        return self._first.dim

    @property
    def shape(self) -> tuple[int, int]:
        return self._rows, self.dim

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._first.dtype

    @shielded
    def grow(self, rows: int) -> DCVMatrix:
        """Add rows of zeros until there are ``rows`` of them. Other existing handles do not see the new rows.

        Raises:
            LimitError: the servers' memory limit does not allow it.
            UsageError: the matrix has layout "column", or other callers have allocated rows of it.
        """
        self._first._check_usable()
        if rows <= self._rows:
            return self
        session, number = self._session, self.number
        new_rows = session.take_rows(number, rows - self._rows)
        if new_rows != list(range(self._rows, rows)):
            session.free_rows(number, new_rows)
            raise UsageError(f"{self!r} cannot grow: other callers have allocated rows of this matrix")
        self._owned += new_rows
        self._rows = rows
        return self

    def __repr__(self) -> str:
        spec = self._first._spec
        details = f"{spec.dtype}, layout={spec.layout!r}, matrix={self.number:x}"
        return f"DCVMatrix({spec.kind}, rows={self._rows}, dim={self.dim}, {details})"

    def _repr_html_(self) -> str:
        return matrix_html(repr(self), self._first._spec, self._first._route, self._rows)

    def pull(self, rows: Any = None, columns: Any = None, out: Any = None) -> Any:
        """Read rows: shape (len(rows), dim) or (len(rows), len(columns)), in the requested order.

        Without arguments, read all rows: shape ``self.shape``. In layout "column", ``columns`` alone reads blocks:
        shape (len(columns), rows of the matrix). ``out``: an array to read into, which is returned.
        """
        return self._submit(self._pull(rows, columns, out))

    def _pull(self, rows: Any, columns: Any, out: Any = None) -> plans.Plan[Any]:
        target = self._target()
        if rows is not None:
            return plans.rows_pull(target, rows, columns, out)
        if columns is not None:
            return blocks.pull(target, columns, out)
        if target.spec.layout == "column":
            return blocks.pull_all(target, out)
        return plans.rows_pull(target, np.arange(self._rows), None, out)

    def push(self, rows: Any = None, values: Any = None, columns: Any = None, wait: bool = True) -> DCVMatrix:
        """Overwrite rows with values of shape (len(rows), dim). For a repeated row, the last values win.

        In layout "column", pass ``columns`` alone, with values of shape (len(columns), rows of the matrix).
        """
        if rows is None:
            return self._change(blocks.push(self._target(), columns, values), wait)
        if columns is not None:
            raise UsageError("push: expected rows or columns, got both; add takes both")
        return self._change(plans.rows_push(self._target(), "rows_push", rows, values), wait)

    def add(self, rows: Any = None, values: Any = None, columns: Any = None, wait: bool = True) -> DCVMatrix:
        """Add values of shape (len(rows), dim) or (len(rows), len(columns)); duplicates accumulate.

        In layout "column", pass ``columns`` alone, with values of shape (len(columns), rows of the matrix).
        """
        if rows is None:
            plan = blocks.add(self._target(), columns, values)
        elif columns is None:
            plan = plans.rows_push(self._target(), "rows_add", rows, values)
        else:
            plan = plans.rows_scatter_add(self._target(), rows, values, columns)
        return self._change(plan, wait)

    def flush(self) -> DCVMatrix:
        """Wait until all ``wait=False`` changes of this process are applied; raise the first error among them."""
        self._session.dispatch.flush()
        return self

    def fill(self, value: float, rows: Any = None) -> DCVMatrix:
        """Set every element of the given rows, or of all rows, to a number; on a sparse matrix, only of active keys."""
        target = self._target()
        plan = blocks.fill if target.spec.layout == "column" else plans.rows_fill
        return self._change(plan(target, rows, value))

    def zero(self, rows: Any = None) -> DCVMatrix:
        """Set every element of the given rows, or of all rows, to 0."""
        return self.fill(0, rows)

    def apply(self, name: str, wait: bool = True, **given: Any) -> Any:
        """Run an operation that is declared for whole matrices (``ps2 ops``; docs/kernels.md) on the servers.

        Args:
            name: the operation, such as "gram", "rows_dot" or an operation of your own.
            wait: False works as for ``add``, and needs an operation that changes data and returns nothing. Such
                operations may be applied in any order.
            given: the operation's arrays, scalars, vectors and matrices, by name. The declared axis of an array decides
                which slice each server gets. Vectors and matrices are the operands after this matrix: a DCV for a row,
                a DCVMatrix for a block. They must be co-located with this matrix, and have its dtype unless the
                operation declares another.

        Returns:
            The declared answer, merged over all partitions; None if the operation returns nothing.

        Raises:
            NotFoundError, ConfigError, DTypeError, ShapeError: there is no such operation, or an argument is invalid.
            NotColocatedError: a vector or matrix argument is not co-located with this matrix.
            UsageError: ``wait=False`` for an operation that returns an answer.
        """
        op = lookup(name)
        if set(op.operands) == {"row"}:
            zipped = f"m.zip({', '.join(op.names[1:])}).apply({name!r}, ...)"
            raise UsageError(
                f"operation {name!r} works on vectors ({', '.join(op.names)}): {zipped} runs it on rows of matrices; "
                "ps2.EmbeddingTable keeps keys' weights together with their optimizer"
            )
        if not wait and (has_answer(name) or not op.writes):
            raise UsageError(
                f"operation {name!r} returns an answer: wait=False is only for operations that return nothing"
            )
        # The vectors and matrices after this matrix. Operations whose first operand is a vector are called on vectors.
        operands = op.shard_operands[1:] if op.row_names[:1] != op.reads[:1] else ()
        if missing := [operand for operand, _ in operands if operand not in given]:
            raise ConfigError(f"operation {name!r}: {missing[0]}: this argument is required")
        others = [self._colocated(f"operation {name!r}: {key}", kind, given.pop(key)) for key, kind in operands]
        rows = tuple(other._row for other, (_, kind) in zip(others, operands, strict=True) if kind == "row")
        target = replace(self._target(), rows=rows, others=self._first._others(others))
        plan = declared(target, name, given)
        if wait:
            return self._submit(plan)
        self._change(plan, wait=False)
        return None

    def zip(self, *others: DCVMatrix) -> ZippedMatrix[DCVMatrix]:
        """Combine matrices of this shape for operations on vectors: ``m.zip(s, g).apply("adagrad", lr=0.1)``.

        Raises:
            NotColocatedError: a matrix is not co-located with this one. Sparse matrices never are.
            ShapeError, ConfigError: a matrix has another shape, or occurs twice.
        """
        return ZippedMatrix((self, *others))

    def dot(self, rows_a: Any, rows_b: Any) -> Any:
        """Return the inner product of each pair of rows: float64 of shape (n,). Only scalars are sent."""
        return self.apply("rows_dot", rows_a=rows_a, rows_b=rows_b)

    def fillRandom(  # noqa: PLR0913 - most of them are keywords
        self,
        distribution: Distribution,
        seed: int,
        rows: Any = None,
        *,
        low: float | None = None,
        high: float | None = None,
        mean: float | None = None,
        std: float | None = None,
    ) -> DCVMatrix:
        """Overwrite the given rows, or all rows, with random numbers. The servers generate them.

        A number depends only on the seed, the row and the column, so it is the same on any number of servers.

        Args:
            distribution: "uniform" on [low, high), by default [0, 1), where rounding may yield ``high``; or "normal"
                with ``mean`` (0) and ``std`` (1).
            seed: any int64.

        Raises:
            ConfigError, DTypeError: a parameter is invalid, or belongs to the other distribution.
            UsageError: the matrix is sparse, so it has no columns before keys are added.
        """
        params = random_params(distribution, {"low": low, "high": high, "mean": mean, "std": std}, self.dtype)
        return self._change(plans.rows_random(self._target(), rows, {"seed": seed, **params}))

    def axpy(self, rows_y: Any, rows_x: Any, alphas: Any) -> DCVMatrix:
        """Set ``y += alpha * x`` for each pair of rows in order (paper, Equation 2 and Figure 6).

        Args:
            rows_y: rows that change.
            rows_x: rows that are added.
            alphas: float64 of shape (n,), or one number for all.
        """
        if np.ndim(alphas) == 0:
            alphas = np.broadcast_to(alphas, np.shape(rows_y))
        self.apply("rows_axpy", rows_y=rows_y, rows_x=rows_x, alphas=alphas)
        return self

    def pairUpdate(self, rows_a: Any, rows_b: Any, coefficients: pairs.Coefficients, via: str = "auto") -> Any:
        """Set ``a += c * b`` and ``b += c * a`` for all pairs of rows at once, c from their dots (paper, Equation 2).

        With ``c = lr * (label - sigmoid(dot))`` this is one step of skip-gram with negative sampling (section 5.2.2).
        Every a and b on the right-hand side is the value before the update. A row in several pairs accumulates all
        changes.

        Args:
            rows_a, rows_b: the rows of n pairs.
            coefficients: called once in this process with the dots, float64 of shape (n,); returns n numbers.
            via: "servers" computes on the servers, and only scalars are sent. "rows" pulls the rows, computes here and
                adds the differences. "auto" chooses the faster one by measured costs
                (docs/decisions/0007). The results are equal up to rounding. Concurrent changes of other workers between
                the two requests are kept: "servers" then adds multiples of the changed rows, "rows" multiples of the
                rows that it pulled. For more than 2,796,202 pairs, "servers" needs one spare row per distinct row of
                the pairs; the handle keeps the spare rows for later calls.

        Returns:
            The dots, float64 of shape (n,).

        Raises:
            ShapeError, DTypeError, OutOfRangeError: invalid rows or coefficients, or a coefficient that is not finite;
                nothing has changed.
            LimitError: the servers' memory limit does not allow the spare rows; nothing has changed.
            UsageError: inside ``ps.batch()``, or "rows" of a sparse matrix.
        """
        rows = pairs.Embeddings(self._session, self._target(), self._spare_rows)
        return pairs.update(rows, rows_a, rows_b, coefficients, via)

    @property
    def keyPolicy(self) -> KeyPolicy | None:
        """The rules for when keys get and lose their slots; None if the matrix's keys are not managed."""
        return self._first._target().spec.key_policy

    def mark(self) -> Mark:
        """Return a mark of the current state, for ``changed`` and ``removed``.

        From the first mark on, the servers remember removed keys: the last million of each partition.
        """
        return self._keys("mark").mark()

    def changed(self, since: Mark | None = None, rows: int | None = None) -> Iterator[tuple[Any, Any]]:
        """Yield the keys that were touched since a mark, with their current values, in several pieces.

        Other workers may change the matrix during the iteration. Each piece is consistent. To miss no change, get
        the mark for the next call before this call. A key may occur twice; its last values are the newest.

        Args:
            since: a mark of this matrix; None: yield all keys.
            rows: number of rows to read, beginning with row 0; default: all.

        Yields:
            int64 keys of shape (n,), in any order, and values of shape (n, rows).

        Raises:
            StaleMarkError: the servers do not know what changed, because the matrix was loaded or rolled back to a
                checkpoint after the mark: read all keys instead.
        """
        return self._keys("changed").changed(since, rows)

    def removed(self, since: Mark) -> Any:
        """Return the keys that were removed since a mark: int64 of shape (n,). Some can be active again.

        Raises:
            StaleMarkError: see ``changed``; or more keys were removed than the servers store.
        """
        return self._keys("removed").removed(since)

    def save(self, url: str) -> None:
        """Write all rows in their stored dtype to a folder; ``DCVMatrix.load`` reads it.

        Each server writes its own values. The save is atomic per partition, not across partitions.

        Args:
            url: a path or any fsspec URL that the servers and this process can write to; it must be the same folder
                for all of them. An earlier save in it stays complete until the new save is complete.

        Raises:
            RecoveryError: the save cannot be written; its partial files are removed.
        """
        storage.save(self._first, range(self._rows), url)

    @classmethod
    def load(cls, url: str) -> DCVMatrix:
        """Create a matrix from what ``save`` wrote, on a fleet of any size; the servers read the values.

        Raises:
            UsageError: the folder is a checkpoint of several matrices.
            CheckpointMissingError: there is no complete save at this path.
            CheckpointCorruptError: the files do not match the manifest.
            LimitError: the servers' memory limit does not allow it. After any error nothing stays allocated.
        """
        return cls.of(storage.load_rows(Handle, url))

    @shielded
    def free(self) -> None:
        """Free all rows of the matrix. Every handle to one of them, in any process, fails from now on.

        In a task, as for ``DCV.free``, only this handle fails at once; the others fail when the task's stage is over.
        """
        self._first._check_usable()
        spare = [vector._row for vector in self._spare]
        self._session.free_rows(self._first._matrix, [*range(self._rows), *spare])
        self._disown()
        for vector in (self._first, *self._spare):
            vector._disown()
        self._first._freed = True

    def __getstate__(self) -> dict[str, Any]:
        # Without spare rows, because two tasks would use the same ones.
        return {**self.__dict__, "_loan": self._lend(), "_owner": None, "_spare": []}

    @property
    def _session(self) -> Session:
        return self._first._session

    def _keys(self, call: str) -> ManagedMatrix:
        return self._first._keys(call)

    def _target(self) -> plans.Target:
        first = self._first
        first._check_usable()
        keep_alive(self)
        return plans.Target(first._matrix, replace(first._spec, rows=self._rows), first._route)

    def _colocated(self, label: str, kind: str, operand: Any) -> Handle:
        """Return the handle of an operand after this matrix; raise an error if it is not co-located with it."""
        handle_type = Handle if kind == "row" else DCVMatrix
        if not isinstance(operand, handle_type):
            expected = "DCV" if handle_type is Handle else "DCVMatrix"
            raise DTypeError(f"{label}: expected a {expected}, got {type(operand).__name__}")
        other = operand._first if isinstance(operand, DCVMatrix) else operand
        other._check_usable()
        if other._fleet.id != self._first._fleet.id:
            raise UsageError(f"{label}: {operand!r} belongs to another PS2Context than {self!r}")
        if fault := self._first._colocation_fault(other):
            raise NotColocatedError(f"{label}: {operand!r} and {self!r} are not co-located: {fault}")
        keep_alive(operand)
        return other

    def _spare_rows(self, count: int) -> Int64s:
        """Return the ids of ``count`` rows that only this handle uses. They are freed with the handle."""
        self._spare += derive_all(self._first, max(count - len(self._spare), 0))
        return np.array([vector._row for vector in self._spare[:count]])


def own(matrix: DCVMatrix) -> None:
    """Free all rows of a new matrix when its handle is garbage-collected, although the matrix has a name."""
    session = matrix._session
    matrix._owner = session.owners.add(matrix, matrix.number, list(range(matrix.rows)), session.holder)


def disown(matrix: DCVMatrix) -> None:
    """Keep the rows when the handle is garbage-collected."""
    matrix._disown()
    matrix._first._disown()


@contextmanager
def owning(matrices: Iterable[DCVMatrix]) -> Iterator[None]:
    """Let handles own their rows after the block as before, although tasks that end with the block have copies."""
    handles = [(matrix, handle) for matrix in matrices for handle in (matrix, matrix._first)]
    owners = [(matrix, handle, handle._owner, handle._session) for matrix, handle in handles if handle._owner]
    try:
        yield
    finally:
        for matrix, handle, owner, session in owners:
            if handle._owner is None and not matrix._first._freed:
                handle._owner = session.owners.add(handle, owner.matrix, owner.rows, owner.holder)
