"""A server of a master ends when it is not wanted any more, or alone for too long, and not before."""

from __future__ import annotations

import threading

import pytest

from ps2.errors import AuthError, NotFoundError, ProtocolError, UnavailableError
from ps2.server.engine import Engine
from ps2.server.process import HeartbeatSender, Home, _heartbeat

INTERVAL_S = 0.001


class AnswersWith:
    """A master whose answers are these, the last one for ever; None is a good one. ``asked`` counts.

    Attributes:
        watched: somebody looks at the fleet.
        told: the statuses that have come.
    """

    def __init__(self, *answers, then=lambda: None, watched=False):
        self.answers = list(answers)
        self.then = then
        self.asked = 0
        self.watched = watched
        self.told = []

    def heartbeat(self, index, server_id, mutations, status=None):
        self.asked += 1
        self.told.append(status)
        answer = self.answers[0]
        if len(self.answers) > 1:
            del self.answers[0]
        else:
            self.then()
        if answer is not None:
            raise answer
        return self.watched


def heart_of(master):
    return HeartbeatSender(master, Home("m:1", 0), "id", Engine(1 << 20, allow_udf=False), lambda: "its status")


def beat(master, orphan_timeout_s):
    """Run the heartbeat until it ends; return whether it did by itself."""
    stop = threading.Event()
    thread = threading.Thread(
        target=_heartbeat, args=(heart_of(master), INTERVAL_S, orphan_timeout_s, stop), daemon=True
    )
    thread.start()
    thread.join(10)
    return stop.is_set() and not thread.is_alive()


def test_server_when_master_rejects_it_then_ends_at_once():
    master = AnswersWith(None, NotFoundError("not of this fleet"))
    assert beat(master, orphan_timeout_s=60)
    assert master.asked == 2


@pytest.mark.parametrize("error", [UnavailableError("gone"), AuthError("another token"), ProtocolError("no such rpc")])
def test_server_when_master_is_gone_too_long_then_ends_anyway(error):
    """Another program may listen on the port of a driver that was killed."""
    assert beat(AnswersWith(None, error), orphan_timeout_s=0.02)


def test_server_when_master_returns_in_time_then_goes_on():
    stop = threading.Event()
    master = AnswersWith(UnavailableError("gone"), UnavailableError("gone"), None, None, None, then=stop.set)
    _heartbeat(heart_of(master), INTERVAL_S, 60, stop)
    assert master.asked == 5


def test_heartbeat_when_nobody_looks_then_brings_no_status():
    master = AnswersWith(None)
    heart = heart_of(master)
    for _ in range(2):
        heart.beat()
    assert master.told == [None, None]


def test_heartbeat_when_somebody_looks_then_brings_the_status():
    master = AnswersWith(None, watched=True)
    heart = heart_of(master)
    for _ in range(2):
        heart.beat()
    assert master.told == [None, "its status", "its status"]
    master.watched = False
    for _ in range(2):
        heart.beat()
    assert master.told[3:] == ["its status", None]
