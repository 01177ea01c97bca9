"""Several drivers on one fleet, each in its namespace: none notices what happens to another one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest

from ps2 import DCV, PS2Conf, PS2Context
from ps2.cli.processes import ServerProcesses
from ps2.config import new_token, write_token
from ps2.launched_fleets import ServerOptions, claim
from ps2.processes import ProcessId
from tests.ports import free_port, is_listening

pytestmark = pytest.mark.usefixtures("leaves_nothing")

# Evaluated by a driver of a Spark application.
READ_IN_TASKS = "spark.parallelize([1, 2], 2).map(lambda k: k * vectors['ads'].sum() + vectors['w'].sum()).collect()"

# A driver that evaluates a line at a time, and answers with JSON; errors of PS2 are answers too.
DRIVER = """
import json, sys
import numpy as np
from ps2 import DCV, PS2Conf, PS2Context
from ps2.errors import PS2Error
ps, vectors = None, {}
def start(**settings):
    global ps
    ps = PS2Context.getOrCreate(conf=PS2Conf(heartbeatS=0.5, lostAfterS=2.0, dashboard=False), **settings)
    return ps.conf.namespace
def start_spark():
    global spark
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate().sparkContext
def new(name, value):
    vectors[name] = DCV.dense(1000, dtype="float64", name=name).fill(value)
    return value
for line in sys.stdin:
    try:
        answer = eval(line)
    except PS2Error as error:
        answer = f"{type(error).__name__}: {error}"
    print(json.dumps(answer), flush=True)
