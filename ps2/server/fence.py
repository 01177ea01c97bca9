"""Decides whether this server may accept a request: a replaced server or coordinator must not change anything."""

from __future__ import annotations

import threading
import time

import numpy as np

from ps2.config import DEFAULT_NAMESPACE
from ps2.errors import StaleRouteError

# A new coordinator may take over a fleet after the old one was silent for this long. A live coordinator gives a sign of
# life twice a second.
TAKE_OVER_AFTER_S = 1.5
# A server that was told to end no longer waits for a coordinator that has been silent for this long.
GONE_AFTER_S = 15.0
# Indices of the words that ``fast_path_loop`` reads. VERSION: the route version that a request must have (-1: any).
# OPEN: 1 if clients may send requests. UNTIL_NS: end of the lease, by the clock of ``now_s``. COPIED: 1 if changes must
# be forwarded to copies.
VERSION, OPEN, UNTIL_NS, COPIED = range(4)
ANY_VERSION = -1
NEVER_NS = 2**63 - 1
# This clock cannot be set, and also runs while this machine is suspended: during that time, a coordinator on another
# machine may replace this server.
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """Return the time of the leases' clock, in seconds."""
    return time.clock_gettime(CLOCK)


class Fence:
    """The route version and the lease that the coordinator has given to this server. Thread-safe.

    A server without a coordinator accepts requests of any version. While it waits for a coordinator, it accepts none,
    because it may first have to receive the shards of a lost server.

    Attributes:
        words: int64 of shape (4,), for ``fast_path_loop``.
        released: an event, set when the coordinator allows the server to end.
        route_version: the route version of the last ``activate``; 0 before it.
        coordinator: the id of the coordinator; "" if there is none.
    """

    def __init__(self, namespace: str = DEFAULT_NAMESPACE) -> None:
        """``namespace``: the one of its engine, for messages."""
        self._namespace = namespace
        self._lock = threading.RLock()
        self.words = np.array([ANY_VERSION, 1, NEVER_NS, 0], np.int64)
        self._waits = self._handed_over = False
        self.released = threading.Event()
        self.route_version = 0
        self.coordinator = ""
        self._lease_s = 0.0  # duration of the lease; 0: no limit
        self._lease_began_s = self._last_contact_s = now_s()

    @property
    def waits(self) -> bool:
        """True while the server waits for its coordinator to give it its shards."""
        return self._waits

    @waits.setter
    def waits(self, waits: bool) -> None:
        with self._lock:
            self._waits = waits
            self._update_words()

    @property
    def handed_over(self) -> bool:
        """True after the last checkpoint before the server stops: clients' requests are refused."""
        return self._handed_over

    @handed_over.setter
    def handed_over(self, handed_over: bool) -> None:
        with self._lock:
            self._handed_over = handed_over
            self._update_words()

    def set_copied(self, copied: bool) -> None:
        """Set whether changes must be forwarded to copies from now on."""
        self.words[COPIED] = copied

    @property
    def ready(self) -> bool:
        """True if a coordinator has given this server its shards, even if the coordinator has ended."""
        return self.route_version > 0 and not self.waits

    @property
    def silent_s(self) -> float:
        """Seconds since the coordinator last gave a sign of life."""
        return now_s() - self._last_contact_s

    def activate(self, route_version: int, coordinator: str, lease_s: float) -> None:
        """Accept a coordinator and its route version; raise StaleRouteError if another coordinator is current."""
        with self._lock:
            is_same = coordinator == self.coordinator
            if self.coordinator and not is_same and self.silent_s < TAKE_OVER_AFTER_S:
                raise StaleRouteError(
                    f"namespace {self._namespace!r} of this server follows coordinator {self.coordinator}, which gave "
                    f"a sign of life {self.silent_s:.1f} s ago; got a call of {coordinator}: a namespace has one "
                    "driver at a time; drivers with different namespaces (namespace='...') share a fleet"
                )
            if route_version < self.route_version or (not is_same and route_version == self.route_version):
                raise StaleRouteError(
                    f"this server is at route version {self.route_version} of coordinator {self.coordinator}, got "
                    f"{route_version} of {coordinator}: another coordinator has taken over"
                )
            self.route_version, self.coordinator, self._lease_s = route_version, coordinator, lease_s
            self._lease_began_s = self._last_contact_s = now_s()
            self.waits = False

    def leave(self) -> None:
        """Forget the coordinator, and accept requests of any version."""
        with self._lock:
            self.coordinator = ""
            self._update_words()

    def reset(self) -> None:
        """Forget the coordinator, the route version and the lease, and wait for the next ``activate``."""
        with self._lock:
            self.route_version, self.coordinator, self._lease_s = 0, "", 0.0
            self.waits = True

    @property
    def may_end(self) -> bool:
        """True if the server has no coordinator, or was released, or its coordinator was silent for GONE_AFTER_S."""
        return not self.coordinator or self.silent_s > GONE_AFTER_S or self.released.is_set()

    def renew_lease(self, sent_s: float) -> None:
        """Renew the lease: the coordinator has answered a message that this server sent at ``sent_s``.

        The lease begins at ``sent_s``, not at the answer: this process may have been suspended between them, and the
        coordinator has counted that time as silence.
        """
        with self._lock:
            self._lease_began_s = max(self._lease_began_s, sent_s)
            self._last_contact_s = max(self._last_contact_s, sent_s)
            self._update_words()

    def record_call(self) -> None:
        """Record a call of the coordinator as a sign of life. A call may be delayed, so it does not renew the lease."""
        with self._lock:
            self._last_contact_s = now_s()

    def check(self, route_version: int) -> None:
        """Raise StaleRouteError unless a call with this route version may run now."""
        if self.coordinator and route_version != self.route_version:
            raise StaleRouteError(
                f"this server follows coordinator {self.coordinator} at route version {self.route_version}, got "
                f"route version {route_version}"
            )
        self.check_lease()

    def check_active(self) -> None:
        """Raise StaleRouteError if the server does not yet accept clients' requests, or no longer accepts them."""
        if self.waits:
            raise StaleRouteError("this server waits for its coordinator to give it its shards")
        if self.handed_over:
            raise StaleRouteError("this server is about to end, and has handed over its shards")

    def check_lease(self) -> None:
        """Raise StaleRouteError if the lease has expired: the coordinator may have replaced this server."""
        age_s = now_s() - self._lease_began_s
        if self._lease_s and age_s > self._lease_s:
            raise StaleRouteError(
                f"this server has had no answer from its coordinator for {age_s:.1f} s, and may have been replaced"
            )

    def _update_words(self) -> None:
        """Update the words; the caller holds the lock."""
        # Write the lease last: a request with the old version must not see the new lease.
        self.words[VERSION] = self.route_version if self.coordinator else ANY_VERSION
        self.words[OPEN] = not self._waits and not self._handed_over
        self.words[UNTIL_NS] = int(1e9 * (self._lease_began_s + self._lease_s)) if self._lease_s else NEVER_NS
