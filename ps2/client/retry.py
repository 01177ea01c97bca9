"""Retries of transient errors: pauses between attempts, and the point where a call gives up."""

from __future__ import annotations

import time

from ps2.config import RetryConfig
from ps2.errors import TransientError, UnavailableError, UnreachableError
from ps2.interrupts import sleep


class RetryPolicy:
    """Paces the attempts of one call, and decides when the call gives up."""

    def __init__(self, retry: RetryConfig) -> None:
        self._retry = retry
        self._pause_s = retry.first_pause_s
        self._failing_s: float | None = None  # since when attempts have failed
        self._stalled_s = 0.0  # since when they have failed without a sign of progress
        self._master_error: TransientError | None = None

    def wait(self, error: TransientError) -> None:
        """Pause before the next attempt; raise the error instead if the time limit has passed."""
        now_s = time.monotonic()
        if self._failing_s is None:
            self._failing_s = self._stalled_s = now_s
        failing_s, stalled_s = now_s - self._failing_s, now_s + self._pause_s - self._stalled_s
        master = self._master_error if isinstance(self._master_error, UnreachableError) else None
        total_s = min(self._retry.total_s, self._retry.first_contact_s) if master is not None else self._retry.total_s
        if isinstance(error, UnreachableError) and self._master_error is None:
            total_s = min(total_s, self._retry.unreached_s)
        if failing_s > self._retry.recovery_s or stalled_s > total_s:
            if self._master_error is None:
                raise error
            if master is not None:
                raise master from error
            raise UnavailableError(f"{error}; the master does not answer either: {self._master_error}") from error
        sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, self._retry.longest_pause_s)

    def note_progress(self) -> None:
        """Note progress, or a recovery under way: restart the time limit of calls without progress."""
        self._stalled_s = time.monotonic()

    def note_master(self, error: TransientError | None) -> None:
        """Note whether the coordinator answers. It may pause for a while.

        Args:
            error: why it did not answer; None if it did.

        Raises:
            UnreachableError: it was never reached, and the time limit for a first contact has passed.
        """
        self._master_error = error
        stalled_s = 0.0 if self._failing_s is None else time.monotonic() - self._stalled_s
        if isinstance(error, UnreachableError) and stalled_s > self._retry.first_contact_s:
            raise error