"""


class Driver:
    """A driver process that evaluates expressions."""

    def __init__(self, fleet, namespace, uses_spark=False, **settings):
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        settings = {"fleet": fleet.addresses, "tokenFile": str(fleet.token), "namespace": namespace, **settings}
        if uses_spark:
            self.ask("start_spark()")
        self.started = self.ask(f"start(**{settings!r})")

    def ask(self, expression):
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def sum(self, name):
        return self.ask(f"ps.vector({name!r}).sum()")

    def kill(self):
        self.process.kill()
        self.process.communicate()


class Fleet:
    """Two servers that drivers attach to."""

    def __init__(self, folder):
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.token = folder / "token"
        write_token(self.token, new_token())
        options = ServerOptions(tuple(self.addresses), 1 << 30, exit_with_parent=True)
        launched = claim("ads", ProcessId.from_pid(os.getpid()), self.token, options=options)
        self.servers = ServerProcesses(launched, options)
        for index in range(2):
            self.servers.start(index)

    def process(self, index):
        return self.servers.fleet.servers[index].process


@pytest.fixture
def fleet(tmp_path, monkeypatch, until):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    servers = Fleet(tmp_path)
    try:
        until(lambda: all(map(is_listening, servers.addresses)), "the servers listen", 60)
        yield servers
    finally:
        servers.servers.stop()


@contextmanager
def drivers(fleet, *namespaces, **settings):
    with ExitStack() as ends:
        started = []
        for namespace in namespaces:
            started.append(Driver(fleet, namespace, **settings))
            ends.callback(started[-1].kill)
        yield started


def test_drivers_when_names_are_equal_then_values_are_their_own(fleet):
    with drivers(fleet, "ads", "feed") as (ads, feed):
        assert (ads.started, feed.started) == ("ads", "feed")
        assert (ads.ask("new('w', 1)"), feed.ask("new('w', 2)")) == (1, 2)
        assert (ads.sum("w"), feed.sum("w")) == (1000.0, 2000.0)
        assert ads.ask("[m.names for m in ps.status().matrices]") == [["w"]]
        assert ads.ask("ps.stop()") is None
        assert feed.sum("w") == 2000.0


def test_driver_when_fleet_is_a_name_then_attaches_to_it(fleet):
    with PS2Context.getOrCreate(fleet="ads", namespace="feed") as ps:
        assert ps.conf == PS2Conf(fleet=fleet.addresses, tokenFile=str(fleet.token), namespace="feed")
        assert ps.servers == fleet.addresses
        assert DCV.dense(10).fill(2).sum() == 20


def test_driver_when_killed_then_only_its_successor_notices(fleet, until):
    with drivers(fleet, "ads", "feed") as (ads, feed):
        ads.ask("new('w', 1)")
        feed.ask("new('w', 2)")
        ads.kill()
        with drivers(fleet, "ads") as (successor,):
            assert successor.started == "ads"
            assert (successor.sum("w"), feed.sum("w")) == (1000.0, 2000.0)
            refused = Driver(fleet, "ads")
            try:
                assert refused.started.startswith(
                    "UsageError: namespace 'ads' of this fleet has a driver (coordinator "
                )
                assert refused.started.endswith("or give this one a namespace of its own: namespace='...'")
            finally:
                refused.kill()
        assert feed.ask("new('v', 3)") == 3
        assert feed.ask("[ps.vectors()[0].name, len(ps.recoveries)]") == ["v", 0]


def test_server_when_restarted_then_each_driver_restores_its_own(fleet, tmp_path, until):
    with ExitStack() as ends:
        started = []
        for number, namespace in enumerate(("ads", "feed")):
            driver = Driver(fleet, namespace, checkpointDir=str(tmp_path / namespace), replicas=number)
            ends.callback(driver.kill)
            driver.ask(f"new('w', {number + 1})")
            assert driver.ask("ps.checkpoint().path").startswith(str(tmp_path / namespace))
            driver.ask("vectors['w'].add(10) and 0")
            started.append(driver)
        killed = fleet.process(0)
        killed.send(signal.SIGKILL)
        until(lambda: not killed.alive(), "it is dead")
        fleet.servers.start(0)
        ads, feed = started
        # Half of the vector is as old as the checkpoint; the copies of the other namespace are up to date.
        assert ads.ask("vectors['w'].sum()") == 500 * 1 + 500 * 11
        assert feed.ask("vectors['w'].sum()") == 1000 * 12
        assert ads.ask("[r.source for r in ps.recoveries]") == ["checkpoint"]
        assert feed.ask("[r.source for r in ps.recoveries]") == ["replica"]


def test_rollback_when_one_driver_asks_then_other_continues(fleet, tmp_path):
    with drivers(fleet, "ads", "feed", checkpointDir=str(tmp_path / "checkpoints")) as (ads, feed):
        for value, driver in enumerate((ads, feed), 1):
            driver.ask(f"new('w', {value})")
            driver.ask("ps.checkpoint() and 0")
            driver.ask("vectors['w'].add(10) and 0")
        assert ads.ask("ps.rollBack()") == 0
        assert (ads.sum("w"), feed.sum("w")) == (1000.0, 12000.0)
        assert [driver.ask("len(ps.recoveries)") for driver in (ads, feed)] == [1, 0]


def test_server_when_told_to_end_then_waits_for_all_drivers(fleet, tmp_path, until):
    with drivers(fleet, "ads", "feed") as (ads, feed):
        ads.ask("new('w', 1)")
        feed.ask("new('w', 2)")
        fleet.process(0).send(signal.SIGTERM)
        until(lambda: not fleet.process(0).alive(), "both drivers have released it", 30)


def test_vector_when_opened_by_another_driver_then_read_only(fleet):
    with drivers(fleet, "ads", "feed") as (ads, feed):
        ads.ask("new('w', 1)")
        feed.ask("new('w', 2)")
        assert feed.ask("vectors.update(ads=DCV.open('ads/w'))") is None
        assert feed.ask("repr(vectors['ads'])").startswith("DCV('ads/w', dense, dim=1000, float64")
        reads = ("sum()", "dot(vectors['ads'])", "pull([1, 2])[1]", "nnz()")
        assert [feed.ask(f"vectors['ads'].{read}") for read in reads] == [1000.0, 1000.0, 1.0, 1000]
        assert feed.ask("vectors['ads'].isColocated(vectors['w'])") is False
        assert feed.ask("vectors['w'].copy(vectors['ads']).sum()") == 1000.0
        refused = r"this vector belongs to namespace 'ads' and is read-only here"
        for change in ("push([1] * 1000)", "add(1)", "add(1, wait=False)", "fill(3)", "derive()", "free()", "matrix()"):
            assert feed.ask(f"vectors['ads'].{change} and 0").startswith(f"UsageError: {refused}"), change
        assert feed.ask("DCV.open('ads/v')") == (
            "NotFoundError: namespace 'ads' of this fleet has no vector 'v'; expected one of w"
        )
        assert feed.ask("DCV.open('none/w')").endswith("has no vector 'w'; expected one of (none)")
        assert feed.ask("DCV.open('w')") == "ConfigError: open: expected 'namespace/name', got 'w'"
        ads.kill()
        assert feed.ask("vectors['ads'].sum()") == 1000.0
        with drivers(fleet, "ads") as (successor,):
            assert successor.ask("ps.vector('w').fill(5) and 0") == 0
            assert feed.ask("vectors['ads'].sum()") == 5000.0
            successor.ask("ps.vector('w').free()")
            assert "does not exist (any more) in namespace 'ads'" in feed.ask("vectors['ads'].sum()")


def test_opened_vector_when_its_server_restarts_then_is_read_on(fleet, tmp_path, until):
    with drivers(fleet, "ads", checkpointDir=str(tmp_path / "ads")) as (ads,), drivers(fleet, "feed") as (feed,):
        ads.ask("new('w', 1)")
        ads.ask("ps.checkpoint() and 0")
        feed.ask("vectors.update(ads=DCV.open('ads/w'))")
        killed = fleet.process(0)
        killed.send(signal.SIGKILL)
        until(lambda: not killed.alive(), "it is dead")
        fleet.servers.start(0)
        assert feed.ask("vectors['ads'].sum()") == 1000.0


def test_opened_vector_when_tasks_read_it_then_it_is_current(fleet):
    with drivers(fleet, "ads") as (ads,), drivers(fleet, "feed", uses_spark=True) as (feed,):
        ads.ask("new('w', 1)")
        feed.ask("new('w', 2)")
        feed.ask("vectors.update(ads=DCV.open('ads/w'))")
        assert feed.ask(READ_IN_TASKS) == [3000.0, 4000.0]
        ads.ask("vectors['w'].fill(3) and 0")
        assert feed.ask(READ_IN_TASKS) == [5000.0, 8000.0]
        assert feed.ask("ps.stop()") is None
