"""The handle of one row: its ids, route, ownership of the row and pickling; and calls on managed keys."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np

from ps2.client.batch import STATE, keep_alive, submit, submit_later
from ps2.client.fleet import FleetRef, Owner, current_loan
from ps2.client.managed_matrix import KeyStatus, ManagedMatrix
from ps2.client.plans import Plan, Target
from ps2.client.published import published_session
from ps2.client.session import Session
from ps2.client.sessions import current_session, session_of
from ps2.client.task import record_unpickled, record_use
from ps2.config import read_namespace
from ps2.errors import ConfigError, NotFoundError, UsageError
from ps2.formats import size
from ps2.interrupts import shielded
from ps2.matrix.partition import MatrixSpec
from ps2.matrix.route import Route, why_not_colocated
from ps2.text_tables import Column, Table, named_values, to_html

K = TypeVar("K", bound="KeyCalls")


class KeyCalls:
    """Base class of the handles of vectors and matrices: calls on managed keys, which act on the whole matrix."""

    _owner: Owner | None

    @shielded
    def advance(self: K, nowS: float, touched: bool = False) -> K:
        """Set the time of the matrix, for ``clock="event"``; return this handle. The time never goes back.

        Args:
            nowS: the time in seconds, from 0 to 1e15.
            touched: True: keys that were touched since the last ``advance`` count as touched at this time. This is for
                programs that know the newest time of a batch of events only after they have learned it.

        Raises:
            OutOfRangeError: the time is before the current one.
            ConfigError: the time is not a number in this range.
            UsageError: the matrix's keys have no admission, expiry, limit or initial values; or inside ``ps.batch()``.
        """
        self._keys("advance").advance(nowS, touched)
        return self

    @shielded
    def expire(self, olderThanS: float | None = None) -> int:
        """Remove the keys whose last touch is at least ``olderThanS`` ago, from all rows; return how many were removed.

        Args:
            olderThanS: seconds; default: the matrix's ``expireAfterS``.

        Raises:
            ConfigError: ``olderThanS`` is not a number of seconds, or neither it nor ``expireAfterS`` is set.
            UsageError: see ``advance``.
        """
        return self._keys("expire").expire(olderThanS)

    @shielded
    def evict(self, keep: int) -> int:
        """Remove the least recently touched keys until about ``keep`` are left; return how many were removed.

        Each partition keeps an equal share of ``keep``.

        Raises:
            ConfigError: ``keep`` is not a number of keys.
            UsageError: see ``advance``.
        """
        return self._keys("evict").evict(keep)

    @shielded
    def remove(self, keys: Any) -> int:
        """Remove keys from all rows of the matrix; return how many of them had a slot.

        Args:
            keys: int64 of shape (n,), any order, duplicates allowed.

        Raises:
            DTypeError, OutOfRangeError: the keys are not integers, or one is not in ``[0, dim)``.
            UsageError: see ``advance``.
        """
        return self._keys("remove").remove(keys)

    @shielded
    def keyStatus(self) -> KeyStatus:
        """Return the counts of the matrix's keys, and its time; raise UsageError as ``advance`` does."""
        return self._keys("keyStatus").status()

    def _keys(self, call: str) -> ManagedMatrix:
        """Return the matrix's managed keys; raise UsageError, which names ``call``, if it has no ``KeyPolicy``."""
        raise NotImplementedError

    @property
    def _session(self) -> Session:
        raise NotImplementedError

    def _submit(self, plan: Plan[Any]) -> Any:
        return submit(self._session, plan)

    def _change(self: K, plan: Plan[Any], wait: bool = True) -> K:
        """Submit a plan that changes the vector or matrix; with ``wait=False``, queue it."""
        if wait:
            self._submit(plan)
        else:
            submit_later(self._session, plan)
        return self

    def _disown(self) -> None:
        """Keep the rows when this handle is garbage-collected."""
        if self._owner is not None:
            self._owner.detach()
            self._owner = None

    def _lend(self) -> Any:
        """Return the token of the current loan, for a copy of this handle; without a loan, keep the rows for ever."""
        if self._owner is not None and (loan := current_loan()) is not None:
            self._owner.lend(loan.is_over)
            return loan.token
        self._disown()
        return None


