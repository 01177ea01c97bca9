"""The fleet's token is nowhere that others look; tests/spark/test_local_cluster.py looks into Spark's event log."""

from __future__ import annotations

import json
import os
import pickle
import urllib.request

import pytest
from faults.processes import command_of

from ps2 import DCV
from ps2.coordinator.application import driver_secret


@pytest.fixture(scope="module", params=["fleet", "driver"])
def token(request, ps):
    """The fleet's token; and the secret of the driver, from which it is derived."""
    return ps._coordinator.token if request.param == "fleet" else driver_secret()


@pytest.fixture(scope="module")
def vector(ps, spark, sc):
    """A vector that tasks of an RDD and of a DataFrame have used."""
    from pyspark.sql import functions

    u = DCV.dense(3, dtype="int64")
    sc.parallelize(range(2), 2).foreach(lambda _: u.add([1, 1, 1]))
    spark.range(1).select(functions.udf(lambda _: u.sum(), "double", useArrow=False)("id")).collect()
    return u


def test_the_token_when_tasks_use_it_then_it_is_in_no_argv(vector, token, family_of):
    commands = [command_of(process) for process in family_of(os.getpid())]
    assert any("ps2.run.daemon" in command for command in commands)
    assert any("ps2.cli.forking" in command for command in commands)
    assert not [command for command in commands if token in command]


def test_token_when_used_by_tasks_then_not_in_settings(vector, token, sc):
    assert token not in str(sc.getConf().getAll())


def test_token_when_used_by_tasks_then_not_on_settings_page(vector, token, sc):
    url = f"{sc.uiWebUrl}/api/v1/applications/{sc.applicationId}/environment"
    with urllib.request.urlopen(url, timeout=60) as reply:
        shown = reply.read().decode()
    assert "sparkProperties" in json.loads(shown)
    assert token not in shown


def test_token_when_task_reads_properties_then_not_among_them(vector, token, sc):
    def properties(_):
        from pyspark import TaskContext

        vector.pull()
        return str(TaskContext.get()._localProperties)

    assert token not in sc.parallelize([0], 1).map(properties).collect()[0]


@pytest.mark.parametrize("name", ["context", "vector", "matrix", "session", "zip"])
def test_token_when_something_is_printed_then_not_in_output(name, ps, vector, token):
    things = {
        "context": lambda: ps,
        "vector": lambda: vector,
        "matrix": lambda: DCV.dense(3).matrix(),
        "session": lambda: ps._coordinator.session,
        "zip": lambda: vector.zip(vector.derive()),
    }
    assert token not in repr(things[name]())


def test_token_when_handle_is_pickled_then_not_in_pickle(vector, token):
    assert token.encode() not in pickle.dumps(vector)
