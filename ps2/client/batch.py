"""``with batch():`` collects the calls inside the block and sends them in order, as one request per server."""

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
    """The answer of a read made inside a batch; available once the batch has been sent."""

    def __init__(self) -> None:
        self._answer: list[T] = []

    def result(self) -> T:
        """Return the answer.

        Raises:
            UsageError: the batch is still open, or it failed.
        """
        if not self._answer:
            raise UsageError("this result is available once its `with batch():` block has ended without an error")
        return self._answer[0]

    def __repr__(self) -> str:
        return f"Deferred({self._answer[0]!r})" if self._answer else "Deferred(pending)"


@dataclass
class _Batch:
    """The calls of one batch. The first call decides which session sends them.

    Attributes:
        end: a weak reference to the batch's ``_End``, which is garbage-collected with its ``with`` statement; None for
            a batch of an ExitStack.
        handles: the vectors that the calls use. If a handle were garbage-collected, another vector could get its row.
    """

    end: Callable[[], object] | None
    session: Session | None = None
    calls: list[tuple[Plan[Any], Deferred[Any]]] = field(default_factory=list)
    handles: list[object] = field(default_factory=list)


class _ThreadState(threading.local):
    """The batch that is open in this thread, if any.

    Attributes:
        newest: the batch that this thread opened last and did not end. Its ``with`` statement may no longer exist.
        end: ``_Batch.end`` of the next batch. The lookup of ``__exit__`` sets it, and ``__enter__`` reads it.
    """

    newest: _Batch | None = None
    end: Callable[[], object] | None = None

    @property
    def open_batch(self) -> _Batch | None:
        """The open batch. A batch is no longer open when its ``with`` statement no longer exists."""
        if self.newest is not None and self.newest.end is not None and self.newest.end() is None:
            self.newest = None
        return self.newest

    @open_batch.setter
    def open_batch(self, batch: _Batch | None) -> None:
        self.newest = batch


STATE = _ThreadState()


def _end(error_class: type[BaseException] | None, *_: object) -> None:
    """Close this thread's batch; send its calls if the block raised no error."""
    with SHIELD:
        closed, STATE.open_batch = STATE.open_batch, None
        if error_class is None and closed is not None and closed.session is not None:
            answers = closed.session.dispatch.run([plan for plan, _ in closed.calls])
            for (_plan, deferred), answer in zip(closed.calls, answers, strict=True):
                deferred._answer.append(answer)


class _End:
    """The callable that a ``with`` statement calls at its end. Only that statement holds a reference to it.

    A signal handler can raise an error before the first instruction of any ``__exit__``. The batch is then not closed,
    but this object is garbage-collected, because no frame of the traceback refers to it: ``_end`` does not receive it.
    """

    __slots__ = ("__weakref__",)
    __call__ = staticmethod(_end)


class _Exit:
    """Descriptor: a ``with`` statement looks ``__exit__`` up before it calls ``__enter__``, and gets a new ``_End``."""

    def __get__(self, batching: Batching | None, _: type[Batching]) -> Callable[..., None]:
        if batching is None:  # an ExitStack looks ``__exit__`` up on the class
            STATE.end = None
            return lambda _batching, *error: _end(*error)
        end = _End()
        STATE.end = weakref.ref(end)
        return end


class Batching(ContextDecorator):
    """The context manager that ``batch()`` returns."""

    __exit__ = _Exit()

    def __enter__(self) -> None:
        if STATE.open_batch is not None:
            raise UsageError("batches do not nest: this thread has an open batch already")
        STATE.open_batch = _Batch(STATE.end)


def batch() -> Batching:
    """Collect this thread's calls on vectors of one fleet, and send them at the end of the block.

    Inside the block, calls that change data return their vector as usual, and calls that read return a ``Deferred``. If
    the block raises, nothing is sent. ``mapPartitions`` and operations on vectors that are not co-located cannot be
    batched.
    """
    return Batching()


def in_batch() -> bool:
    return STATE.open_batch is not None


def keep_alive(*handles: object) -> None:
    """Keep handles, and so their rows, alive until the open batch has been sent."""
    if STATE.open_batch is not None:
        STATE.open_batch.handles += handles


def submit(session: Session, plan: Plan[T]) -> T | Deferred[T]:
    """Run a plan, or add it to the open batch."""
    if STATE.newest is None:
        answer: T = session.dispatch.run((plan,))[0]
        return answer
    return submit_all(session, [plan])[0]


def submit_all(session: Session, plans: Sequence[Plan[Any]]) -> list[Any]:
    """Run plans in order, as one request per server, or add them to the open batch."""
    open_batch = STATE.open_batch
    if open_batch is None:
        return session.dispatch.run(plans)
    if not all(plan.batchable for plan in plans):
        raise UsageError("mapPartitions cannot be part of a batch: call it before or after")
    if open_batch.session not in (None, session):
        raise UsageError("all vectors of one batch must belong to one PS2Context")
    open_batch.session = session
    answers: list[Deferred[Any]] = [Deferred() for _ in plans]
    open_batch.calls += zip(map(_copy_plan, plans), answers, strict=True)
    return answers


def submit_later(session: Session, plan: Plan[Any]) -> None:
    """Queue a plan that changes data and return at once, or add the plan to the open batch."""
    if STATE.open_batch is not None:
        submit_all(session, [plan])
    else:
        session.dispatch.run_later(_copy_plan(plan))


def _copy_plan(plan: Plan[T]) -> Plan[T]:
    """Return the plan with copies of its arrays, because the caller may change the originals before they are sent."""
    return replace(plan, operations=tuple(map(_copy_operation, plan.operations)))


def _copy_operation(operation: Operation) -> Operation:
    keys = operation.keys
    # Columns with a digest belong to the cache of key sets, whose arrays are never changed.
    if keys is not None and keys.columns is not None and keys.digest is None:
        keys = replace(keys, columns=keys.columns.copy())
    return replace(operation, arrays=tuple(array.copy() for array in operation.arrays), keys=keys)
