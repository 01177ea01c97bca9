"""``with batch():`` calls issued inside travel together, as one request a server, in order."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from ps2.client.plans import Plan
from ps2.client.session import Session
from ps2.errors import UsageError
from ps2.interrupts import SHIELD
from ps2.protocol.messages import Operation

T = TypeVar("T")


class Deferred(Generic[T]):
    """The answer of a call issued inside a batch; there is one when the batch has been sent."""

    def __init__(self) -> None:
        self._answer: list[T] = []

    def result(self) -> T:
        """Return the answer.

        Raises:
            UsageError: the batch is still open, or it failed.
        """
        if not self._answer:
            raise UsageError("this result is there when its `with batch():` block has ended without an error")
        return self._answer[0]

    def __repr__(self) -> str:
        return f"Deferred({self._answer[0]!r})" if self._answer else "Deferred(pending)"


@dataclass
class _Batch:
    """Calls to send together; the first one decides whose session sends them.

    Attributes:
        end: a weak reference to what ends the batch, and goes with its ``with`` statement; None: an ExitStack's batch.
        handles: the vectors that they are about: a row whose handle is garbage-collected may go to somebody else.
    """

    end: Callable[[], object] | None
    session: Session | None = None
    calls: list[tuple[Plan[Any], Deferred[Any]]] = field(default_factory=list)
    handles: list[object] = field(default_factory=list)


class _Open(threading.local):
    """The batch that this thread is filling, if any.

    Attributes:
        filling: the same; but one whose ``with`` statement is gone may still be here.
    """

    filling: _Batch | None = None
    # Of the ``with`` statement that is about to call ``__enter__``.
    end: Callable[[], object] | None = None

    @property
    def batch(self) -> _Batch | None:
        """The open batch; one whose ``with`` statement is gone is not open any more."""
        if self.filling is not None and self.filling.end is not None and self.filling.end() is None:
            self.filling = None
        return self.filling

    @batch.setter
    def batch(self, batch: _Batch | None) -> None:
        self.filling = batch


OPEN = _Open()


def _end(kind: type[BaseException] | None, *_: object) -> None:
    with SHIELD:
        ended, OPEN.batch = OPEN.batch, None
        if kind is None and ended is not None and ended.session is not None:
            answers = ended.session.dispatch.run([plan for plan, _ in ended.calls])
            for (_plan, deferred), answer in zip(ended.calls, answers, strict=True):
                deferred._answer.append(answer)


class _End:
    """What a ``with`` statement calls at its end, and what nothing but that statement holds.

    A signal's handler may raise before the first step of any ``__exit__``. Then the statement is left, and this goes
    with it: no frame of the traceback has it, as ``_end`` is not given it.
    """

    __slots__ = ("__weakref__",)
    __call__ = staticmethod(_end)


class _Exit:
    """``__exit__``: a new ``_End`` for each ``with`` statement, which asks for it before it calls ``__enter__``."""

    def __get__(self, batching: Batching | None, _: type[Batching]) -> Callable[..., None]:
        if batching is None:  # an ExitStack asks the class
            OPEN.end = None
            return lambda _batching, *error: _end(*error)
        end = _End()
        OPEN.end = weakref.ref(end)
        return end


class Batching(ContextDecorator):
    """What ``batch()`` returns."""

    __exit__ = _Exit()

    def __enter__(self) -> None:
        if OPEN.batch is not None:
            raise UsageError("batches do not nest")
        OPEN.batch = _Batch(OPEN.end)


def batch() -> Batching:
    """Collect the calls on vectors of one fleet that this thread issues, and send them at the end of the block.

    Inside, calls that change data return their vector as always; calls that read return a ``Deferred``. If the block
    raises, nothing is sent. A user's function (``mapPartitions``) and vectors that are not co-located do not batch.
    """
    return Batching()


def in_batch() -> bool:
    return OPEN.batch is not None


def hold(*handles: object) -> None:
    """Keep handles, and so their rows, until the open batch has been sent."""
    if OPEN.batch is not None:
        OPEN.batch.handles += handles


def submit(session: Session, plan: Plan[T]) -> T | Deferred[T]:
    """Run a plan, or put it into the open batch."""
    if OPEN.filling is None:
        answer: T = session.dispatch.run((plan,))[0]
        return answer
    return submit_all(session, [plan])[0]


def submit_all(session: Session, plans: Sequence[Plan[Any]]) -> list[Any]:
    """Run plans in order as one request a server, or put them into the open batch."""
    opened = OPEN.batch
    if opened is None:
        return session.dispatch.run(plans)
    if not all(plan.batchable for plan in plans):
        raise UsageError("mapPartitions cannot be part of a batch: call it before or after")
    if opened.session not in (None, session):
        raise UsageError("the vectors of one batch must be of one context")
    opened.session = session
    answers: list[Deferred[Any]] = [Deferred() for _ in plans]
    opened.calls += zip(map(_copied, plans), answers, strict=True)
    return answers


def submit_later(session: Session, plan: Plan[Any]) -> None:
    """Run a plan that changes data while the caller goes on, or put it into the open batch."""
    if OPEN.batch is not None:
        submit_all(session, [plan])
    else:
        session.dispatch.run_later(_copied(plan))


def _copied(plan: Plan[T]) -> Plan[T]:
    """Return the same call with arrays of its own: the caller may change his before they are sent."""
    return replace(plan, operations=tuple(map(_own, plan.operations)))


def _own(operation: Operation) -> Operation:
    keys = operation.keys
    # Sets of keys that have a name are remembered, and nobody changes them.
    if keys is not None and keys.columns is not None and keys.digest is None:
        keys = replace(keys, columns=keys.columns.copy())
    return replace(operation, arrays=tuple(array.copy() for array in operation.arrays), keys=keys)
