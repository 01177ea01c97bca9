"""Many rows of one matrix at once (DeepWalk's embeddings, LDA's counts: paper, sections 5.2.2 and 5.2.4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ps2.client import blocks, pairs, plans, storage
from ps2.client.arguments import Distribution, draw_of
from ps2.client.batch import hold, submit, submit_later
from ps2.client.declared import declared
from ps2.client.handle import Handle, derive_all, known
from ps2.client.owners import Owner
from ps2.client.session import Session
from ps2.client.sessions import session_of
from ps2.errors import ConfigError, DTypeError, NotColocatedError, UsageError
from ps2.interrupts import shielded
from ps2.ops.all import has_answer, lookup
from ps2.ops.kernels import Int64s


class DCVMatrix:
    """All rows of a matrix; made by ``DCV.matrix()``. Each call is one request a server, whatever the number of rows.

    Rows are int64 numbers in ``[0, rows)``, any order, duplicates allowed. Like a DCV it works in the driver and in
    tasks; inside ``ps.batch()`` the methods that read return a ``Deferred``.

    Methods that change rows return the matrix. With ``wait=False`` they return at once, with a copy of the values on
    its way: at most 64 MB, then they wait for some to be applied. The next call that waits, of whatever vector or
    matrix, comes after them, and raises what failed; ``flush()`` does nothing else. Additions may overtake each other,
    but nothing overtakes a ``push``. A task must end with a call that waits.

    The rows that it took are freed with it, or, where it was made of a vector with a name, by ``free()`` alone: then
    ``ps.vector(name).matrix()`` finds them again in a later driver.
    """

    def __init__(self, first: Handle, rows: int, owned: list[int]) -> None:
        """Not for users: ``DCV.matrix()`` makes it."""
        self._first = first
        self._rows = rows
        self._owned = owned
        self._spare: list[Handle] = []
        self._owner: Owner | None = None
        if not first._is_named:
            session = session_of(first._fleet)
            self._owner = session.owners.add(self, first._matrix, owned, session.holder)

    @classmethod
    @shielded
    def of(cls, vector: Handle) -> DCVMatrix:
        vector._check_usable()
        session = session_of(vector._fleet)
        owned = session.take_rows(vector._matrix)
        return cls(vector, session.matrix(vector._matrix).spec.rows, owned)

    @classmethod
    def known(cls, matrix: int) -> DCVMatrix:
        """Return a handle to a matrix that another process has made, by its number; it takes no rows and frees none.

        Raises:
            NotFoundError: there is no such matrix.
        """
        first = known(Handle, matrix)
        return cls(first, first._spec.rows, [])

    @property
    def number(self) -> int:
        """What ``known`` finds it by."""
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
        """Add rows of zeros until there are so many; handles that know the matrix already do not know them.

        Raises:
            LimitError: the servers' memory limit does not allow it.
            UsageError: the matrix has layout "column", or others have taken rows of it meanwhile.
        """
        self._first._check_usable()
        if rows <= self._rows:
            return self
        session, number = self._session, self.number
        taken = session.take_rows(number, rows - self._rows)
        if taken != list(range(self._rows, rows)):
            session.free_rows(number, taken)
            raise UsageError(f"{self!r} cannot grow: others have taken rows of it")
        self._owned += taken
        self._rows = rows
        return self

    def __repr__(self) -> str:
        return f"DCVMatrix(rows={self._rows}, dim={self.dim}, {self._first.dtype}, matrix={self._first._matrix:x})"

    def pull(self, rows: Any = None, columns: Any = None, out: Any = None) -> Any:
        """Read rows: shape (len(rows), dim), or (len(rows), len(columns)), in the order given, into ``out`` if any.

        Without arguments, all rows: ``shape``. In layout "column", columns alone: shape (len(columns), rows of the
        matrix).
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
        """Overwrite rows with values of shape (len(rows), dim); of several writes to one row the last wins.

        In layout "column", columns alone, with values of shape (len(columns), rows of the matrix).
        """
        if rows is None:
            return self._change(blocks.push(self._target(), columns, values), wait)
        if columns is not None:
            raise UsageError("push: expected rows or columns, got both; add takes both")
        return self._change(plans.rows_push(self._target(), "rows_push", rows, values), wait)

    def add(self, rows: Any = None, values: Any = None, columns: Any = None, wait: bool = True) -> DCVMatrix:
        """Add values of shape (len(rows), dim), or (len(rows), len(columns)); duplicates accumulate.

        In layout "column", columns alone, with values of shape (len(columns), rows of the matrix).
        """
        if rows is None:
            plan = blocks.add(self._target(), columns, values)
        elif columns is None:
            plan = plans.rows_push(self._target(), "rows_add", rows, values)
        else:
            plan = plans.rows_scatter_add(self._target(), rows, values, columns)
        return self._change(plan, wait)

    def flush(self) -> DCVMatrix:
        """Wait until all that this process has changed with ``wait=False`` is applied; raise what failed of it."""
        self._session.dispatch.flush()
        return self

    def fill(self, value: float, rows: Any = None) -> DCVMatrix:
        """Set every element of some rows, or of all, to a number; of a sparse matrix those of the active keys."""
        target = self._target()
        plan = blocks.fill if target.spec.layout == "column" else plans.rows_fill
        return self._change(plan(target, rows, value))

    def zero(self, rows: Any = None) -> DCVMatrix:
        """Set every element of some rows, or of all, to 0."""
        return self.fill(0, rows)

    def apply(self, name: str, wait: bool = True, **given: Any) -> Any:
        """Run an operation that is declared for whole matrices (``ps2 ops``; docs/kernels.md) on the servers.

        Args:
            name: such as "gram" or "rows_dot", or one of your own.
            wait: False: as for ``add``, of an operation that changes data and returns nothing. It may overtake others,
                and others it.
            given: its arrays and scalars. What they run along decides what of them each server gets. Also the vectors
                and matrices that it takes after this one, a DCV for a row and a DCVMatrix for a block: co-located with
                this one, and of its dtype unless the operation says another.

        Returns:
            What it declares to return, of all partitions together; None if it returns nothing.

        Raises:
            NotFoundError, ConfigError, DTypeError, ShapeError: no such operation, or not with these arguments.
            NotColocatedError: what it takes is not co-located with this matrix.
            UsageError: ``wait=False`` for an operation that returns something.
        """
        op = lookup(name)
        if not wait and (has_answer(name) or not op.writes):
            raise UsageError(f"operation {name!r} returns something: wait=False goes with those that only change data")
        # Those whose first operand is a vector are the vectors' to call.
        further = op.of_shard[1:] if op.row_names[:1] != op.reads[:1] else ()
        if missing := [operand for operand, _ in further if operand not in given]:
            raise ConfigError(f"operation {name!r}: {missing[0]}: required, but not given")
        others = [self._colocated(f"operation {name!r}: {o}", kind, given.pop(o)) for o, kind in further]
        rows = tuple(other._row for other, (_, kind) in zip(others, further, strict=True) if kind == "row")
        target = replace(self._target(), rows=rows, others=self._first._others(others))
        plan = declared(target, name, given)
        if wait:
            return self._submit(plan)
        submit_later(self._session, plan)
        return None

    def dot(self, rows_a: Any, rows_b: Any) -> Any:
        """Return the inner product of each pair of rows: float64 of shape (n,); only scalars travel."""
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
        """Overwrite some rows, or all, with random numbers that the servers draw; nothing travels.

        A number depends on the seed, its row and its column alone: it is the same on any number of servers.

        Args:
            distribution: "uniform" between ``low`` (0) and ``high`` (1, itself left out but for rounding), or "normal"
                with ``mean`` (0) and ``std`` (1).
            seed: any int64.

        Raises:
            ConfigError, DTypeError: a parameter cannot be used, or is of the other distribution.
            UsageError: the matrix is sparse: it has no columns until they are added to.
        """
        how = draw_of(distribution, {"low": low, "high": high, "mean": mean, "std": std})
        return self._change(plans.rows_random(self._target(), rows, {"seed": seed, **how}))

    def axpy(self, rows_y: Any, rows_x: Any, alphas: Any) -> DCVMatrix:
        """Set ``y += alpha * x`` for each pair of rows, one after the other (paper, Equation 2 and Figure 6).

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

        With ``c = lr * (label - sigmoid(dot))`` it is one step of skip-gram with negative sampling (section 5.2.2).
        Every a and b on the right is the value before the update; rows in several pairs accumulate all changes.

        Args:
            rows_a, rows_b: the rows of n pairs.
            coefficients: called once in this process with the dots, float64 of shape (n,); returns as many numbers.
            via: "servers" computes where the rows are, and only scalars travel; "rows" pulls the rows, computes here
                and adds the differences; "auto" takes the one that should be faster, by costs that it measures
                (docs/decisions/0007). The results are equal up to rounding. What other workers change between the
                two requests is kept; "servers" then adds multiples of the changed rows, "rows" of those it pulled.
                More than 2,796,202 pairs, "servers" adds up in as many rows more as the pairs name; these are kept
                for the next time.

        Returns:
            The dots, float64 of shape (n,).

        Raises:
            ShapeError, DTypeError, OutOfRangeError: rows or coefficients are not as said, or a coefficient is not
                finite; nothing has changed.
            LimitError: the servers' memory limit does not allow these rows; nothing has changed.
            UsageError: inside ``ps.batch()``, or "rows" of a sparse matrix.
        """
        rows = pairs.Embeddings(self._session, self._target(), self._spare_rows)
        return pairs.update(rows, rows_a, rows_b, coefficients, via)

    def save(self, url: str) -> None:
        """Write all rows, as they are stored, to a folder; ``DCVMatrix.load`` reads it.

        The servers write the values, each its own. What lies in one partition is saved as it is at one moment; the
        moments of two partitions may differ.

        Args:
            url: a path or any fsspec URL that the servers and this process can write, and that is one place for all of
                them. What was saved there before stays whole until the new one is.

        Raises:
            RecoveryError: it cannot be written; nothing is left of it.
        """
        storage.save(self._first, range(self._rows), url)

    @classmethod
    def load(cls, url: str) -> DCVMatrix:
        """Make a matrix of what ``save`` wrote, on a fleet of any size; the servers read the values.

        Raises:
            UsageError: it is a checkpoint of several matrices.
            CheckpointMissingError: there is no complete save at this place.
            CheckpointCorruptError: the files are not what the manifest says.
            LimitError: the servers' memory limit does not allow it. After any error nothing stays allocated.
        """
        return cls.of(storage.load_rows(Handle, url))

    @shielded
    def free(self) -> None:
        """Give all rows of the matrix back, whoever uses them: every handle to one of them fails from now on.

        In a task as ``DCV.free``: this handle fails from now on, the others when the task's stage is over.
        """
        self._first._check_usable()
        spare = [vector._row for vector in self._spare]
        self._session.free_rows(self._first._matrix, [*range(self._rows), *spare])
        self._disown()
        for vector in (self._first, *self._spare):
            vector._disown()
        self._first._freed = True

    def __getstate__(self) -> dict[str, Any]:
        self._disown()
        return {**self.__dict__, "_spare": []}  # two tasks would use them at once

    @property
    def _session(self) -> Session:
        return self._first._session

    def _target(self) -> plans.Target:
        first = self._first
        first._check_usable()
        hold(self)
        return plans.Target(first._matrix, replace(first._spec, rows=self._rows), first._route)

    def _colocated(self, where: str, kind: str, given: Any) -> Handle:
        """Return the handle of what an operation takes beside this matrix."""
        wanted = Handle if kind == "row" else DCVMatrix
        if not isinstance(given, wanted):
            expected = "DCV" if wanted is Handle else "DCVMatrix"
            raise DTypeError(f"{where}: expected a {expected}, got {type(given).__name__}")
        other = given._first if isinstance(given, DCVMatrix) else given
        other._check_usable()
        if other._fleet.id != self._first._fleet.id:
            raise UsageError(f"{where}: {given!r} is of another context than {self!r}")
        if why := self._first._apart(other):
            raise NotColocatedError(f"{where}: {given!r} and {self!r} are not co-located: {why}")
        hold(given)
        return other

    def _submit(self, plan: plans.Plan[Any]) -> Any:
        return submit(self._session, plan)

    def _change(self, plan: plans.Plan[Any], wait: bool = True) -> DCVMatrix:
        if wait:
            self._submit(plan)
        else:
            submit_later(self._session, plan)
        return self

    def _spare_rows(self, count: int) -> Int64s:
        """Return rows beyond those of this handle, which are given back when it is gone."""
        self._spare += derive_all(self._first, max(count - len(self._spare), 0))
        return np.array([vector._row for vector in self._spare[:count]])

    def _disown(self) -> None:
        if self._owner is not None:
            self._owner.detach()
            self._owner = None
