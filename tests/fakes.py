"""A fleet without processes or network, and transports named by the failure that they play."""

from __future__ import annotations

import contextlib
import threading

from ps2.client import sessions
from ps2.client.fleet import FleetRef
from ps2.client.session import Session
from ps2.config import FleetConfig, RetryConfig, WireConfig
from ps2.coordinator.master import Master
from ps2.coordinator.servicer import MasterServicer
from ps2.errors import BusyError, PS2Error, StaleRouteError, UnavailableError
from ps2.rpc.control import ServerControl
from ps2.server.engine import Engine
from ps2.server.namespaces import Namespaces
from ps2.server.servicer import ServerServicer
from tests.messages import reply_bytes, reply_of, request_bytes, request_of

MASTER = "master:1"
QUICK = RetryConfig(total_s=5.0, first_pause_s=0.001, longest_pause_s=0.01)


def outcome_of(fn):
    """Run ``fn`` and return its answer, or its error."""
    try:
        return fn()
    except PS2Error as error:
        return error


@contextlib.contextmanager
def installed(session):
    """Make a session this process's current one meanwhile."""
    sessions.install(session)
    try:
        yield session
    finally:
        del sessions._sessions[next(key for key, value in sessions._sessions.items() if value is session)]
        sessions._current = None


class FleetInProcess:
    """A transport to real engines and a real master, all in this process. ``sent`` holds (address, request)."""

    def __init__(self, servers=2, memory_limit_bytes=1 << 30):
        self.addresses = [f"server{index}:1" for index in range(servers)]
        self.engines = {address: Engine(memory_limit_bytes, allow_udf=True) for address in self.addresses}
        self.master = Master(ServerControl(self), FleetConfig())
        self.closed = False
        self.sent = []
        self._servicers = {
            address: ServerServicer(Namespaces(engine), f"id-{address}", WireConfig(), lambda: None)
            for address, engine in self.engines.items()
        }
        self._servicers[MASTER] = MasterServicer(self.master)
        for index, address in enumerate(self.addresses):
            self.master.registry.register(index, f"id-{address}", address)

    def exchange(self, requests):
        return {address: [self.execute(address, request) for request in mine] for address, mine in requests.items()}

    def execute(self, address, request):
        """Run one request; return its reply, or the error that it comes to."""
        self.sent.append((address, request))
        return outcome_of(lambda: self._run(address, request))

    def take(self, address):
        return None  # no connections: all goes by exchange

    def call(self, address, method, message, reply, timeout_s):
        servicer = self._servicers[address]
        return getattr(servicer, method.partition("/")[2])(message)

    def close(self):
        self.closed = True

    def _run(self, address, request):
        arrived = request_of(request_bytes(request))
        return reply_of(reply_bytes(self.engines[address].execute(arrived), arrived), request)


class _Faulty:
    """Passes everything on to another transport; a subclass spoils it ``times`` times, at ``address`` or anywhere."""

    def __init__(self, transport, times=1, address=None):
        self.transport = transport
        self.left = times
        self.address = address

    def exchange(self, requests):
        return {address: [self.execute(address, request) for request in mine] for address, mine in requests.items()}

    def execute(self, address, request):
        if self.left and self.address in (None, address):
            self.left -= 1
            return outcome_of(lambda: self.spoil(address, request))
        return self.transport.execute(address, request)

    def take(self, address):
        return None  # no connections: all goes by exchange

    def call(self, address, method, message, reply, timeout_s):
        return self.transport.call(address, method, message, reply, timeout_s)

    def close(self):
        self.transport.close()

    def spoil(self, address, request):
        raise NotImplementedError


class DropsTheAck(_Faulty):
    """The server applies the request, but its reply is lost."""

    def spoil(self, address, request):
        self.transport.execute(address, request)
        raise UnavailableError(f"{address}: connection reset")


class FailsBeforeSending(_Faulty):
    """The request never reaches the server. ``tried`` holds those that came."""

    def __init__(self, transport, times=1, address=None):
        super().__init__(transport, times, address)
        self.tried = []

    def spoil(self, address, request):
        self.tried.append(request)
        raise UnavailableError(f"{address}: connection refused")


class RefusesForGood(_Faulty):
    """The server answers with an error that trying again does not cure."""

    def __init__(self, transport, error, times=1, address=None):
        super().__init__(transport, times, address)
        self.error = error

    def spoil(self, address, request):
        raise self.error


class IsFull(RefusesForGood):
    """The server has no room for the request, for now. ``asked`` are the addresses of all other calls."""

    def __init__(self, transport, times=1, address=None):
        super().__init__(transport, BusyError("a request needs 5 bytes, and 3 are left"), times, address)
        self.asked = []

    def call(self, address, method, message, reply, timeout_s):
        self.asked.append(address)
        return super().call(address, method, message, reply, timeout_s)


class MovesThePartitions(_Faulty):
    """The server no longer holds the partition; from then on the master's route sends everybody to ``target``."""

    def __init__(self, transport, move, times=1, address=None):
        super().__init__(transport, times, address)
        self.move = move

    def spoil(self, address, request):
        self.move()
        raise StaleRouteError(f"{address} does not hold this partition")


class MasterGone(FailsBeforeSending):
    """Neither the request nor any call to the master gets through."""

    def call(self, address, method, message, reply, timeout_s):
        if address == MASTER:
            raise UnavailableError(f"{address}: connection refused")
        return super().call(address, method, message, reply, timeout_s)


class DriverStandsStill(MasterGone):
    """Neither gets through until the master has been asked ``asked`` times."""

    def __init__(self, transport, asked, address):
        super().__init__(transport, times=-1, address=address)
        self.asked = asked

    def call(self, address, method, message, reply, timeout_s):
        if not self.asked:
            self.left = 0
            return self.transport.call(address, method, message, reply, timeout_s)
        self.asked -= 1
        return super().call(address, method, message, reply, timeout_s)


class BringsCallsAgain(_Faulty):
    """Everything gets through; ``again`` brings the last control call of a method once more."""

    def __init__(self, transport):
        super().__init__(transport, times=0)
        self.calls = {}

    def call(self, address, method, message, reply, timeout_s):
        self.calls[method] = (address, method, message, reply, timeout_s)
        return super().call(address, method, message, reply, timeout_s)

    def again(self, method):
        return super().call(*self.calls[method])


class ServerHangs:
    """Calls to a server wait until ``release`` is set; ``reached`` says that one does."""

    route_version = 0

    def __init__(self):
        self.reached = threading.Event()
        self.release = threading.Event()

    def create_matrix(self, *args):
        pass

    def free_matrix(self, *args):
        pass

    def update_rows(self, *args):
        self.reached.set()
        assert self.release.wait(10)


class ServerRefuses:
    """A server control whose named calls fail with an error; ``calls`` holds (method, *arguments)."""

    route_version = 0

    def __init__(self, **errors):
        self.errors = errors
        self.calls = []

    def __getattr__(self, method):
        def call(*args):
            self.calls.append((method, *args))
            refuse = self.errors.get(method)
            if refuse is not None and (error := refuse(*args)) is not None:
                raise error

        return call


def session_over(transport, retry=QUICK):
    return Session(FleetRef("fleet", MASTER), transport, retry)


def sent(prefetch):
    """Wait until a prefetch has been read."""
    prefetch._reading.result()
    return prefetch
