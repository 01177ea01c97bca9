"""The Python of Spark's workers: the driver's own on this host; one that cannot work is named at once."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark
import pytest

from ps2 import PS2Context
from ps2.errors import ConfigError

PROGRAM = """\
from pyspark.sql import SparkSession
from ps2 import DCV, PS2Context

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
with PS2Context.getOrCreate(spark, servers=1) as ps:
    total = DCV.dense(2, dtype="int64")
    spark.sparkContext.parallelize(range(3), 1).foreachPartition(lambda rows: total.add([1, sum(rows)]))
    print("total", total.pull().tolist())
"""


@pytest.fixture
def no_fleet(shared_fleet):
    """No context runs."""
    shared_fleet.end()


@pytest.fixture(scope="module")
def without_ps2(tmp_path_factory):
    """A folder with a ``python3`` that has pyspark, as all workers do, and nothing else."""
    folder = tmp_path_factory.mktemp("bin")
    found = ":".join(map(str, (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")))
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\ncd /\nPYTHONPATH="{found}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return folder


def test_program_when_environment_is_bare_then_has_driver_python(run_program, environment, without_ps2, tmp_path):
    program = tmp_path / "job.py"
    program.write_text(PROGRAM)
    bare = {name: value for name, value in environment.items() if not name.startswith("PYSPARK_")}
    done = run_program(sys.executable, program, env={**bare, "PATH": f"{without_ps2}:{bare['PATH']}"})
    assert "total [1, 3]" in done.stdout, done.stderr


def test_context_when_chosen_python_lacks_ps2_then_says_so(no_fleet, spark, sc, without_ps2, monkeypatch):
    chosen = str(without_ps2 / "python3")
    monkeypatch.setattr(sc, "pythonExec", chosen)
    with pytest.raises(ConfigError, match=r"cannot import ps2: .*No module named 'ps2'") as caught:
        PS2Context.getOrCreate(spark, servers=1)
    assert all(word in str(caught.value) for word in (chosen, sys.executable, "PYSPARK_PYTHON", "spark.pyspark.python"))


def test_program_when_folder_has_file_named_types_then_tasks_run(run_program, environment, tmp_path):
    program, folder = tmp_path / "job.py", tmp_path / "folder"
    program.write_text(PROGRAM)
    folder.mkdir()
    (folder / "types.py").write_text("")
    done = run_program(sys.executable, program, env=environment, cwd=folder)
    assert "total [1, 3]" in done.stdout, done.stderr
    assert "types.py in the current folder" in done.stderr


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
