"""``ps2 launch --on spark``: the whole life of a fleet in containers that drivers attach to."""

from __future__ import annotations

import json
import re

import numpy as np
import psutil
import pytest

from ps2 import DCV, PS2Conf, PS2Context
from tests.certificates import write

DIM = 100


def servers(pid):
    """The servers below a process."""
    result = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if "ps2.cli.main server" in " ".join(process.cmdline()):
                result.append(process)
        except psutil.Error:  # it has ended
            continue
    return result


def test_ps2_launch_when_on_spark_with_tls_then_driver_attaches(
    start_program, run_program, ps2_command, tmp_path, until
):
    ps2 = ["env", f"XDG_STATE_HOME={tmp_path}", ps2_command]
    launch = [*ps2, "launch", "--on", "spark", "--servers", "2", "--memory", "64m", "--host", "127.0.0.1"]
    # Nobody knows before on which hosts containers are, so all have one name.
    files = write(tmp_path / "certificates", names=["fleet.example"], tls_name="fleet.example")
    launch += files.arguments()
    master = ["--", "--master", "local-cluster[2,1,1400]", "--conf", "spark.driver.host=127.0.0.1"]
    launcher, output = start_program(*launch, *master)
    until(lambda: "stop    ps2 stop" in output.read_text() or launcher.poll() is not None, "it runs", 120)
    addresses = re.findall(r"^  (127\S+)  container app-\S+ on \S+$", output.read_text(), re.MULTILINE)
    assert len(addresses) == 2, output.read_text()
    taken = run_program(*launch)
    assert (taken.returncode, "is running; end it with 'ps2 stop'" in taken.stderr) == (1, True)
    with PS2Context.getOrCreate(
        fleet=addresses,
        tokenFile=str(tmp_path / "ps2" / "default" / "token"),
        replicas=1,
        conf=PS2Conf(tlsCert=files.cert, tlsKey=files.key, tlsCa=files.ca, tlsName=files.name),
    ) as context:
        weight = DCV.dense(DIM)
        weight.fill(3.0)
        servers(launcher.pid)[0].kill()
        until(lambda: len(context.recoveries) == 1, "the server is back", 60)
        np.testing.assert_array_equal(weight.pull(), np.full(DIM, 3.0))
        assert context.servers == addresses
    shown = json.loads(run_program(*ps2, "status", "-o", "json").stdout)["servers"]
    assert [(server["state"], server["container"][:4]) for server in shown] == [("running", "app-")] * 2
    stopped = run_program(*ps2, "stop")
    assert stopped.returncode == 0, stopped.stderr
    until(lambda: launcher.poll() == 0, "the launcher has ended", 30)
    assert output.read_text().endswith("the fleet was stopped\n")


@pytest.mark.nightly
def test_ps2_launch_when_detached_on_spark_then_fleet_stays_up(run_program, ps2_command, tmp_path, until):
    ps2 = ["env", f"XDG_STATE_HOME={tmp_path}", ps2_command]
    launch = [*ps2, "launch", "--on", "spark", "--servers", "1", "--memory", "64m", "--host", "127.0.0.1", "--detach"]
    wrong = run_program(*launch, "--", "--master", "local-cluster[1,1,1400]", "--no-such-option", "1")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.startswith("ps2: server 0 did not start: ")
    launched = run_program(
        *launch, "--", "--master", "local-cluster[1,1,1400]", "--conf", "spark.driver.host=127.0.0.1"
    )
    assert (launched.returncode, launched.stderr) == (0, "")
    folder = tmp_path / "ps2" / "default"
    assert "1 server in containers, until 'ps2 stop'" in launched.stdout
    assert f"log     {folder / 'launcher.log'}" in launched.stdout
    launcher = psutil.Process(json.loads((folder / "fleet.json").read_text())["launcher"]["pid"])
    (server,) = servers(launcher.pid)
    (address,) = re.findall(r"^  (127\S+)  container app-", launched.stdout, re.MULTILINE)
    with PS2Context.getOrCreate(fleet=[address], tokenFile=str(folder / "token")):
        assert DCV.dense(DIM).fill(2.0).sum() == 2.0 * DIM
    family = [launcher, server, *launcher.children(recursive=True)]
    assert run_program(*ps2, "stop").returncode == 0
    until(lambda: not any(process.is_running() for process in family), "all of it has ended", 30)
