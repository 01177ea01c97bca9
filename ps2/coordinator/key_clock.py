"""``KeyClock``: a thread of the driver that advances the time of matrices with ``clock="wall"``, and expires keys.

The thread adds only time that passes in this process. So keys do not age between the end of one driver and the start of
the next one that restores its checkpoint. Servers never read a clock.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ps2.coordinator.catalog import Entry
from ps2.coordinator.master import Master
from ps2.errors import PS2Error, TransientError
from ps2.guarded_loop import GuardedLoop
from ps2.matrix.key_policy import KeyPolicy
from ps2.matrix.route import Route
from ps2.ops.all import KEY_CHANGES
from ps2.ops.table import Array
from ps2.protocol.messages import Operation, Request, RequestId
from ps2.rpc.control import Network

log = logging.getLogger(__name__)

POLL_S = 0.1
# The time advances so many times within ``expire_after_s``: keys live at most 1 % too long. The interval between two
# advances stays within these limits.
ADVANCES_PER_AGE = 100
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 60.0
# Seconds between two advances for a matrix that evicts keys (``max_keys``) but does not expire them.
EVICTION_INTERVAL_S = 1.0


@dataclass
class _Clock:
    """The last and the next advance of one matrix's time, in seconds of this process's monotonic clock."""

    last_s: float
    due_s: float


class KeyClock:
    """Advances the time of all matrices with ``clock="wall"``, in its own thread."""

    def __init__(
        self, master: Master, network: Network, scope: str, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Create the clock; ``start`` starts its thread. ``scope``: this sender's unique name in ids of mutations."""
        self._master, self._network, self._scope, self._now_s = master, network, scope, now_s
        self._numbers = itertools.count()
        self._clocks: dict[int, _Clock] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ps2-key-clock", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for its end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def poll(self) -> None:
        """Advance the time of each matrix whose next advance is due, and expire its keys."""
        now_s = self._now_s()
        entries = {
            entry.id: entry for entry in self._master.entries() if _interval_s(entry.spec.key_policy) is not None
        }
        self._clocks = {id: clock for id, clock in self._clocks.items() if id in entries}
        for id, entry in entries.items():
            interval_s = _interval_s(entry.spec.key_policy) or 0.0
            clock = self._clocks.setdefault(id, _Clock(now_s, now_s + interval_s))
            if now_s < clock.due_s or self._stopping.is_set():
                continue
            clock.due_s = now_s + interval_s
            try:
                self._advance(entry, clock, now_s)
            except TransientError as error:
                # A server is being replaced. The time that has passed is added once the server is back.
                log.debug("the time of matrix %x is advanced later: %s", id, error)

    def _run(self) -> None:
        loop = GuardedLoop("ps2-key-clock")
        while not self._stopping.wait(POLL_S):
            loop.run_once(self.poll)

    def _advance(self, entry: Entry, clock: _Clock, clock_s: float) -> None:
        route, _ = self._master.route_and_epoch(entry)
        indices = [partition.index for partition in route.partitions]
        states = self._send(entry, route, "keys_state", {index: {} for index in indices})
        now_s = max(float(time_s[0]) for _, time_s in states.values()) + clock_s - clock.last_s
        tick = max(int(ticks[0]) for ticks, _ in states.values()) + 1
        # Set before the calls. If a call fails, the same time is not added a second time: keys expire late rather than
        # early.
        clock.last_s = clock_s
        params = {"now_s": now_s, "tick": tick, "touched": 0}
        self._send(entry, route, "keys_advance", dict.fromkeys(indices, params))
        policy = entry.spec.key_policy
        if policy is None or policy.expire_after_s is None:
            return
        next_slots = dict.fromkeys(indices, -1)
        while next_slots and not self._stopping.is_set():
            older_s = policy.expire_after_s
            slices = {index: {"older_s": older_s, "begin": slot} for index, slot in next_slots.items()}
            answers = self._send(entry, route, "keys_expire", slices)
            next_slots = {index: int(arrays[0][0]) for index, arrays in answers.items() if arrays[0][0]}

    def _send(
        self, entry: Entry, route: Route, name: str, params: Mapping[int, Mapping[str, int | float]]
    ) -> dict[int, tuple[Array, ...]]:
        """Send an operation with ``params[partition]`` to each partition; return the arrays of each answer."""
        # A failed mutation is not retried under its id. A later mutation may do the same again, which is safe: time
        # never goes back, and a repeated expiry of the same slots removes no further keys.
        requests: dict[str, list[Request]] = {}
        indices: dict[str, list[int]] = {}
        for index, partition_params in params.items():
            number = next(self._numbers)
            id = RequestId(self._scope, number, number) if name in KEY_CHANGES else None
            operation = Operation(name, entry.id, index, params=partition_params)
            requests.setdefault(route.addresses[index], []).append(Request((operation,), id, route.version))
            indices.setdefault(route.addresses[index], []).append(index)
        answers: dict[int, tuple[Array, ...]] = {}
        for address, outcomes in self._network.exchange(requests).items():
            for index, outcome in zip(indices[address], outcomes, strict=True):
                if isinstance(outcome, PS2Error):
                    raise outcome
                answers[index] = outcome.results[0].arrays
        return answers


def _interval_s(policy: KeyPolicy | None) -> float | None:
    """Return the seconds between two advances of a matrix's time; None: the driver never advances it."""
    if policy is None or policy.clock != "wall" or (policy.expire_after_s is None and policy.max_keys is None):
        return None
    if policy.expire_after_s is None:
        return EVICTION_INTERVAL_S
    return min(max(policy.expire_after_s / ADVANCES_PER_AGE, MIN_INTERVAL_S), MAX_INTERVAL_S)
