"""``ps2 serve``: one that serves, as a shell runs it, and those that are refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import requests

from tests.commands import assert_one_line, ps2
from tests.exporting import export

SERVE = [sys.executable, "-m", "ps2.cli.main", "serve", "--model"]


def refused(*arguments):
    """Return the exit code and the error of a command that is refused."""
    finished = ps2("serve", "--model", *arguments)
    assert_one_line(finished.stderr)
    return finished.returncode, finished.stderr


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(answer, warning, exit code) of a process whose export breaks while it serves, and that is told to end then."""
    folder = tmp_path_factory.mktemp("export")
    export(folder, np.arange(100))
    command = [*SERVE, str(folder), "--listen", "127.0.0.1:0", "--refresh", "0.1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ | {"PS2_LOG": "json"}, **pipes) as process:
        try:
            assert "kind=table" in process.stdout.readline()
            url = process.stdout.readline().split()[-1]
            with requests.post(f"{url}/vectors", json={"keys": [7, 100]}, timeout=10) as response:
                answer = response.json()
            (folder / "manifest.json").write_text("{")
            warning = json.loads(process.stderr.readline())
            process.send_signal(signal.SIGTERM)
            return answer, warning, process.wait(30)
        finally:
            process.kill()


def test_serve_when_asked_for_vectors_then_tells_which_are_there(served):
    assert served[0]["present"] == [True, False]


def test_serve_when_its_log_is_json_then_a_warning_is_too(served):
    line = served[1]
    assert (line["level"], line["logger"]) == ("WARNING", "ps2.serving.scorer")
    assert "stays in use" in line["message"]


def test_serve_when_told_to_end_then_ends_with_0(served):
    assert served[2] == 0


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        (["--listen", "0.0.0.0:0"], 2, "give --token-file"),
        (["--listen", "127.0.0.1:0", "--tls-cert", "x.pem"], 2, "--tls-key"),
        (["--listen", "127.0.0.1:0", "--tls-cert", "x.pem", "--tls-key", "y.pem"], 2, "expected a certificate"),
        (["--token-file", "nowhere"], 6, "nowhere"),
    ],
)
def test_serve_when_an_option_is_wrong_then_says_so(tmp_path, more, code, text):
    export(tmp_path, np.arange(3))
    result, message = refused(tmp_path, *more)
    assert result == code
    assert text in message


def test_serve_when_there_is_no_export_then_says_so(tmp_path):
    assert refused(tmp_path, "--listen", "127.0.0.1:0") == (
        1,
        f"ps2: {tmp_path}: expected an export, but there is no manifest.json in this folder\n",
    )
