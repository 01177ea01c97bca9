"""A command that trains tells on stderr what it does, where no live line tells it."""

from __future__ import annotations

import logging
import threading

import pytest

from ps2.algorithms.training import progress
from ps2.cli.training import running
from ps2.cli.training.running import StatusLines


@pytest.fixture
def printed(monkeypatch):
    """Lines that were printed."""
    lines = []
    monkeypatch.setattr(running, "INTERVAL_S", 0.001)
    monkeypatch.setattr(running.click, "echo", lambda line, err: lines.append((line, err)))
    return lines


def test_lines_when_time_passes_then_say_what_is_done_now(printed, until):
    with StatusLines("ps2 train lr"):
        until(lambda: printed, "a line")
        progress.log_activity("reading rows.libsvm")
        until(lambda: printed[-1][0].endswith("s: reading rows.libsvm"), "a line of what is read")
    assert printed[0] == ("ps2 train lr: 0 s: starting Spark", True)


def test_lines_when_a_live_line_is_shown_then_there_are_none(printed, until):
    with StatusLines("ps2 train lda"):
        progress.log.info("LDA: the workers read their rows", extra={"is_live": True})
        progress.log_activity("LDA: the model is trained")
        until(lambda: printed and printed[-1][0].endswith("the model is trained"), "a line")
    assert not [line for line, _ in printed if "their rows" in line]


def test_lines_when_the_command_is_through_then_nothing_is_left(printed):
    level, handlers = progress.log.level, list(progress.log.handlers)
    with StatusLines("ps2 train lr"):
        assert progress.log.isEnabledFor(logging.INFO)
    count = len(printed)
    assert (progress.log.level, progress.log.handlers, len(printed)) == (level, handlers, count)
    assert not [thread for thread in threading.enumerate() if thread.name == "ps2-status-lines"]
