"""Clients of Spark Connect: real servers, at night with executors that are processes too, and two client programs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pyspark
import pytest

from tests.ports import free_port

CLUSTER = "local-cluster[2,1,1024]"
# A server, its executors and a client begin, of which each takes seconds of a core.
START_S = 150.0
APP_TIMEOUT_S = 450
pytestmark = pytest.mark.timeout(START_S + APP_TIMEOUT_S)
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="module", params=["local[2]", pytest.param(CLUSTER, marks=pytest.mark.nightly)])
def said(request, printed):
    """What a client that runs and fits has seen."""
    return printed("common", request.param)


@pytest.fixture(scope="module")
def seen(printed):
    """What a client that streams, and then loses its sessions and its server, has seen."""
    return printed("rare", CLUSTER)


@pytest.fixture(scope="module")
def printed(run_program, tmp_path_factory, until):
    """``printed(scenarios, master)``: what ``connect_app.py`` prints."""
    return lambda scenarios, master: _printed(scenarios, master, run_program, tmp_path_factory, until)


def _printed(scenarios, master, run_program, tmp_path_factory, until):
    folder, port = tmp_path_factory.mktemp("connect"), free_port()
    # Without Spark's archive of pyspark, which each Python worker would compile anew: Spark gives the one of a query's
    # batches 10 s to begin.
    home = folder / "spark"
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": 2,
        "spark.task.maxFailures": 1,
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [home / "bin/spark-submit", "--master", master, *conf, "--class", SERVER]
    environment = {**os.environ, "SPARK_HOME": str(home)}
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*map(str, command), "spark-internal"], cwd=folder, env=environment, stdout=log, stderr=log
        )
    try:
        until(lambda: "Spark Connect server started" in (folder / "server.log").read_text(), "it started", START_S)
        app = Path(__file__).with_name("connect_app.py")
        finished = run_program(
            sys.executable, app, port, server.pid, folder, free_port(), scenarios, timeout_s=APP_TIMEOUT_S
        )
        assert finished.returncode == 0, finished.stderr
        return json.loads(finished.stdout.splitlines()[-1])
    finally:
        _end(server)


def _end(server):
    """End the server and its executors. The program has killed it, usually."""
    try:
        children = psutil.Process(server.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    for process in children:
        process.kill()
    server.send_signal(signal.SIGKILL)
    server.wait()


def test_run_when_client_has_no_context_then_workers_share_rows(said):
    assert [rank for rank, _ in said["results"]] == [0, 1]
    assert sum(rows for _, rows in said["results"]) == 100
    assert said["sum"] == 100 * 3 * 4


def test_vectors_when_tasks_of_connect_add_then_each_counts(said):
    assert said["counted"] == 100
    assert said["sum of tasks"] == 400


def test_run_when_worker_fails_then_error_has_its_traceback(said):
    kind, words = said["failure"]
    assert kind == "WorkerError"
    assert "ZeroDivisionError" in words


def test_run_when_workers_exceed_connect_slots_then_slots_error(said):
    kind, words = said["slots"]
    assert kind == "SlotsError"
    assert "9 are needed" in words
    assert said["sum after failures"] == 0


def test_fit_when_client_has_no_context_then_model_predicts(said):
    assert said["accuracy"] > 0.9
    np.testing.assert_allclose(said["probability"], said["expected"], rtol=1e-9, atol=1e-12)


def test_run_when_data_are_of_the_client_then_equal_parts(said):
    assert said["list"] == [["a"], ["b", "c"]]
    assert said["pandas"] == [[[0, 1]], [[2, 3, 4]]]


@pytest.mark.nightly
def test_fit_stream_when_client_learns_then_batches_count_once(seen):
    assert seen["stream"] == [[0, 100], [1, 200]]
    assert seen["stream again"] == [1, [3, 400]]


@pytest.mark.nightly
def test_fit_stream_when_a_task_fails_then_names_the_batch(seen):
    kind, words = seen["stream fails"]
    assert kind == "WorkerError"
    assert words == "batch 4: a task raised ZeroDivisionError: float division by zero"


def test_model_when_client_saves_it_twice_then_it_loads(said):
    assert said["loaded"]


def test_to_pyspark_when_over_connect_then_error_says_so(said):
    kind, words = said["to pyspark"]
    assert kind == "ConfigError"
    assert "without remote()" in words


@pytest.mark.nightly
def test_spark_launcher_when_over_connect_then_error_says_so(seen):
    kind, words = seen["launcher"]
    assert kind == "ConfigError"
    assert "ps2 launch" in words


@pytest.mark.nightly
def test_run_when_executors_cannot_reach_client_then_says_how(seen):
    kind, words = seen["unreached"]
    assert kind == "ConfigError"
    assert "127.0.0.2:" in words
    assert "driverHost" in words


@pytest.mark.nightly
def test_run_when_its_session_is_stopped_then_stopped_error(seen):
    kind, words = seen["stopped"]
    assert kind == "StoppedError"
    assert re.fullmatch("run: the (SparkSession was stopped|session at .* has ended: .*)", words)


@pytest.mark.nightly
def test_stream_when_its_session_is_released_then_it_ends(seen):
    kind, words = seen["released"]
    assert kind == "StoppedError"
    assert re.fullmatch(r"after batch \d+: the session at .* has ended: it was stopped, .*", words)
    assert seen["seconds to the end"] < 30
    assert seen["after the release"][0] == "StoppedError"


@pytest.mark.nightly
def test_run_when_connect_server_is_killed_then_it_ends(seen):
    kind, words = seen["lost"]
    assert kind == "StoppedError"
    assert "has not answered for 5 s" in words
    assert seen["seconds"] < 60
    assert seen["open"] == []
