"""What tests of commands ask of what they say."""

from __future__ import annotations

import re

from ps2.storage import folders

# A busy machine may give it time to tell something; the link of the live page is told before.
PROGRESS = re.compile(r"^(ps2 train \w+: \d+ s: |PS2: live page at ).*\n", re.MULTILINE)
TRACES = ("Traceback", "\tat ", "Caused by", "Py4J")


def assert_one_line(stderr):
    """Fail unless a command has said one line, and no traceback; what it told of its progress does not count."""
    stderr = PROGRESS.sub("", stderr)
    assert stderr.count("\n") == 1, stderr
    assert stderr.startswith("ps2: ")
    assert not [trace for trace in TRACES if trace in stderr]


def newest_clock(folder):
    """Return the clock of the newest checkpoint in a folder; 0 without one."""
    made = any(folder.glob("*/manifest.json"))
    return (folders.read_manifest(folders.newest(str(folder))).step or 0) if made else 0
