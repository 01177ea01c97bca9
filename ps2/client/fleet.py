"""The identity of a fleet, the secrets that a task needs for it, and the rows that are freed with their handle.

Garbage collection may run anywhere in the user's code. Python ignores exceptions that are raised in a weakref
callback, including those of a signal handler that runs there: Ctrl-C would have no effect, and the rows would leak.
The callback is therefore a C function (``deque.append``), in which no signal handler runs.

A pickled copy of a handle may be anywhere, so pickling ends the ownership of its rows. Only a loan does not: it tells
when the plan that contains the copy is gone (``lending``).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import threading
import weakref
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from ps2.certificates import Pems
from ps2.config import RetryConfig
from ps2.errors import UsageError


@dataclass(frozen=True)
class FleetRef:
    """Identifies a fleet. Part of every handle; holds no secret.

    Attributes:
        id: a random id from the coordinator; also the first part of mutation ids in tasks.
        master: ``host:port`` of the coordinator's master.
        strict: True if operations on vectors that are not co-located are an error instead of a warning.
        retry_timeout_s: how long calls wait for the recovery of a lost server, in seconds.
        ops: modules that declare operations.
        token_id: the id of the fleet's token, made with the driver's secret (``token_id``).
    """

    id: str
    master: str
    strict: bool = False
    retry_timeout_s: float = RetryConfig.recovery_s
    ops: tuple[str, ...] = ()
    token_id: str = ""


def fleet_text(ref: FleetRef) -> str:
    """Return a fleet as text, without secrets."""
    return json.dumps(asdict(ref))


def parse_fleet(text: str) -> FleetRef:
    """Return the fleet that ``fleet_text`` wrote."""
    content = json.loads(text)
    return FleetRef(**(content | {"ops": tuple(content["ops"])}))


@dataclass(frozen=True)
class Access:
    """The secrets with which the tasks of one SparkContext reach the fleets of its driver.

    Attributes:
        secret: the secret of the driver's process. The tokens of the fleets that it starts are derived from it.
        application: the id of the Spark application. Mutation ids need it, because each application counts its stages
            from 0, and a fleet can serve several applications.
        token: the token of the attached fleet; None if no fleet is attached, or its servers have none.
        tls: the certificates for connections to the fleet; None if the fleet has no TLS.
    """

    secret: str = field(repr=False)
    application: str
    token: str | None = field(default=None, repr=False)
    tls: Pems | None = None

    def fleet_token(self, fleet: FleetRef) -> str | None:
        """Return a fleet's token; None if its servers have none."""
        for token in (derived_token(self.secret, fleet.id), self.token, None):
            if hmac.compare_digest(token_id(self.secret, token), fleet.token_id):
                return token
        raise UsageError(
            f"this task does not have the token of this vector's fleet {fleet.id}: the vector belongs to the context "
            "of another driver, or to a stopped context"
        )

    def run_token(self, fleet: FleetRef) -> str:
        """Return the token that a worker and its run use to authenticate each other. Runs always need a token."""
        return self.fleet_token(fleet) or derived_token(self.secret, fleet.id)


def derived_token(secret: str, fleet_id: str) -> str:
    """Return the token of a fleet that a driver starts."""
    return urlsafe_b64encode(_hmac_sha256(secret, f"token of fleet {fleet_id}")).decode().rstrip("=")


def token_id(secret: str, token: str | None) -> str:
    """Return an id of a fleet's token. It reveals nothing about the token to processes that do not know the secret."""
    return _hmac_sha256(secret, "no token" if token is None else f"id of token {token}").hex()[:16]


def _hmac_sha256(secret: str, text: str) -> bytes:
    return hmac.digest(secret.encode(), text.encode(), hashlib.sha256)


def mutation_id_prefix(fleet_id: str, application: str) -> str:
    """Return the common prefix of mutation ids of an application's tasks."""
    return f"{fleet_id}/{application}"


def seal(access: Access) -> str:
    """Return the access as text for one environment variable."""
    return json.dumps(asdict(access))


@lru_cache(maxsize=8)  # a task calls this with every mutation
def unseal(text: str) -> Access:
    content = json.loads(text)
    return Access(**(content | {"tls": Pems(**content["tls"]) if content["tls"] is not None else None}))


class Loan(NamedTuple):
    """The lifetime of the pickled copies in one plan of Spark.

    Attributes:
        token: an object that each copy contains.
        is_over: returns whether the plan is gone; must not refer to the token.
    """

    token: Any
    is_over: Callable[[], bool]


class _Lending(threading.local):
    """The state of ``lending`` in this thread."""

    make: Callable[[], Loan | None] | None = None
    loan: Loan | None = None


_lending = _Lending()


@contextlib.contextmanager
def lending(make: Callable[[], Loan | None]) -> Iterator[None]:
    """Let the handles that this thread pickles in the block own their rows until their plan is gone, too.

    ``make`` makes the loan, when the first handle is pickled; if it returns None, pickling ends the ownership.
    """
    earlier, _lending.make, _lending.loan = _lending.make, make, None
    try:
        yield
    finally:
        _lending.make, _lending.loan = earlier, None


def current_loan() -> Loan | None:
    """Return the loan of the innermost ``lending``; None: there is none."""
    if _lending.loan is None and _lending.make is not None:
        _lending.loan = _lending.make()
    return _lending.loan


class Owner(weakref.ref[Any]):
    """A weak reference to a handle, with the rows to free when the handle is garbage-collected."""

    __slots__ = ("_loans", "_owners", "holder", "matrix", "rows")

    matrix: int
    rows: Sequence[int]
    holder: str  # the task attempt or session to which the master has allocated the rows
    _owners: dict[int, Owner]
    _loans: deque[Callable[[], bool]]

    def lend(self, is_over: Callable[[], bool]) -> None:
        """Keep the rows also until ``is_over()``."""
        self.is_on_loan()
        self._loans.append(is_over)

    def is_on_loan(self) -> bool:
        """Return whether a pickled copy of the handle may still be used."""
        while self._loans and self._loans[0]():
            self._loans.popleft()
        return bool(self._loans)

    def detach(self) -> None:
        """Keep the rows when the handle is garbage-collected."""
        self._owners.pop(id(self), None)


class Owners:
    """The rows of one session's handles. Thread-safe."""

    def __init__(self) -> None:
        self._owners: dict[int, Owner] = {}
        self._collected: deque[Owner] = deque()

    def add(self, handle: object, matrix: int, rows: Sequence[int], holder: str) -> Owner:
        """Free ``rows``, a list that may still grow, when the handle is garbage-collected."""
        owner = Owner(handle, self._collected.append)
        owner.matrix, owner.rows, owner.holder, owner._owners = matrix, rows, holder, self._owners
        owner._loans = deque()
        self._owners[id(owner)] = owner
        return owner

    def pop_collected(self) -> Iterator[Owner]:
        """Yield each owner of a garbage-collected handle, once, when no copy is on loan."""
        with contextlib.suppress(IndexError):  # another thread has just emptied the queue
            for _ in range(len(self._collected)):
                owner = self._collected.popleft()
                if owner.is_on_loan():
                    self._collected.append(owner)
                    continue
                owner.detach()
                yield owner
