"""A fleet that is a second Spark application, in containers of its own."""

from __future__ import annotations

import numpy as np
import psutil
import pytest
from faults.processes import command_of

from ps2 import DCV, PS2Conf, PS2Context
from ps2.errors import ConfigError, LaunchError

# Two executors of one core: as many as the fleet wants.
CLUSTER = {"spark.master": "local-cluster[2,1,1400]", "spark.driver.host": "127.0.0.1"}
MEMORY = 64 << 20
DIM = 100


@pytest.fixture(scope="module")
def ps(spark):
    """A fleet of two servers in containers, with copies; tasks are the shared session's."""
    with PS2Context.getOrCreate(
        spark,
        2,
        launcher="spark",
        memoryLimit=MEMORY,
        replicas=1,
        conf=PS2Conf(sparkConf=CLUSTER, bindAddress="localhost"),
    ) as created:
        yield created


@pytest.fixture(scope="module")
def weight(ps, sc):
    """What four tasks have added 1 to, by the tasks' way."""
    created = DCV.dense(DIM, dtype="int64")
    sc.parallelize(range(4), 4).foreach(lambda _: created.add([1] * DIM))
    return created


def family(pid=None):
    return psutil.Process(pid).children(recursive=True)


def servers(pid=None):
    """Those below a process, which may stand above others that were launched."""
    return [process for process in family(pid) if "ps2.cli.main server" in command_of(process)]


@pytest.mark.nightly
def test_servers_when_fleet_runs_then_each_has_its_own_container(ps, weight):
    assert (
        len(
            {
                position
                for position in ps._coordinator.fleet.launcher.hosts.locations().values()
                if position.startswith("container app-")
            }
        )
        == 2
    )
    np.testing.assert_array_equal(weight.pull(), np.full(DIM, 4))


@pytest.mark.nightly
def test_token_when_fleet_runs_then_not_in_argv_or_environment(ps):
    assert not [process for process in family() if ps._coordinator.token in command_of(process)]
    assert not [process for process in servers() if ps._coordinator.token in " ".join(process.environ().values())]


@pytest.mark.nightly
def test_server_when_killed_then_container_starts_another(ps, weight):
    before = ps._coordinator.fleet.launcher.hosts.locations()
    servers()[0].kill()
    weight.add([1] * DIM)
    np.testing.assert_array_equal(weight.pull(), np.full(DIM, 5))
    assert ps.recoveries[-1].source == "replica"
    assert "ended by SIGKILL" in ps.recoveries[-1].reason
    assert ps._coordinator.fleet.launcher.hosts.locations() == before


@pytest.mark.nightly
def test_container_when_killed_then_cluster_gives_another(ps, weight, until):
    before, recoveries = ps._coordinator.fleet.launcher.hosts.locations(), len(ps.recoveries)
    executor = next(p for p in servers()[0].parents() if "CoarseGrainedExecutorBackend" in command_of(p))
    executor.kill()
    until(lambda: len(ps.recoveries) > recoveries, "the server is back", 60)
    weight.add([1] * DIM)
    np.testing.assert_array_equal(weight.pull(), np.full(DIM, 6))
    assert len(set(before.items()) & set(ps._coordinator.fleet.launcher.hosts.locations().items())) == 1


@pytest.mark.nightly
def test_stop_when_servers_are_in_containers_then_none_is_left(ps, weight, until):
    application = next(p for p in family() if "ps2.coordinator.launchers.containers.spark_app" in command_of(p))
    theirs = [application, *application.children(recursive=True)]
    assert {process.pid for process in servers()} <= {process.pid for process in theirs}
    ps.stop()
    until(lambda: not any(process.is_running() for process in theirs), "all have ended")


def test_get_or_create_when_no_containers_then_config_error(spark):
    with pytest.raises(ConfigError, match="starts no containers"):
        PS2Context.getOrCreate(spark, 2, launcher="spark")


@pytest.mark.nightly
def test_get_or_create_when_container_too_big_then_launch_error(spark):
    conf = PS2Conf(sparkConf=CLUSTER | {"spark.master": "local-cluster[1,1,900]"})
    with pytest.raises(LaunchError, match=r"Spark application has ended: .*1276 MiB"):
        PS2Context.getOrCreate(spark, 1, launcher="spark", memoryLimit=MEMORY, conf=conf)
