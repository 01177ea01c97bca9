"""Handlers of signals that raise: inside the shield they wait for its end, or for a place where it may be left."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from ps2 import interrupts
from ps2.interrupts import SHIELD, Opening, check, join, shielded, wait_for


class Alarm(Exception):
    """What the handler of another signal raises."""


@pytest.fixture(autouse=True)
def handlers():
    """Handlers that raise, as a time limit's and Ctrl-C's do; they are in place again after each test."""

    def alarm(*_):
        raise Alarm

    raising = {signal.SIGALRM: alarm, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in raising.items()}  # Spark sets SIGINT's too
    yield raising
    after = {number: signal.signal(number, handler) for number, handler in before.items()}
    assert after == raising


def interrupt(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def interrupt_soon():
    threading.Timer(0.1, interrupt).start()


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, Alarm)])
def test_signal_when_it_comes_inside_then_it_is_raised_after(number, error):
    finished = []

    @shielded
    def work():
        interrupt(number)
        finished.append(True)

    with pytest.raises(error):
        work()
    assert finished


def test_signals_when_two_come_inside_then_both_handlers_run():
    @shielded
    def work():
        interrupt(signal.SIGALRM)
        interrupt(signal.SIGINT)

    with pytest.raises((KeyboardInterrupt, Alarm)) as raised:
        work()
    assert {type(raised.value), type(raised.value.__context__)} == {KeyboardInterrupt, Alarm}


def test_shields_when_they_nest_then_the_outermost_raises():
    finished = []

    @shielded
    def inner():
        interrupt()

    @shielded
    def outer():
        inner()
        finished.append(True)

    with pytest.raises(KeyboardInterrupt):
        outer()
    assert finished


def test_check_when_signal_has_come_then_raises_only_there():
    finished = []

    @shielded
    def work():
        try:
            interrupt()
            check()
        finally:
            interrupt(signal.SIGALRM)
            finished.append("after")

    with pytest.raises(Alarm) as raised:
        work()
    assert isinstance(raised.value.__context__, KeyboardInterrupt)
    assert finished == ["after"]


def test_opening_when_a_signal_comes_then_it_is_raised_there():
    def work():
        with Opening():
            interrupt()

    with SHIELD:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert SHIELD.is_active


def test_opening_when_signal_came_before_then_raises_first():
    finished = []

    def work():
        with Opening():
            finished.append("never")

    with SHIELD:
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            work()
        assert SHIELD.is_active
    assert not finished


def test_handler_when_changed_in_opening_then_new_one_stays(handlers):
    with SHIELD, Opening():
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
    signal.signal(signal.SIGALRM, handlers[signal.SIGALRM])


def test_shield_when_other_thread_is_inside_then_main_is_not():
    inside, over = threading.Event(), threading.Event()

    def stay():
        with SHIELD:
            inside.set()
            over.wait(10)

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait(10)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    finally:
        over.set()
        thread.join()


def test_waits_when_ctrl_c_comes_then_they_end_in_it():
    changed, over = threading.Condition(), threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()

    def wait():
        with changed:
            wait_for(changed, lambda: False, 60)

    for waiting in (wait, lambda: interrupts.sleep(60), lambda: join(thread, 60)):
        began_s = time.monotonic()
        interrupt_soon()
        with pytest.raises(KeyboardInterrupt), SHIELD:
            waiting()
        assert time.monotonic() - began_s < 30
        assert not changed._is_owned()
    over.set()
    thread.join()


def test_waits_when_nothing_comes_then_they_end_as_ever():
    changed = threading.Condition()
    thread = threading.Thread(target=lambda: None)
    thread.start()
    with SHIELD, changed:
        assert not wait_for(changed, lambda: False, 0.01)
        assert wait_for(changed, lambda: True)
        join(thread)
        interrupts.sleep(0.01)
    assert not thread.is_alive()


def test_child_when_forked_inside_then_handlers_are_restored():
    with SHIELD:
        pid = os.fork()
        if not pid:
            os._exit(0 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 1)
        assert os.waitpid(pid, 0)[1] == 0
