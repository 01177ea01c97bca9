"""A server that is silent is asked before it is lost; one that answers stays, and may serve as long as it counts."""

from __future__ import annotations

import threading
import time

import pytest

from ps2.config import FleetConfig
from ps2.coordinator import supervisor as supervisors
from ps2.coordinator.checkpoints import Checkpoints
from ps2.coordinator.fleet_control import FleetControl
from ps2.coordinator.master import Master
from ps2.coordinator.recovery import Policy, RecoveryLog
from ps2.coordinator.supervisor import Supervisor
from ps2.errors import DeadlineError, StaleRouteError
from ps2.rpc.control import Activation, ServerControl
from tests.fakes import FleetInProcess

LOST_AFTER_S = 0.2
LONG_S = 1000.0


class NobodyLooks:
    """A launcher of servers whose processes never end."""

    servers = 2
    replaces = True
    leaving = ()
    stop = start = None

    def poll(self):
        return {}


class SomeAnswer(FleetInProcess):
    """Servers that answer if their address is in ``there``; ``asked`` has those that were asked so far."""

    def __init__(self, there, barrier=None, takes_s=0.0):
        super().__init__(2)
        self.takes_s = takes_s
        self.there = set(there)
        self.asked = []
        self.barrier = barrier

    def call(self, address, method, message, reply, timeout_s):
        if method == "Server/Hello" and message.coordinator:
            self.asked.append(address)
            if self.barrier is not None:
                self.barrier.wait(10)
            if address not in self.there:
                threading.Event().wait(self.takes_s)
                raise DeadlineError(f"{address}: no answer within {timeout_s} s")
        return super().call(address, method, message, reply, timeout_s)


@pytest.fixture
def supervised(monkeypatch):
    """``supervised(transport)``: a supervisor of servers that have been heard just now."""

    def make(transport):
        control = ServerControl(transport)
        master = Master(control, FleetConfig(lost_after_s=LOST_AFTER_S), "mine")
        for index, address in enumerate(transport.addresses):
            master.registry.register(index, f"id-{address}", address)
        checkpoints = Checkpoints(master, control, None, 1)
        fleet = FleetControl(master, NobodyLooks(), control, 0)
        return master, Supervisor(fleet, checkpoints, Policy(0, "shard"), None, RecoveryLog())

    monkeypatch.setattr(supervisors, "ASK_TIMEOUT_S", 0.01)
    return make


def test_poll_when_servers_are_silent_then_answering_ones_stay(supervised, until):
    transport = SomeAnswer(["server1:1"])
    master, supervisor = supervised(transport)

    def polled():
        supervisor.poll()
        return master.registry.lost(replaces=True)

    until(polled, "server 0 is lost")
    assert master.registry.lost(replaces=True) == [0]
    began_s = time.monotonic()
    until(lambda: polled() and time.monotonic() - began_s > 3 * LOST_AFTER_S, "time has passed")
    assert master.registry.lost(replaces=True) == [0]


def test_poll_when_several_are_silent_then_are_asked_in_parallel(supervised, until):
    """They meet in a barrier: one after the other would wait there for ever."""
    transport = SomeAnswer([], threading.Barrier(2))
    _, supervisor = supervised(transport)
    until(lambda: supervisor.poll() or transport.asked, "they were asked")
    assert sorted(transport.asked[:2]) == transport.addresses


def test_poll_when_all_hang_beyond_timeout_then_are_lost(supervised, until):
    """Nothing is heard while the monitor waits for their answers; it is there all the same."""
    master, supervisor = supervised(SomeAnswer([], takes_s=2 * LOST_AFTER_S))
    until(lambda: supervisor.poll() or master.registry.lost(replaces=True), "they are lost")
    assert master.registry.lost(replaces=True) == [0, 1]


def test_poll_when_another_process_answers_then_old_one_is_lost(supervised, until):
    transport = SomeAnswer(["server0:1", "server1:1"])
    master, supervisor = supervised(transport)
    master.registry.register(0, "an older process", "server0:1")
    until(lambda: supervisor.poll() or master.registry.lost(replaces=True), "server 0 is lost")
    assert master.registry.lost(replaces=True) == [0]


def test_hello_when_earlier_answer_is_known_then_lease_runs_on(until):
    fleet = FleetInProcess(1)
    (address,), control = fleet.addresses, ServerControl(fleet)
    control.route_version = 1
    control.activate(address, Activation("mine", lease_s=LOST_AFTER_S))
    fence = fleet.engines[address].fence

    def may_serve():
        try:
            fence.check_lease()
        except StaleRouteError:
            return False
        return True

    until(lambda: not may_serve(), "the lease has run out")
    # A call alone may have waited in a stopped server's queue: it prolongs nothing.
    answer = control.hello(address, "mine")
    assert not may_serve()
    control.hello(address, "another", answered_s=answer.now_s)
    assert not may_serve()
    control.hello(address, "mine", answered_s=answer.now_s)
    assert may_serve()
