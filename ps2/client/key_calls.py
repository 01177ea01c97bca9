"""``KeyCalls``: the part that the handles of vectors and matrices have in common."""

from __future__ import annotations

from typing import Any, TypeVar

from ps2.client.batch import submit, submit_later
from ps2.client.fleet import Owner
from ps2.client.managed_matrix import KeyStatus, ManagedMatrix
from ps2.client.plans import Plan
from ps2.client.session import Session
from ps2.interrupts import shielded

K = TypeVar("K", bound="KeyCalls")


class KeyCalls:
    """Base class of the handles of vectors and of matrices. The calls on managed keys act on the whole matrix."""

    _owner: Owner | None

    @shielded
    def advance(self: K, nowS: float, touched: bool = False) -> K:
        """Set the time of the matrix, for ``clock="event"``; return this handle. The time never goes back.

        Args:
            nowS: the time in seconds, from 0 to 1e15.
            touched: True: keys that were touched since the last ``advance`` count as touched at this time. For a
                program that learns a batch of events and only then knows their newest time.

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
            ConfigError: neither is given, or ``olderThanS`` is not a number of seconds.
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
        """Return the calls on the matrix's keys, for ``call``; raise UsageError if it has no ``KeyPolicy``."""
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
        """Keep the rows when this handle is gone."""
        if self._owner is not None:
            self._owner.detach()
            self._owner = None
