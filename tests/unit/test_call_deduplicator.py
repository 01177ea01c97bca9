"""A call to the master happens once, however often and from wherever it comes."""

from __future__ import annotations

import threading

import pytest

from ps2.coordinator.call_deduplicator import CallDeduplicator, DeferredFree, DeferredFrees
from ps2.errors import LimitError, StoppedError
from ps2.protocol.messages import RequestId
from ps2.server.applied import EndedStages

TIMEOUT_S = 10


def of_session(number, settled=0):
    return RequestId("session/a", number, settled)


def of_task(number=0, stage=0, rdd_partition=0):
    return RequestId(f"app/{stage}/{rdd_partition}", number, series="app", stage=stage)


def ended(below, *live):
    over = EndedStages()
    over.add("app", below, live)
    return over


class Counting:
    """What is done; it returns how often it was, and can be made to wait or fail."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.count = 0
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self):
        self.count += 1
        self.begun.set()
        assert self.go_on.wait(TIMEOUT_S)
        if self.errors:
            raise self.errors.pop(0)
        return self.count


@pytest.fixture
def ledger():
    return CallDeduplicator()


def test_once_when_id_repeats_then_same_reply_and_no_effect(ledger):
    act = Counting()
    assert [ledger.once(of_task(), act) for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("other", [of_task(1), of_task(stage=1), of_task(rdd_partition=1)])
def test_once_when_another_id_comes_then_it_is_done(ledger, other):
    act = Counting()
    assert [ledger.once(id, act) for id in (of_task(), other)] == [1, 2]


def test_once_when_it_failed_then_it_is_done_again(ledger):
    act = Counting(LimitError("full"))
    with pytest.raises(LimitError):
        ledger.once(of_task(), act)
    assert ledger.once(of_task(), act) == 2


def together(ledger, act, id):
    """Call twice, the second while the first is under way; return what both came to."""
    act.go_on.clear()
    outcomes = []

    def call():
        try:
            outcomes.append(ledger.once(id, act))
        except LimitError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=call) for _ in range(2)]
    threads[0].start()
    assert act.begun.wait(TIMEOUT_S)
    threads[1].start()
    act.go_on.set()
    for thread in threads:
        thread.join(TIMEOUT_S)
    return outcomes


def test_once_when_two_attempts_call_together_then_done_once(ledger):
    assert together(ledger, Counting(), of_task()) == [1, 1]


def test_once_when_first_of_two_fails_then_second_does_it(ledger):
    refused, reply = together(ledger, Counting(LimitError("full")), of_task())
    assert isinstance(refused, LimitError)
    assert reply == 2


def test_replies_when_a_session_has_them_then_they_are_forgotten(ledger):
    for number in range(100):
        ledger.once(of_session(number, settled=number), Counting())
    assert len(ledger) == 1


def test_once_when_sender_gave_up_then_stopped_error(ledger):
    ledger.once(of_session(5, settled=5), Counting())
    late = Counting()
    with pytest.raises(StoppedError, match="call 4 of session/a arrived after its sender had received the answer"):
        ledger.once(of_session(4), late)
    assert late.count == 0


def test_end_when_stages_are_over_then_only_theirs_are_forgotten(ledger):
    for id in (of_task(stage=0), of_task(stage=1), of_task(stage=2), of_session(0)):
        ledger.once(id, Counting())
    ledger.end(ended(2, 1))
    assert len(ledger) == 3


def test_once_when_its_stage_is_over_then_stopped_error_names_it(ledger):
    ledger.end(ended(4))
    with pytest.raises(StoppedError, match="stage 3 of app is over"):
        ledger.once(of_task(stage=3), Counting())


def test_late_rows_when_their_stage_is_over_then_they_come_once():
    late, first, second = DeferredFrees(), DeferredFree(1, 2, 3, orphan=False), DeferredFree(1, 4, 5, orphan=True)
    late.add("app", 0, first)
    late.add("app", 0, first)
    late.add("app", 1, second)
    assert (late.take(ended(1)), late.take(ended(1)), late.take(ended(2))) == ({first}, set(), {second})