MAX_NAME = 255

H = TypeVar("H", bound="Handle")


class Handle(KeyCalls):
    """One row of a matrix on the fleet. ``DCV`` adds the computations.

    ``free()`` frees the row. So does garbage collection of a handle that was never pickled and has no name. A copy that
    a model's ``transform`` pickles does not count once Spark's plan of its DataFrame is gone (``lending``).
    """

    _namespace = ""  # the other namespace to which an opened vector belongs; "": the vector is of this context

    def __init__(self, fleet: FleetRef, matrix: int, row: int, spec: MatrixSpec, route: Route) -> None:
        """Not for users: ``DCV.dense``, ``DCV.sparse``, ``derive`` and ``load`` create vectors."""
        self._fleet = fleet
        self._matrix = matrix
        self._row = row
        self._spec = spec
        self._route = route
        self._freed = False
        self._name = ""
        self._copy = ""  # the id of the pickled copy; "": this handle was not unpickled
        self._owner: Owner | None = None
        self._as_target: Target | None = None

    @classmethod
    @shielded
    def existing(cls: type[H], name: str) -> H:
        """Return the vector of that name, in the driver or in a task.

        Raises:
            NotFoundError: there is no such vector; the message lists the names.
        """
        session = current_session()
        row, info = session.find_vector(_checked_name(name))
        vector = cls(session.fleet, info.id, row, info.spec, info.route)
        vector._name = name
        return vector

    @classmethod
    @shielded
    def open(cls: type[H], path: str) -> H:
        """Return a read-only handle to a named vector of another namespace on the same fleet, as "namespace/name".

        It works in the driver, and pickled in tasks. Reads (``pull``, ``sum``, ``dot`` ...) see the current values,
        which the other driver and its tasks may change at any time. Changes raise UsageError.

        Raises:
            ConfigError: the path is not of this form.
            NotFoundError: the other namespace has no vector with this name; the message lists the names.
            UsageError: in a task.
        """
        namespace, slash, name = path.partition("/") if isinstance(path, str) else ("", "", "")
        if not slash:
            raise ConfigError(f"open: expected 'namespace/name', got {path!r}")
        read_namespace(namespace, "open")
        session = current_session()
        if not (addresses := session.server_addresses()):
            raise UsageError("open: call it in the driver; a task gets the vector by its function's closure")
        published = published_session(session, namespace, addresses)
        row, info = published.find_vector(_checked_name(name))
        vector = cls(session.fleet, info.id, row, info.spec, info.route)
        vector._name, vector._namespace = name, namespace
        return vector

    @shielded
    def derive(self: H, name: str | None = None) -> H:
        """Create a vector of zeros co-located with this one (paper, section 4.3). ``DCV.derive(u)`` is the same.

        Args:
            name: the name by which ``ps.vector(name)`` finds the vector, here and in a later driver. A named vector
                stays until ``free()``.

        Raises:
            ConfigError: another vector has this name.
            LimitError: the matrix must grow, and the servers' memory limit does not allow it.
            UsageError: the matrix must grow, but has layout "column"; or its next row begins with random values
                (``DCV.sparse(..., init=, initEnd=)``).
        """
        vector = self._sibling(_take_rows(self, 1, _checked_name(name))[0])
        vector._name = name or ""
        return vector if name else _owned(self._session, vector)

    duplicate = derive

    def free(self) -> None:
        """Free the row; every handle to it fails from now on. The matrix is freed with its last row.

        In a task, only this handle fails at once; the others fail when the task's stage is over, because another
        attempt of the task would write to the row again.
        """
        free_all([self])

    @property
    def dim(self) -> int:
        return self._spec.dim

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._spec.np_dtype

    @property
    def isSparse(self) -> bool:
        return self._spec.kind == "sparse"

    def isColocated(self, other: Handle) -> bool:
        """Return True if equal columns of both vectors are on the same server, so that operations on both move no data.

        Dense vectors are co-located if their partitionings and owners are equal, whatever their dtypes and row counts.
        Sparse vectors are co-located if they belong to one matrix.
        """
        return self._fleet.id == other._fleet.id and not self._colocation_fault(other)

    def __len__(self) -> int:
        return self.dim

    def __bool__(self) -> bool:
        return True  # len() fails at 2**63

    def __repr__(self) -> str:
        path = f"{self._namespace}/{self._name}" if self._namespace else self._name
        name = f"{path!r}, " if path else ""
        details = f"{self._spec.dtype}, layout={self._spec.layout!r}, matrix={self._matrix:x}, row={self._row}"
        return f"DCV({name}{self._spec.kind}, dim={self.dim}, {details})"

    def _repr_html_(self) -> str:
        return matrix_html(repr(self), self._spec, self._route, 1)

    def __getstate__(self) -> dict[str, Any]:
        # A copy may exist in tasks or on disk, so this process no longer knows when the row has no handle.
        self._check_usable()
        token = self._lend()
        session_of(self._fleet)  # a stopped context raises here instead of in every task
        copy = {"_owner": None, "_loan": token, "_as_target": None, "_copy": uuid.uuid4().hex[:12]}
        return {**self.__dict__, **copy}

    def __setstate__(self, state: dict[str, Any]) -> None:
        record_unpickled(state["_copy"], state["_fleet"])
        self.__dict__.update(state)

    @property
    def _session(self) -> Session:
        if self._copy:
            record_use(self._copy, self._fleet)
        session = session_of(self._fleet)
        return published_session(session, self._namespace, self._route.servers) if self._namespace else session

    def _target(self, *others: Handle) -> Target:
        for vector in (self, *others):
            if vector._freed:
                vector._check_usable()
        if STATE.newest is not None:
            keep_alive(self, *others)
        if not others:
            if self._as_target is None:
                self._as_target = Target(self._matrix, self._spec, self._route, (self._row,))
            return self._as_target
        rows = (self._row, *[other._row for other in others])
        return Target(self._matrix, self._spec, self._route, rows, self._others(others))

    def _others(self, others: Sequence[Handle]) -> tuple[tuple[int, str], ...]:
        """Return the matrix and dtype of each vector; an empty tuple if all belong to this vector's matrix."""
        if all(map(self._is_sibling, others)):
            return ()
        return tuple((other._matrix, other._spec.dtype) for other in others)

    def _is_sibling(self, other: Handle) -> bool:
        return self._fleet.id == other._fleet.id and self._matrix == other._matrix

    def _colocation_fault(self, other: Handle) -> str:
        """Return the reason why a vector of the same fleet is not co-located with this one; "" if it is."""
        if self._namespace != other._namespace:
            return "they belong to different namespaces"
        if self._is_sibling(other):
            return ""
        return why_not_colocated(self._spec, self._route, other._spec, other._route)

    def _stored(self) -> Target:
        """Return the row as a target without a wire dtype, for files and copies."""
        target = self._target()
        return replace(target, spec=replace(target.spec, wire=None))

    def _keys(self, call: str) -> ManagedMatrix:
        """Return the matrix's managed keys; raise UsageError, which names ``call``, if it has no ``KeyPolicy``."""
        return ManagedMatrix.of(call, self._session, self._target())

    def _sibling(self: H, row: int) -> H:
        return type(self)(self._fleet, self._matrix, row, self._spec, self._route)

    def _check_usable(self) -> None:
        if self._freed:
            raise NotFoundError(f"{self!r} was freed")


