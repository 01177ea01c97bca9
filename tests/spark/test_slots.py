"""No free task slot is an error that names both numbers, never a hang."""

from __future__ import annotations

import json
import re
import sys
import threading

import pytest

from ps2.errors import SlotsError

WITHOUT_WORKERS = """
import json, sys
from pyspark.sql import SparkSession
from ps2 import PS2Context
from ps2.errors import SlotsError, StoppedError

spark = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
ps = PS2Context.getOrCreate(spark, servers=1)
said = {}
try:
    ps.waitForSlots(1, timeout=1)
except SlotsError as error:
    said["no workers"] = str(error)
spark.stop()
try:
    ps.waitForSlots(1, timeout=3)
except StoppedError as error:
    said["spark stopped"] = str(error)
ps.stop()
try:
    ps.waitForSlots(1, timeout=3)
except StoppedError as error:
    said["context stopped"] = str(error)
try:
    PS2Context.getOrCreate(spark, servers=1)
except StoppedError as error:
    said["created on a stopped spark"] = str(error)
print(json.dumps(said))
"""


def test_wait_for_slots_when_all_are_free_then_it_returns(ps):
    ps.waitForSlots(2, timeout=5)


def test_wait_for_slots_when_too_many_then_names_both_numbers(ps):
    with pytest.raises(SlotsError, match=r"has 2 free task slots after 0 s, and 3 are needed"):
        ps.waitForSlots(3, timeout=0)


def test_wait_for_slots_when_all_busy_then_names_both_numbers(ps, busy):
    with pytest.raises(SlotsError, match=r"has 0 free task slots after 1 s, and 1 are needed"):
        ps.waitForSlots(1, timeout=1)


def test_wait_for_slots_when_tasks_end_then_it_returns(ps, busy):
    threading.Timer(0.5, busy).start()
    ps.waitForSlots(2, timeout=20)


@pytest.fixture(scope="module")
def said(start_master, run_program):
    """What a program says whose Spark has a master and no workers."""
    done = run_program(sys.executable, "-c", WITHOUT_WORKERS, start_master)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def start_master(environment, tmp_path_factory, until):
    """The URL of a standalone master without workers."""
    import subprocess
    from pathlib import Path

    import pyspark

    log = tmp_path_factory.mktemp("master") / "log.txt"
    command = [Path(pyspark.__file__).parent / "bin" / "spark-class", "org.apache.spark.deploy.master.Master"]
    with open(log, "wb") as output:
        master = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        found = re.compile(r"Starting Spark master at (spark://\S+)")
        until(lambda: found.search(log.read_text()), "master started", 40)
        yield found.search(log.read_text())[1]
    finally:
        master.terminate()
        master.wait()


def test_wait_for_slots_when_no_workers_then_names_both_numbers(said):
    assert re.search(r"spark://.* has 0 free task slots after 1 s, and 1 are needed", said["no workers"])


@pytest.mark.parametrize("name", ["spark stopped", "created on a stopped spark"])
def test_a_context_when_spark_is_stopped_then_it_raises_stopped(name, said):
    assert "SparkContext was stopped" in said[name]


def test_wait_for_slots_when_context_is_stopped_then_raises(said):
    assert "PS2Context was stopped" in said["context stopped"]
