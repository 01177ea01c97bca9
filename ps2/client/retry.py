"""How long a client tries again what may pass by itself."""

from __future__ import annotations

import time

from ps2.config import RetryConfig
from ps2.errors import TransientError, UnavailableError, UnreachableError
from ps2.interrupts import sleep


class RetryPolicy:
    """Of one call: pauses between its attempts, and the point where it gives up."""

    def __init__(self, retry: RetryConfig) -> None:
        self._retry = retry
        self._pause_s = retry.first_pause_s
        self._failing_s: float | None = None  # since when
        self._unexplained_s = 0.0  # since when, without a server being brought back
        self._doubt: TransientError | None = None

    def wait(self, error: TransientError) -> None:
        """Pause before the next attempt; raise the error instead if it has been too long."""
        now_s = time.monotonic()
        if self._failing_s is None:
            self._failing_s = self._unexplained_s = now_s
        failing_s, unexplained_s = now_s - self._failing_s, now_s + self._pause_s - self._unexplained_s
        master = self._doubt if isinstance(self._doubt, UnreachableError) else None
        total_s = min(self._retry.total_s, self._retry.first_contact_s) if master is not None else self._retry.total_s
        if isinstance(error, UnreachableError) and self._doubt is None:
            total_s = min(total_s, self._retry.unreached_s)
        if failing_s > self._retry.recovery_s or unexplained_s > total_s:
            if self._doubt is None:
                raise error
            if master is not None:
                raise master from error
            raise UnavailableError(f"{error}; nor does the master answer: {self._doubt}") from error
        sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, self._retry.longest_pause_s)

    def explain(self) -> None:
        """Note that it goes on, or that the coordinator is bringing a server back: that is worth waiting for."""
        self._unexplained_s = time.monotonic()

    def doubt(self, error: TransientError | None) -> None:
        """Note that the coordinator does not answer either, as it may stand still for a while; None: it does.

        Raises:
            UnreachableError: it was never reached, and to find that out has taken as long as is waited for it.
        """
        self._doubt = error
        unexplained_s = 0.0 if self._failing_s is None else time.monotonic() - self._unexplained_s
        if isinstance(error, UnreachableError) and unexplained_s > self._retry.first_contact_s:
            raise error
