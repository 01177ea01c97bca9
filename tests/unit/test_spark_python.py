"""Which Python Spark's tasks run: chosen before each use of Python, the driver's own unless the user has named one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import SparkConf

from ps2.errors import ConfigError
from ps2.run.spark.interpreter import choose_python, python_error, save_address_space

ROOT = Path(__file__).parents[2] / "ps2"
# What makes Spark run Python in tasks.
USES = re.compile(r"\.mapInArrow\(|\bmap_in_arrow\(|\.rdd\b|\.createDataFrame\((?!\.)|\.saveMetadata\(|= pandas_udf\b")


class LocalContext:
    """What ``choose_python`` uses of a SparkContext of a local application."""

    master = "local[2]"

    def __init__(self, python):
        self.pythonExec = python
        self.environment = {}


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A ``python3`` without packages, first on the PATH; and no variable that names a Python."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(python.parent), prepend=":")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    return str(python)


def prefix_of(python):
    return subprocess.check_output([python, "-c", "import sys; print(sys.prefix)"], text=True).strip()


def test_python_when_none_is_named_then_the_driver_s(elsewhere, tmp_path):
    context = LocalContext("python3")
    choose_python(context, [str(tmp_path)])
    assert prefix_of(context.pythonExec) == sys.prefix


def test_python_when_named_after_context_was_made_then_that(elsewhere, tmp_path, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    context = LocalContext("python3")
    choose_python(context, [str(tmp_path)])
    assert prefix_of(context.pythonExec) == sys.prefix


@pytest.mark.parametrize("named_late", [False, True])
def test_python_when_named_one_lacks_ps2_then_nothing_changes(named_late, elsewhere, tmp_path, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", elsewhere)
    context = LocalContext("python3" if named_late else elsewhere)
    before = context.pythonExec
    with pytest.raises(
        ConfigError, match=f"that of tasks, {elsewhere} at local.*No module named 'ps2'.*PYSPARK_PYTHON"
    ):
        choose_python(context, [str(tmp_path)])
    assert context.pythonExec == before


def test_python_when_variable_is_empty_then_the_driver_s(elsewhere, tmp_path, monkeypatch):
    """pyspark takes the empty text for a program."""
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    context = LocalContext("")
    choose_python(context, [str(tmp_path)])
    assert prefix_of(context.pythonExec) == sys.prefix


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("exit 0", "prints additional text .*: ''"),
        (
            f'echo "Welcome to this place"; exec {sys.executable} "$@"',
            "prints additional .*: 'Welcome to this place.*PYSP",
        ),
        (r"printf '\351t\351\n'", "prints additional .*: '\ufffdt\ufffd'"),
        (r"printf '\351t\351\n' >&2; exit 3", "cannot import ps2: \ufffdt\ufffd"),
        ("echo 3.9 0.0.7", "is Python 3.9 with ps2 0.0.7"),
    ],
)
def test_python_when_it_prints_something_else_then_named(text, fault, tmp_path):
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{text}\n")
    python.chmod(0o755)
    with pytest.raises(ConfigError, match=f"that of tasks, {python} at local.*{fault}"):
        choose_python(LocalContext(str(python)), [str(tmp_path)])


@pytest.mark.parametrize(("settings", "pool"), [({"spark.executor.pyspark.memory": "1g"}, "system"), ({}, None)])
def test_arrow_when_workers_memory_is_limited_then_reserves_none(settings, pool, monkeypatch):
    monkeypatch.delenv("ARROW_DEFAULT_MEMORY_POOL", raising=False)
    context = LocalContext("python3")
    context._conf = SparkConf(loadDefaults=False).setAll(settings.items())
    save_address_space(context)
    assert context.environment.get("ARROW_DEFAULT_MEMORY_POOL") == pool


@pytest.mark.parametrize("module", ["ps2", "pandas", "pyarrow", "numpy"])
def test_error_of_tasks_when_a_package_is_missing_then_named(module):
    error = python_error(LocalContext("python3"), f"ModuleNotFoundError: No module named {module!r}")
    assert f"python3 at local[2], has no {module};" in str(error)
    assert "PYSPARK_PYTHON" in str(error)


def test_task_error_when_a_user_module_is_missing_then_none():
    assert python_error(LocalContext("python3"), "ModuleNotFoundError: No module named 'churn'") is None


def test_python_in_tasks_when_used_then_was_chosen_before():
    texts = [path.read_text() for path in ROOT.rglob("*.py") if "run/spark" not in path.as_posix()]
    uses = {text: len(USES.findall(text)) for text in texts}
    assert sum(uses.values()) > 30
    assert [text[:200] for text, count in uses.items() if text.count("with_python(") < count] == []
