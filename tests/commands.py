"""Commands within the test's process, and what tests ask of what they say."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from unittest import mock

from ps2.cli.main import main
from ps2.config import TOKEN_FILE_VARIABLE
from ps2.storage import folders

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A busy machine may give it time to tell something; the link of the live page is told before.
PROGRESS = re.compile(r"^(ps2 train \w+: \d+ s: |PS2: live page at ).*\n", re.MULTILINE)
TRACES = ("Traceback", "\tat ", "Caused by", "Py4J")


def ps2(*arguments, **variables):
    """Run ``ps2 ARGUMENTS`` in this process: a process of its own would first import for a second.

    Args:
        variables: of the environment, set meanwhile.

    Returns:
        What ``subprocess.run(..., text=True, capture_output=True)`` would.
    """
    output, errors = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        with (
            mock.patch.dict(os.environ, {"COLUMNS": "80", **variables}),
            mock.patch.object(sys, "argv", ["ps2", *map(str, arguments)]),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
        ):
            if TOKEN_FILE_VARIABLE not in variables:
                os.environ.pop(TOKEN_FILE_VARIABLE, None)
            main()
    except SystemExit as end:
        return subprocess.CompletedProcess(sys.argv, end.code, output.getvalue(), errors.getvalue())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def assert_one_line(stderr):
    """Fail unless a command has said one line, and no traceback; what it told of its progress does not count."""
    stderr = PROGRESS.sub("", stderr)
    assert stderr.count("\n") == 1, stderr
    assert stderr.startswith("ps2: ")
    assert not [trace for trace in TRACES if trace in stderr]


def newest_clock(folder):
    """Return the clock of the newest checkpoint in a folder; 0 without one."""
    created = any(folder.glob("*/manifest.json"))
    return (folders.read_manifest(folders.newest(str(folder))).step or 0) if created else 0
