"""``deploy/standalone``: what its scripts call, in several shells and with a login shell's environment."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "deploy" / "standalone"
MASTER = "spark://host:7077"
SHELLS = [shell for shell in ("sh", "dash", "bash", "busybox") if shutil.which(shell)]


@pytest.fixture(params=SHELLS)
def called(request, tmp_path):
    """A function that runs a script in a shell, and returns what it prints: its last call, a word a line."""
    for program, answer in (
        ("ps2", 'case $1 in env) echo "export PS2_FLEET=host:1"; exit;; esac'),
        ("spark-submit", ""),
    ):
        file = tmp_path / program
        file.write_text(f'#!/bin/sh\n{answer}\nprintf "%s\\n" "$0" "$@" "fleet $PS2_FLEET"\n')
        file.chmod(0o755)
    shell = [request.param, *(["sh"] if request.param == "busybox" else [])]
    login = {"PATH": f"{tmp_path}:{os.defpath}", "HOME": str(tmp_path), "SPARK_MASTER": MASTER}

    def run(script, *arguments):
        command = [*shell, SCRIPTS / script, *arguments]
        output = subprocess.run(command, env=login, capture_output=True, text=True, check=True).stdout
        return output.replace(f"{tmp_path}/", "").splitlines()

    return run


def test_start_fleet_when_in_any_shell_then_calls_ps2(called):
    launch = ["ps2", "launch", "--on", "spark", "--detach", "--servers", "8", "--"]
    assert called("start-fleet.sh", "--servers", "8") == [*launch, "--master", MASTER, "fleet "]
    archives = ["--archives", "env.tar.gz#environment"]
    assert called("start-fleet.sh", *launch[-3:], *archives) == [*launch, *archives, "--master", MASTER, "fleet "]


def test_submit_when_in_any_shell_then_job_has_the_fleet(called):
    job = ["--total-executor-cores", "8", "train.py", "a b"]
    assert called("submit.sh", *job) == ["spark-submit", "--master", MASTER, *job, "fleet host:1"]
