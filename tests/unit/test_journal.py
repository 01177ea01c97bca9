"""A journal keeps what onClock has returned; one that rolled back goes on without what came after."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ps2.errors import CheckpointCorruptError, LimitError
from ps2.protocol.journal_file import PendingReports
from ps2.run import journal
from ps2.run.journal import Journal, Stopped


def of(*clocks):
    created = Journal()
    for clock in clocks:
        created = created.with_message(clock, b"%d" % clock)
    return created


def test_journal_when_it_rolls_back_then_histories_do_not_mix():
    before = of(0, 1)
    once, again = before.with_message(2, b"old"), before.with_message(2, b"new")
    assert (once.messages(0, 9), again.messages(0, 9)) == ([b"0", b"1", b"old"], [b"0", b"1", b"new"])
    assert (before.newest, before.messages(1, 9)) == (b"1", [b"1"])


PENDING = PendingReports(4, 6, ((0, 4, "sum", b"a"), (1, 4, "sum", b"b"), (1, 5, "max", b"c")))


@pytest.mark.parametrize(
    "made",
    [
        of(),
        of(0, 5),
        of(3).with_stop(3, 6),
        of().with_stop(0, 1),
        Journal(pending=PENDING),
        replace(of(0), pending=PENDING),
    ],
)
def test_journal_when_it_went_through_bytes_then_is_the_same(made):
    back = Journal.from_bytes(made.to_bytes(), "here")
    assert (back.messages(0, 9), back.nbytes, back.stopped) == (made.messages(0, 9), made.nbytes, made.stopped)
    assert back.pending == made.pending
    assert (made.to_bytes() == b"") == (made.count == 0 and made.stopped is made.pending is None)


def test_journal_when_bytes_are_another_thing_then_is_refused():
    with pytest.raises(CheckpointCorruptError, match="here: expected the messages of a run"):
        Journal.from_bytes(b"\xff", "here")


def test_before_when_given_a_clock_then_has_what_is_below():
    created = of(0, 3, 4).with_stop(5, 8)
    assert created.before(4).messages(0, 9) == [b"0", b"3"]
    assert (created.before(5).stopped, created.before(6).stopped) == (None, Stopped(5, 8))
    assert created.before(0).to_bytes() == b""


def test_stop_when_returned_again_then_the_first_one_counts():
    assert of().with_stop(2, 3).with_stop(3, 5).stopped == Stopped(2, 3)


def test_journal_when_it_grows_too_large_then_is_refused(monkeypatch):
    monkeypatch.setattr(journal, "LIMIT_BYTES", 2)
    with pytest.raises(LimitError, match="clock 2: expected at most 2 bytes in all messages of the run, got 3"):
        of(0, 1, 2)
