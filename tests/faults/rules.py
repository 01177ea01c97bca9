"""Which requests a fault happens to, and what happens to them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ps2.protocol.messages import RequestId

# -- faults ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drop:
    """The server never has the request, and the connection is cut."""


@dataclass(frozen=True)
class CutAfterApply:
    """The server applies the request and answers; the connection is cut before the client has any of the answer."""


@dataclass(frozen=True)
class CutRequest:
    """The server gets the first ``at`` bytes of the request (half of it, unless said), and the connection is cut."""

    at: int | None = None


@dataclass(frozen=True)
class CutReply:
    """The client gets the first ``at`` bytes of the reply (half of it, unless said), and the connection is cut."""

    at: int | None = None


@dataclass(frozen=True)
class DelayRequest:
    """The request, and all that follows it on its connection, comes so much later."""

    delay_s: float


@dataclass(frozen=True)
class DelayReply:
    """The reply, and all that follows it on its connection, comes so much later."""

    delay_s: float


@dataclass(frozen=True)
class Duplicate:
    """The server gets the same bytes twice; the client sees one reply.

    Attributes:
        connection: "same": directly after the first, on its connection, whose first reply is swallowed. "other": on a
            connection of its own, in a race with the first, or ``late_s`` seconds after it.
    """

    connection: str = "other"
    late_s: float = 0.0


Fault = Drop | CutAfterApply | CutRequest | CutReply | DelayRequest | DelayReply | Duplicate


# -- requests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """A request on its way.

    Attributes:
        server: index of the server that it goes to.
        names: of its operations.
        id: None if it changes nothing.
        forwarded: it comes from a server, and is about the copies that another one has.
        nbytes: that it takes on the way.
    """

    server: int
    names: tuple[str, ...]
    id: RequestId | None
    forwarded: bool
    nbytes: int


def mutating(seen: Seen) -> bool:
    return seen.id is not None


def of_clients(seen: Seen) -> bool:
    """Tell whether a client, not a server, changes something."""
    return seen.id is not None and not seen.forwarded


def of_servers(seen: Seen) -> bool:
    """Tell whether a server forwards to the one with its copies."""
    return seen.forwarded


# -- which of them ---------------------------------------------------------------------------------------------------

When = Callable[[int], bool]


def nth(*numbers: int) -> When:
    """Choose the requests with these numbers, from 1."""
    return lambda number: number in numbers


def every(k: int) -> When:
    """Choose each k-th request."""
    return lambda number: number % k == 0


def at_random(probability: float, seed: int) -> When:
    """Choose each request with this probability."""
    chance = random.Random(seed)
    return lambda number: chance.random() < probability


@dataclass
class Rule:
    """A fault and the requests that it happens to. Safe for threads.

    Attributes:
        when: given the number of a request, from 1, among those that ``where`` picks.
        most: times that it happens.
    """

    fault: Fault
    when: When
    where: Callable[[Seen], bool] = mutating
    most: int = 1 << 30
    _number: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def takes(self, seen: Seen) -> bool:
        """Tell whether the fault happens to this request; to be asked once for each."""
        with self._lock:
            if not self.where(seen):
                return False
            self._number += 1
            if not self.most or not self.when(self._number):
                return False
            self.most -= 1
            return True
