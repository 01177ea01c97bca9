"""The Python of Spark's workers: the driver's own on this host, with or without a context; forks of PS2's daemon,
started early. One that cannot work is named at once, and rows that another one computes stay as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest
from faults.sparks import QUICK_SQL, submit_options
from pyspark.sql import functions as F

from ps2 import PS2Context
from ps2.algorithms.classification import LogisticRegression
from ps2.errors import ConfigError, WorkerError
from ps2.run.spark import interpreter

DEADLINE_S = 60.0
PROGRAM = """\
import os
from pyspark.sql import SparkSession
from ps2 import DCV, PS2Context
from ps2.algorithms.classification import LogisticRegression
from ps2.algorithms.graph import RandomWalks

def daemon(_):
    return open(f"/proc/{os.getppid()}/cmdline").read().split(chr(0))[2]

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
old = spark.createDataFrame([(float(n % 2), [float(n)]) for n in range(8)], "label double, features array<double>")
assert old.count() == 8
print("walks", RandomWalks().transform(spark.sql("select id src, (id + 1) % 4 dst from range(4)")).count())
tracker = spark.sparkContext.statusTracker()
earlier = len(tracker.getJobIdsForGroup())
with PS2Context.getOrCreate(spark, servers=1) as ps:
    total = DCV.dense(2, dtype="int64")
    spark.sparkContext.parallelize(range(3), 1).foreachPartition(lambda rows: total.add([1, sum(rows)]))
    print("total", total.pull().tolist())
    print("jobs", len(tracker.getJobIdsForGroup()) - earlier)
    print("daemon", spark.sparkContext.parallelize([0], 1).map(daemon).first())
    print("fit", LogisticRegression(maxIter=2).fit(old).numFeatures, "count", old.count())
"""


@pytest.fixture(scope="module")
def without_ps2(tmp_path_factory):
    """A folder with a ``python3`` that has pyspark, as all workers do, and nothing else."""
    folder = tmp_path_factory.mktemp("bin")
    result = ":".join(map(str, (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")))
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\ncd /\nPYTHONPATH="{result}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def bare(run_program, environment, without_ps2, tmp_path_factory):
    """A program run with nothing that names a Python, in a folder that has a file named as a module of Python's."""
    program, folder = tmp_path_factory.mktemp("program") / "job.py", tmp_path_factory.mktemp("folder")
    program.write_text(PROGRAM)
    (folder / "types.py").write_text("")
    bare = {name: value for name, value in environment.items() if not name.startswith("PYSPARK_")}
    bare |= {"PATH": f"{without_ps2}:{bare['PATH']}", "SPARK_SUBMIT_OPTS": submit_options(QUICK_SQL)}
    return run_program(sys.executable, program, env=bare, cwd=folder)


@pytest.mark.nightly
def test_program_when_environment_is_bare_then_has_driver_python(bare):
    assert "total [1, 3]" in bare.stdout, bare.stderr
    assert "jobs 2" in bare.stdout  # the first one has started the Python worker
    assert "daemon ps2.run.daemon" in bare.stdout


@pytest.mark.nightly
def test_walks_when_no_context_was_there_then_have_driver_python(bare):
    assert "walks 40" in bare.stdout, bare.stderr


@pytest.mark.nightly
def test_rows_when_python_objects_made_before_context_then_stay(bare):
    assert "fit 1 count 8" in bare.stdout, bare.stderr


@pytest.mark.nightly
def test_program_when_folder_has_file_named_types_then_says_so(bare):
    assert "types.py in the current folder" in bare.stderr


def test_context_when_chosen_python_lacks_ps2_then_says_so(no_fleet, spark, sc, without_ps2, monkeypatch):
    chosen = str(without_ps2 / "python3")
    monkeypatch.setattr(sc, "pythonExec", chosen)
    with pytest.raises(ConfigError, match=r"cannot import ps2: .*No module named 'ps2'") as caught:
        PS2Context.getOrCreate(spark, servers=1)
    assert all(word in str(caught.value) for word in (chosen, sys.executable, "PYSPARK_PYTHON", "spark.pyspark.python"))


def test_context_when_chosen_python_is_missing_then_says_so(no_fleet, spark, sc, monkeypatch):
    monkeypatch.setattr(sc, "pythonExec", "/nowhere/python3")
    with pytest.raises(ConfigError, match=r"/nowhere/python3 at local.*cannot be started"):
        PS2Context.getOrCreate(spark, servers=1)


@pytest.mark.parametrize(("name", "fault"), [("python3", "has no ps2"), ("missing", "cannot be started")])
def test_run_when_worker_python_cannot_work_then_names_both(name, fault, ps, sc, without_ps2, monkeypatch):
    chosen = str(without_ps2 / name)  # as on a cluster's hosts, where it cannot be looked at before
    monkeypatch.setattr(sc, "pythonExec", chosen)
    with pytest.raises(ConfigError, match=f"{fault}; the driver's is") as caught:
        ps.run(sc.parallelize(range(2), 2), lambda worker, rows: worker.rank)
    assert all(word in str(caught.value) for word in (chosen, sys.executable, "PYSPARK_PYTHON"))


@pytest.fixture
def of_another_version(tmp_path, sc, spark, monkeypatch):
    """A DataFrame whose rows come of Python workers of another version."""
    code = "import sys; sys.argv[1:] = sys.argv[-1:]; from pyspark.daemon import manager; sys.version_info = (2, 0); "
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code} manager()" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sc, "pythonExec", str(python))
    frame = spark.createDataFrame(
        [(float(n % 2), [float(n)]) for n in range(8)], "label double, features array<double>"
    )
    monkeypatch.undo()
    return frame


def test_fit_when_rows_come_of_another_python_then_says_so(ps, of_another_version):
    with pytest.raises(ConfigError, match=r"that of tasks, python3 at local.*another version.*set PYSPARK_PYTHON"):
        LogisticRegression(maxIter=2).fit(of_another_version)


def test_run_when_rows_come_of_another_python_then_says_so(ps, of_another_version):
    with pytest.raises(ConfigError, match=r"that of tasks, python3 at local.*another version.*set PYSPARK_PYTHON"):
        ps.run(of_another_version, lambda worker, batches: sum(batch.num_rows for batch in batches))


def test_run_when_rows_raise_then_error_names_what(ps, spark):
    rows = spark.range(4).select(F.udf(lambda n: 1 // (n - n), "long")("id"))
    with pytest.raises(WorkerError, match=r"ZeroDivisionError"):
        ps.run(rows, lambda worker, batches: sum(batch.num_rows for batch in batches))


def test_daemon_when_user_has_chosen_one_then_it_stays(sc):
    chosen = sc._conf.get(interpreter.DAEMON_SETTING)
    sc._conf.set(interpreter.DAEMON_SETTING, "pyspark.daemon")
    try:
        assert not interpreter.fork_from_daemon(sc)
        assert sc._conf.get(interpreter.DAEMON_SETTING) == "pyspark.daemon"
    finally:
        sc._conf.set(interpreter.DAEMON_SETTING, chosen)
    assert interpreter.fork_from_daemon(sc)


def test_start_of_workers_when_other_jobs_run_then_none(sc, busy):
    assert interpreter.start_workers(sc) is None


def test_start_of_workers_when_cancelled_then_thread_ends(spark, sc):
    thread = interpreter.start_workers(sc)
    sc.cancelAllJobs()
    thread.join(DEADLINE_S)  # an error of the thread's would fail the test
    assert not thread.is_alive()
