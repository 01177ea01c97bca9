"""Whether this server may still take requests: what keeps a replaced server, or coordinator, from changing anything."""

from __future__ import annotations

import threading
import time

import numpy as np

from ps2.errors import StaleRouteError

# A coordinator that is there says so twice a second; one that has slept must not take the fleet back.
TAKE_OVER_AFTER_S = 1.5
# One that has been silent for so long brings nothing to safety.
GONE_AFTER_S = 15.0
# What ``fast_path_loop`` reads of a fence: the version that a request must know (-1: any), if clients have any business
# here, until when (by the clock of ``now_s``, in nanoseconds), and whether changes are made on copies too.
VERSION, OPEN, UNTIL_NS, COPIED = range(4)
ANY_VERSION = -1
NEVER_NS = 2**63 - 1
# Nobody can set it, and it goes on while this machine sleeps: a coordinator on another one goes on, too, and replaces
# whoever is silent.
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """Return the seconds that leases are counted in."""
    return time.clock_gettime(CLOCK)


class Fence:
    """The route version and the lease that this server has from its coordinator. Safe for threads.

    A server without a coordinator takes requests of any version, unless it waits for one: it may get the shards of
    another one first.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.words = np.array([ANY_VERSION, 1, NEVER_NS, 0], np.int64)
        self._waits = self._parted = False
        self.leaving = False  # told to end
        self.released = threading.Event()  # nothing is lost if this server ends
        self.route_version = 0
        self.coordinator = ""
        self._lease_s = 0.0
        self._leased_s = self._heard_s = now_s()

    @property
    def waits(self) -> bool:
        """Whether it is to have its shards first."""
        return self._waits

    @waits.setter
    def waits(self, waits: bool) -> None:
        with self._lock:
            self._waits = waits
            self._tell()

    @property
    def parted(self) -> bool:
        """Whether another process gets what is here, and nothing of it may change."""
        return self._parted

    @parted.setter
    def parted(self, parted: bool) -> None:
        with self._lock:
            self._parted = parted
            self._tell()

    def note_copies(self, made: bool) -> None:
        """Note whether changes are made on copies, too, from now on."""
        self.words[COPIED] = made

    @property
    def ready(self) -> bool:
        """Whether a coordinator has given this server its shards, be it one that is gone again."""
        return self.route_version > 0 and not self.waits and not self.leaving

    @property
    def silent_s(self) -> float:
        """Seconds since the coordinator last gave a sign of life."""
        return now_s() - self._heard_s

    def activate(self, route_version: int, coordinator: str, lease_s: float) -> None:
        """Follow a coordinator from this version on; raises StaleRouteError if another one is there, or was since."""
        with self._lock:
            same = coordinator == self.coordinator
            if self.coordinator and not same and self.silent_s < TAKE_OVER_AFTER_S:
                raise StaleRouteError(
                    f"this server follows coordinator {self.coordinator}, which gave a sign of life "
                    f"{self.silent_s:.1f} s ago; {coordinator} came"
                )
            if route_version < self.route_version or (not same and route_version == self.route_version):
                raise StaleRouteError(
                    f"this server is at route version {self.route_version} of coordinator {self.coordinator}, "
                    f"{route_version} of {coordinator} came: another coordinator has taken over"
                )
            self.route_version, self.coordinator, self._lease_s = route_version, coordinator, lease_s
            self._leased_s = self._heard_s = now_s()
            self.waits = False

    def leave(self) -> None:
        """Follow nobody any more: take requests of any version, from whoever comes."""
        with self._lock:
            self.coordinator = ""
            self._tell()

    def begin_anew(self) -> None:
        """Know of no coordinator, as at the beginning."""
        with self._lock:
            self.route_version, self.coordinator, self._lease_s = 0, "", 0.0
            self._tell()

    @property
    def may_end(self) -> bool:
        """Whether there is nobody, or no reason, to wait for before this server ends."""
        return not self.coordinator or self.silent_s > GONE_AFTER_S or self.released.is_set()

    def answered(self, at_s: float) -> None:
        """Note that the coordinator has heard of us: it has answered, or had, what we sent at that ``now_s``.

        The lease runs from there: however long this process was stopped meanwhile, the coordinator has counted as long.
        """
        with self._lock:
            self._leased_s = max(self._leased_s, at_s)
            self._heard_s = max(self._heard_s, at_s)
            self._tell()

    def called(self) -> None:
        """Note that the coordinator has called: a sign of life of it, of any age, which prolongs no lease."""
        with self._lock:
            self._heard_s = now_s()

    def check(self, route_version: int) -> None:
        """Raise StaleRouteError unless a call that knows this version may be taken now."""
        if self.coordinator and route_version != self.route_version:
            raise StaleRouteError(
                f"this server follows coordinator {self.coordinator} at route version {self.route_version}, "
                f"{route_version} came"
            )
        self.check_lease()

    def check_active(self) -> None:
        """Raise StaleRouteError if clients have no business here yet, or any more."""
        if self.waits:
            raise StaleRouteError("this server waits for its coordinator to give it its shards")
        if self.parted:
            raise StaleRouteError("this server is about to end, and has handed over what it holds")

    def check_lease(self) -> None:
        """Raise StaleRouteError if the coordinator may have replaced this server meanwhile."""
        alone_s = now_s() - self._leased_s
        if self._lease_s and alone_s > self._lease_s:
            raise StaleRouteError(
                f"this server has had no answer from its coordinator for {alone_s:.1f} s, and may be replaced"
            )

    def _tell(self) -> None:
        """Bring the words up to date; the lock is held."""
        # The lease last: it is not to be prolonged for who knows another version.
        self.words[VERSION] = self.route_version if self.coordinator else ANY_VERSION
        self.words[OPEN] = not self._waits and not self._parted
        self.words[UNTIL_NS] = int(1e9 * (self._leased_s + self._lease_s)) if self._lease_s else NEVER_NS
