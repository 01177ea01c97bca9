"""Pods as ``ps2 k8s render`` has them, as processes: their command lines, but for addresses and the token's place."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from ps2 import DCV, PS2Conf, PS2Context
from ps2.cli.main import cli
from ps2.config import new_token, write_token
from ps2.errors import RolledBack, UnavailableError
from tests.ports import free_port

pytestmark = pytest.mark.usefixtures("leaves_nothing")

VALUES = np.arange(1000.0)


class Pod:
    """One pod of a StatefulSet, under an address that stays.

    Attributes:
        address: where it listens for drivers.
    """

    def __init__(self, container, token, folder, forked, **options):
        self.address, self._metrics = (f"127.0.0.1:{free_port()}" for _ in range(2))
        host, metrics_port = self._metrics.split(":")
        here = {
            "--listen": self.address,
            "--data-port": "0",
            "--advertise": host,
            "--token-file": str(token),
            "--metrics-port": metrics_port,
        }
        inputs = dict(argument.split("=", 1) for argument in container["args"])
        assert here.keys() <= inputs.keys()
        assert container["command"] == ["ps2", "server"]
        self._command = [*map("=".join, {**inputs, **here, **options}.items())]
        self._probe = container["readinessProbe"]["httpGet"]["path"]
        self._log, self._forked = folder / "log", forked

    def start(self):
        self._process = self._forked(["server", *self._command], self._log)

    def stop(self):
        """As a kubelet does, and wait."""
        self.tell()
        self.wait()

    def tell(self):
        """As a kubelet tells it first."""
        self._process.terminate()

    def wait(self):
        assert self._process.wait(30) == 0

    def running(self):
        return self._process.poll() is None

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

    def waits(self):
        """Whether it waits for a driver: the metrics answer before the port for drivers is open."""
        if self.status() != 503:
            return False
        host, port = self.address.split(":")
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
            return True
        return False


@pytest.fixture
def container():
    """That of the servers, as it is printed."""
    printed = CliRunner().invoke(cli, ["k8s", "render", "--image", "ps2:dev", "--cores", "1"])
    (fleet,) = [each for each in yaml.safe_load_all(printed.stdout) if each["kind"] == "StatefulSet"]
    (container,) = fleet["spec"]["template"]["spec"]["containers"]
    return container


@pytest.fixture
def pods(container, tmp_path, until, forked):
    """Three pods that are up."""
    token = Path(tmp_path / "token")
    write_token(token, new_token())
    result = [Pod(container, token, tmp_path, forked) for _ in range(3)]
    with ExitStack() as ended:
        for pod in result:
            pod.start()
            ended.callback(pod.end)
        until(lambda: all(pod.waits() for pod in result), "they are up, and have no driver", 60)
        yield result


def test_pods_when_restarted_in_turn_then_nothing_is_lost(pods, tmp_path, until):
    first, second, _ = pods
    folder = str(tmp_path / "checkpoints")
    inputs = {"tokenFile": str(tmp_path / "token"), "checkpointDir": folder}
    with PS2Context.getOrCreate(fleet=[first.address, second.address], replicas=1, **inputs) as ps:
        until(lambda: first.status() == second.status() == 200, "they are ready")
        weight = DCV.dense(1000, dtype="float64", name="weight").push(VALUES)
        for finished, pod in enumerate((first, second), 1):
            pod.stop()
            pod.start()
            # A rolling update takes the next one no sooner.
            until(lambda pod=pod: pod.status() == 200, "it has its shards again", 60)
            weight.add(1)
            assert np.array_equal(weight.pull(), VALUES + finished)
        assert [recovery.source for recovery in ps.recoveries] == ["replica", "replica"]
        path = ps.checkpoint().path
    # Scaled up: the next driver names one more.
    with PS2Context.getOrCreate(fleet=[pod.address for pod in pods], restore=path, **inputs) as ps:
        assert np.array_equal(ps.vector("weight").pull(), VALUES + 2)
        assert [pod.status() for pod in pods] == [200] * 3


@pytest.mark.nightly
def test_pods_without_copies_when_terminated_then_hand_over_all(pods, tmp_path, until):
    first = pods[0]
    inputs = {
        "tokenFile": str(tmp_path / "token"),
        "checkpointDir": str(tmp_path / "checkpoints"),
        "conf": PS2Conf(retryTimeoutS=60),
    }
    with PS2Context.getOrCreate(fleet=[pod.address for pod in pods], **inputs) as ps:
        weight = DCV.dense(1000, dtype="float64", name="weight").push(VALUES)
        added, over = 0, threading.Event()

        def add():
            nonlocal added
            while not over.is_set():
                weight.add(1)
                added += 1

        adding = threading.Thread(target=add)
        adding.start()
        try:
            for restarted in ([first], pods):
                for pod in restarted:
                    pod.tell()
                for pod in restarted:
                    pod.wait()
                    pod.start()
                until(lambda: all(pod.status() == 200 for pod in pods), "they have their shards again", 60)
                before = added
                until(lambda before=before: added > before, "additions go on")
        finally:
            over.set()
            adding.join()
        assert np.array_equal(weight.pull(), VALUES + added)
        assert {(recovery.source, recovery.mixed) for recovery in ps.recoveries} == {("handover", False)}
        assert sorted(index for recovery in ps.recoveries for index in recovery.servers) == [0, 0, 1, 2]


def test_pods_when_one_is_killed_then_restored_from_checkpoint(pods, tmp_path, until, monkeypatch):
    inputs = {"tokenFile": str(tmp_path / "token"), "checkpointDir": str(tmp_path / "checkpoints")}
    with PS2Context.getOrCreate(fleet=[pod.address for pod in pods], **inputs) as ps:
        weight = DCV.dense(900, dtype="float64", name="weight").push(VALUES[:900])
        ps.checkpoint()
        weight.add(1)
        # Another one cannot be reached once the lost one has its shards: all of it is done again.
        activate, loaded, cut_off = ps._coordinator.fleet.control.activate, [], []

        def reach(address, order):
            if loaded and not cut_off:
                cut_off.append(address)
                raise UnavailableError(f"{address}: cut off")
            activate(address, order)
            loaded.extend([address] * order.loaded)

        monkeypatch.setattr(ps._coordinator.fleet.control, "activate", reach)
        pods[1].end()
        pods[1].start()
        until(lambda: pods[1].status() == 200, "it has its shards again", 60)
        until(lambda: ps.recoveries, "the recovery has ended")
        (recovery,) = ps.recoveries
        assert loaded == [pods[1].address] * 2
        assert cut_off == [pods[2].address]
        assert (recovery.source, recovery.servers, recovery.mixed) == ("checkpoint", (1,), True)
        assert np.array_equal(weight.pull() - VALUES[:900], np.repeat([1.0, 0.0, 1.0], 300))


@pytest.mark.nightly
def test_pods_when_one_ends_in_step_then_crash_undoes_whole_step(pods, tmp_path, until):
    inputs = {
        "tokenFile": str(tmp_path / "token"),
        "checkpointDir": str(tmp_path / "checkpoints"),
        "conf": PS2Conf(keep=1, recover="consistent"),
    }
    fleet = [pod.address for pod in pods]
    with PS2Context.getOrCreate(fleet=fleet, **inputs) as ps:
        weight = DCV.dense(1000, dtype="float64", name="weight").push(VALUES)
        cut = ps.checkpoint()
        with ps.step():
            weight.add(1)
            pods[0].stop()
            pods[0].start()
            until(lambda: pods[0].status() == 200, "it has its shards again", 60)
            weight.add(1)
        assert np.array_equal(weight.pull(), VALUES + 2)
        pods[1].end()
        pods[1].start()
        until(lambda: len(ps.recoveries) == 2, "the recovery has ended", 60)
        with pytest.raises(RolledBack):
            weight.pull()
        assert np.array_equal(weight.pull(), VALUES)
        assert [recovery.source for recovery in ps.recoveries] == ["handover", "checkpoint"]
        assert (ps.recoveries[1].checkpoint, ps.nextStep) == (cut.path, 0)


@pytest.mark.nightly
def test_pods_that_can_bring_nothing_to_safety_end_in_time(container, tmp_path, until, forked):
    write_token(tmp_path / "token", new_token())
    token = tmp_path / "token"
    patient, hasty = (Pod(container, token, tmp_path, forked, **{"--drain": drain}) for drain in ("600", "1"))
    folder = tmp_path / "checkpoints"
    with ExitStack() as ended:
        for pod in (patient, hasty):
            ended.callback(pod.end)
            pod.start()
        until(lambda: patient.waits() and hasty.waits(), "they are up", 60)
        fleet = {"fleet": [patient.address, hasty.address], "tokenFile": str(tmp_path / "token")}
        with PS2Context.getOrCreate(**fleet, checkpointDir=str(folder)) as ps:
            DCV.dense(10)
            folder.rmdir()
            folder.write_text("not a folder")
            for pod in (patient, hasty):
                pod.tell()
            until(lambda: not hasty.running(), "its time is over")
            assert patient.running()
            assert patient.status() == 503
            # Asked twice, it goes at once.
            patient.stop()
            assert ps.recoveries == []
        # Nor does one wait that holds nothing, or has no driver.
        patient.start()
        until(lambda: patient.status() == 503, "it is up again", 60)
        patient.stop()