@shielded
def create(kind: type[H], spec: MatrixSpec, name: str | None = None, reuse: bool = False) -> H:
    """Create a vector of zeros, as the first row of a new matrix. With ``reuse``, return a vector that has this name.

    Raises ConfigError if a vector has this name, and its spec differs or ``reuse`` is false.
    """
    session = current_session()
    checked = _checked_name(name)
    if reuse:
        if not checked:
            raise ConfigError("reuse: expected the name of the vector, got name=None")
        row, info = session.find_or_create(spec, checked)
        _check_same(checked, info.spec, spec)
    else:
        row, info = 0, session.new_matrix(spec, checked)
    vector = kind(session.fleet, info.id, row, info.spec, info.route)
    vector._name = checked
    return vector if name else _owned(session, vector)


def _check_same(name: str, existing: MatrixSpec, requested: MatrixSpec) -> None:
    """Raise ConfigError if the two specs differ in more than the number of rows."""
    differing = [
        (setting.name, getattr(existing, setting.name), getattr(requested, setting.name))
        for setting in fields(MatrixSpec)
        if setting.name != "rows" and getattr(existing, setting.name) != getattr(requested, setting.name)
    ]
    if differing:
        existing_values = ", ".join(f"{setting}={value}" for setting, value, _ in differing)
        values = ", ".join(f"{setting}={value}" for setting, _, value in differing)
        raise ConfigError(f"vector {name!r} exists with {existing_values}, got {values}")


