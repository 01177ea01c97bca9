"""Pods as ``ps2 k8s render`` has them, as processes: their command lines, but for addresses and the token's place."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from ps2 import DCV, PS2Context
from ps2.cli.main import cli
from ps2.config import new_token, write_token
from tests.commands import free_port

pytestmark = pytest.mark.usefixtures("leaves_nothing")

VALUES = np.arange(1000.0)


class Pod:
    """One pod of a StatefulSet, under an address that stays.

    Attributes:
        address: where it listens for drivers.
    """

    def __init__(self, container, token, folder):
        self.address, self._metrics = (f"127.0.0.1:{free_port()}" for _ in range(2))
        host, metrics_port = self._metrics.split(":")
        here = {
            "--listen": self.address,
            "--data-port": "0",
            "--advertise": host,
            "--token-file": str(token),
            "--metrics-port": metrics_port,
        }
        given = dict(argument.split("=", 1) for argument in container["args"])
        assert here.keys() <= given.keys()
        assert container["command"] == ["ps2", "server"]
        self._command = [*map("=".join, {**given, **here}.items())]
        self._probe = container["readinessProbe"]["httpGet"]["path"]
        self._folder = folder

    def start(self):
        command = [sys.executable, "-m", "ps2.cli.main", "server", *self._command]
        with open(self._folder / "log", "a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ))

    def stop(self):
        """As a kubelet does, and wait."""
        self._process.terminate()
        assert self._process.wait(30) == 0

    def end(self):
        self._process.kill()
        self._process.wait()

    def status(self):
        """What the readiness probe hears; None if nobody answers."""
        try:
            with urllib.request.urlopen(f"http://{self._metrics}{self._probe}", timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None


@pytest.fixture
def pods(tmp_path, until):
    """Three pods that are up."""
    printed = CliRunner().invoke(cli, ["k8s", "render", "--image", "ps2:dev", "--cores", "1"])
    (fleet,) = [each for each in yaml.safe_load_all(printed.stdout) if each["kind"] == "StatefulSet"]
    (container,) = fleet["spec"]["template"]["spec"]["containers"]
    token = Path(tmp_path / "token")
    write_token(token, new_token())
    found = [Pod(container, token, tmp_path) for _ in range(3)]
    with ExitStack() as ended:
        for pod in found:
            pod.start()
            ended.callback(pod.end)
        until(lambda: all(pod.status() == 503 for pod in found), "they are up, and have no driver", 60)
        yield found


def test_pods_when_they_are_restarted_one_by_one_then_nothing_is_lost_and_more_take_over_from_a_checkpoint(
    pods, tmp_path, until
):
    first, second, _ = pods
    folder = str(tmp_path / "checkpoints")
    given = {"tokenFile": str(tmp_path / "token"), "checkpointDir": folder}
    with PS2Context.getOrCreate(fleet=[first.address, second.address], replicas=1, **given) as ps:
        until(lambda: first.status() == second.status() == 200, "they are ready")
        weight = DCV.dense(1000, dtype="float64", name="weight").push(VALUES)
        for done, pod in enumerate((first, second), 1):
            pod.stop()
            pod.start()
            # A rolling update takes the next one no sooner.
            until(lambda pod=pod: pod.status() == 200, "it has its shards again", 60)
            weight.add(1)
            assert np.array_equal(weight.pull(), VALUES + done)
        assert [recovery.source for recovery in ps.recoveries] == ["replica", "replica"]
        path = ps.checkpoint().path
    # Scaled up: the next driver names one more.
    with PS2Context.getOrCreate(fleet=[pod.address for pod in pods], restore=path, **given) as ps:
        assert np.array_equal(ps.vector("weight").pull(), VALUES + 2)
        assert [pod.status() for pod in pods] == [200] * 3
