"""Training under way is shown by a live line in a terminal, and by lines in the log elsewhere."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys

import pytest

from ps2 import progress_line
from ps2.algorithms.training import progress
from ps2.algorithms.training.record import StepReport, Words

REPORT = StepReport(12, 0.34567891, 2.0, 400_000, 5 << 20)


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (REPORT, "step 12/100, objective 0.345679, 167 ms a step, 200K rows/s, 5MB"),
        (StepReport(1, 1e-9, 0.0, 0, 0), "step 1/100, objective 1e-09"),
        (StepReport(1, 2.0, 1.0, 999, 1023), "step 1/100, objective 2, 1 s a step, 999 rows/s, 0.999KB"),
        (StepReport(1, 2.0, 1.0, 1_234_000, 3 << 40), "step 1/100, objective 2, 1 s a step, 1.23M rows/s, 3TB"),
        (StepReport(50, 2.0, 0.001, 0, 0), "step 50/100, objective 2, 20 us a step"),
        (StepReport(3, 2.0, 9000.0, 0, 0), "step 3/100, objective 2, 50m 0s a step"),
        (StepReport(1, 2.0, 1.0, 999_600, 1 << 60), "step 1/100, objective 2, 1 s a step, 1M rows/s, 1EB"),
    ],
)
def test_step_when_described_then_has_progress_loss_and_rate(report, words):
    assert ", ".join(progress.describe(report, 100)) == words


OF_TREES = StepReport(12, 0.3, 2.4, 0, 0, validation=0.45, metrics={"leaves": 31}, words=Words("tree", "loss"))


def test_step_when_family_has_own_words_then_uses_them():
    metrics = ["tree 12/100", "loss 0.3", "validation 0.45", "31 leaves", "200 ms a tree"]
    assert progress.describe(OF_TREES, 100) == metrics


def test_step_when_value_name_has_several_words_then_splits_them():
    metrics = {"log_likelihood": -3_512_345.0, "tokens_per_s": 1.23e6}
    message = progress.describe(StepReport(3, 7.8, 1.5, 0, 0, metrics=metrics, words=Words("iteration", "loss")), 9)
    assert message == ["iteration 3/9", "loss 7.8", "-3.51M log likelihood", "1.23M tokens/s", "500 ms an iteration"]


@pytest.mark.parametrize(
    ("room", "words"), [(3, "tree 12/100"), (21, "tree 12/100, loss 0.3"), (37, "tree 12/100, loss 0.3"), (500, None)]
)
def test_words_when_terminal_is_narrow_then_drops_whole_parts(room, words):
    message = progress.describe(OF_TREES, 100)
    assert progress_line.join_fitting(message, room) == (words or ", ".join(message))


@pytest.fixture
def clock(monkeypatch):
    """The time that is seen, in seconds."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_log_when_steps_are_quick_then_writes_every_few_seconds(clock, caplog):
    line = progress._LogLine("model", 100)
    with caplog.at_level(logging.INFO, "ps2"):
        for _ in range(30):
            clock[0] += 0.5
            line(REPORT)
    assert caplog.messages == ["model: step 12/100, objective 0.345679, 167 ms a step, 200K rows/s, 5MB"] * 3


def test_progress_when_there_is_no_terminal_then_goes_to_the_log(caplog, monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with caplog.at_level(logging.INFO, "ps2"), progress.progress("model", 100) as show:
        clock[0] += progress.LOG_INTERVAL_S
        show(REPORT)
    assert [message.split(", ")[0] for message in caplog.messages] == [
        "model: the workers read their rows",
        "model: step 12/100",
        "model: the model is trained",
    ]
    assert sys.stderr.getvalue() == ""


LIVE = """
import time
from ps2.algorithms.training.progress import progress
from ps2.algorithms.training.record import StepReport, Words
with progress("LogisticRegression", 100) as show:
    for step in range(1, 4):
        show(StepReport(step, 0.5, 1.0, 1000 * step, 2048))
        time.sleep(0.15)
with progress("GBTClassifier", 100) as show:
    show(StepReport(99, 0.123456, 9.9, 9000, 2048, 0.654321, {"leaves": 64}, Words("tree", "loss")))
    time.sleep(0.15)
"""


def seen_in(columns):
    """What two trainings show in a terminal."""
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "10"}
    with subprocess.Popen([sys.executable, "-c", LIVE], stderr=follower, env=environment) as program:
        os.close(follower)
        seen = b""
        while part := _read(leader):
            seen += part
    os.close(leader)
    assert program.returncode == 0
    return seen.decode()


def test_progress_when_on_terminal_then_updates_one_line():
    text = seen_in(120)
    assert "LogisticRegression" in text
    assert "step 3/100, objective 0.5, 333 ms a step, 3K rows/s, 2KB" in text
    assert "tree 99/100, loss 0.123456, validation 0.654321, 64 leaves, 100 ms a tree" in text
    assert text.rstrip().endswith("\x1b[2K")  # the line is erased in the end


def test_progress_when_terminal_is_narrow_then_line_fits():
    lines = re.split(r"[\r\n]|\x1b\[[0-9;?]*[a-zA-Z]", seen_in(80))
    assert "tree 99/100, loss 0.123456, validation 0.654321, 64 leaves, 100 ms a tree" in lines
    assert max(map(len, lines)) <= 80


def _read(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # its last writer has gone
        return b""