@shielded
def existing_handle(kind: type[H], matrix: int) -> H:
    """Return a handle, which frees nothing, to the first row of a matrix; raise NotFoundError if it does not exist."""
    session = current_session()
    info = session.matrix(matrix)
    return kind(session.fleet, info.id, 0, info.spec, info.route)


@shielded
def derive_all(vector: H, count: int) -> list[H]:
    """Create ``count`` vectors as ``vector.derive()`` does, with one call."""
    vector._check_usable()
    rows = _take_rows(vector, count) if count else []
    return [_owned(vector._session, vector._sibling(row)) for row in rows]


def _take_rows(vector: Handle, count: int, name: str = "") -> list[int]:
    """Allocate rows of zeros in the vector's matrix for new vectors; return the row ids."""
    vector._check_usable()
    rows, policy = vector._session.take_rows(vector._matrix, count, name), vector._spec.key_policy
    if policy is not None and (random_rows := [row for row in rows if policy.initial.is_random(row)]):
        vector._session.free_rows(vector._matrix, rows)
        raise UsageError(
            f"derive: a new vector begins as zeros, but row {random_rows[0]} of this matrix begins as "
            f"{policy.initial.kind}: create the matrix with initEnd=1, or use its rows by matrix()"
        )
    return rows


@shielded
def free_all(vectors: Iterable[Handle]) -> None:
    """Free vectors of one fleet, with one call to the master per matrix."""
    by_matrix: dict[int, list[Handle]] = {}
    for vector in vectors:
        vector._check_usable()
        by_matrix.setdefault(vector._matrix, []).append(vector)
    for matrix, handles in by_matrix.items():
        handles[0]._session.free_rows(matrix, [vector._row for vector in handles])
        for vector in handles:
            vector._disown()
            vector._freed = True


def _owned(session: Session, vector: H) -> H:
    """Free the vector's row when this handle is garbage-collected; return the vector."""
    vector._owner = session.owners.add(vector, vector._matrix, [vector._row], session.holder)
    return vector


def _checked_name(name: str | None) -> str:
    if name is None:
        return ""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        actual = f"{len(name):,} characters" if isinstance(name, str) and len(name) > MAX_NAME else repr(name)
        raise ConfigError(f"name: expected a string of 1 to {MAX_NAME} printable characters, got {actual}")
    return name


# The columns of the HTML tables of dense and of sparse matrices.
COLUMNS = Column("partition", right=True), Column("columns", right=True), Column("server")
BUCKETS = COLUMNS[0], Column("buckets of keys", right=True), COLUMNS[2]


def matrix_html(title: str, spec: MatrixSpec, route: Route, rows: int) -> str:
    """Return the HTML of ``rows`` rows of a matrix, with the columns of each server."""
    is_dense = spec.kind == "dense"
    properties = named_values(
        bytes=size(rows * spec.dim * spec.np_dtype.itemsize) if is_dense else None, wire=spec.wire
    )
    lines = [
        [str(partition.index), f"{partition.begin:,} to {partition.end - 1:,}", address]
        for partition, address in zip(route.partitions, route.addresses, strict=True)
    ]
    return to_html(title, *([properties] if properties.rows else []), Table(COLUMNS if is_dense else BUCKETS, lines))
