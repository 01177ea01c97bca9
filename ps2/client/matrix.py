"""Many rows of one matrix at once (DeepWalk's embeddings, LDA's counts: paper, sections 5.2.2 and 5.2.4)."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ps2.client import pairs, plans
from ps2.client.batch import hold, submit
from ps2.client.sessions import session_of

if TYPE_CHECKING:
    from ps2.client.dcv import DCV


class DCVMatrix:
    """All rows of a matrix; made by ``DCV.matrix()``. Each call is one request a server, whatever the number of rows.

    Rows are int64 numbers in ``[0, rows)``, any order, duplicates allowed. Like a DCV it works in the driver and in
    tasks; inside ``ps.batch()`` the methods that read return a ``Deferred``.
    """

    def __init__(self, first: DCV, rows: int, owned: list[int]) -> None:
        """Not for users: ``DCV.matrix()`` makes it."""
        self._first = first
        self._rows = rows
        session = session_of(first._fleet)
        self._owner: weakref.finalize[..., Any] | None = weakref.finalize(
            self, session.drop, first._matrix, owned, session.holder
        )
        self._owner.atexit = False

    @classmethod
    def of(cls, vector: DCV) -> DCVMatrix:
        vector._check_usable()
        session = session_of(vector._fleet)
        owned = session.take_rows(vector._matrix)
        return cls(vector, session.matrix(vector._matrix).spec.rows, owned)

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def dim(self) -> int:
        return self._first.dim

    @property
    def shape(self) -> tuple[int, int]:
        return self._rows, self.dim

    def __repr__(self) -> str:
        return f"DCVMatrix(rows={self._rows}, dim={self.dim}, {self._first.dtype}, matrix={self._first._matrix:x})"

    def pull(self, rows: Any, columns: Any = None, out: Any = None) -> Any:
        """Read rows: shape (len(rows), dim), or (len(rows), len(columns)), in the order given, into ``out`` if any."""
        return self._submit(plans.rows_pull(self._target(), rows, columns, out))

    def push(self, rows: Any, values: Any) -> DCVMatrix:
        """Overwrite rows with values of shape (len(rows), dim); of several writes to one row the last wins."""
        self._submit(plans.rows_push(self._target(), "rows_push", rows, values))
        return self

    def add(self, rows: Any, values: Any, columns: Any = None) -> DCVMatrix:
        """Add values of shape (len(rows), dim), or (len(rows), len(columns)); duplicates accumulate."""
        if columns is None:
            plan = plans.rows_push(self._target(), "rows_add", rows, values)
        else:
            plan = plans.rows_scatter_add(self._target(), rows, values, columns)
        self._submit(plan)
        return self

    def dot(self, rows_a: Any, rows_b: Any) -> Any:
        """Return the inner product of each pair of rows: float64 of shape (n,); only scalars travel."""
        return self._submit(plans.rows_dot(self._target(), rows_a, rows_b))

    def axpy(self, rows_y: Any, rows_x: Any, alphas: Any) -> DCVMatrix:
        """Set ``y += alpha * x`` for each pair of rows, one after the other (paper, Equation 2 and Figure 6).

        Args:
            rows_y: rows that change.
            rows_x: rows that are added.
            alphas: float64 of shape (n,), or one number for all.
        """
        self._submit(plans.rows_axpy(self._target(), rows_y, rows_x, alphas))
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
                "servers" takes at most 2,796,202 pairs at once; "rows", and so "auto", any number.

        Returns:
            The dots, float64 of shape (n,).

        Raises:
            ShapeError, DTypeError, OutOfRangeError: rows or coefficients are not as said, or a coefficient is not
                finite; nothing has changed.
            LimitError: more pairs than the servers take, and "rows" is not asked for or the rows are too long for
                "auto" to pull (4 MiB each); nothing has been asked.
            UsageError: inside ``ps.batch()``, or "rows" of a sparse matrix.
        """
        return pairs.update(self, rows_a, rows_b, coefficients, via)

    def __getstate__(self) -> dict[str, Any]:
        if self._owner is not None:
            self._owner.detach()
            self._owner = None
        return dict(self.__dict__)

    def _target(self) -> plans.Target:
        first = self._first
        first._check_usable()
        hold(self)
        return plans.Target(first._matrix, replace(first._spec, rows=self._rows), first._route)

    def _submit(self, plan: plans.Plan[Any]) -> Any:
        return submit(self._first._session, plan)
