"""A fleet loads modules that bring operations, by name, and both sides see that they mean the same by one."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from ps2 import DCV, PS2Context
from ps2.errors import ConfigError, LaunchError
from ps2.ops.all import TABLE

MODULE = "tests.kernels.counting"
BROKEN = "from ps2 import op\n\nraise RuntimeError('not today')\n"
OTHER = """
from ps2.ops.table import Row, op

@op(reduce="sum")
def {name}(u: Row) -> float:
    return {value}
"""


@pytest.fixture(autouse=True)
def forgotten():
    """Forget what the test has loaded."""
    table, modules = dict(TABLE), set(sys.modules)
    yield
    TABLE.clear()
    TABLE.update(table)
    for name in set(sys.modules) - modules:
        if name in (MODULE, "broken", "empty", "only_here", "changing", "installed"):
            del sys.modules[name]


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write a module that this process and its servers can import."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, source):
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


def test_module_operations_when_fleet_loads_them_then_run_there(leaves_nothing):
    with PS2Context.getOrCreate(servers=2, ops=[MODULE]):
        u = DCV.dense(9, 2, dtype="int64").push(np.arange(9))
        assert u.zip().apply("count_above", value=5) == 3
        assert u.zip().apply("columns_above", value=5).tolist() == [6, 7, 8]
        assert u.zip().apply("fetch_add", [8, 0, 4], values=[10, 20, 30]).tolist() == [8, 0, 4]
        assert u.pull([0, 4, 8]).tolist() == [20, 34, 18]
        assert [shape.tolist() for shape in u.matrix().apply("shapes")] == [[2, 4], [2, 5]]


def test_fleet_when_local_module_import_fails_then_says_why(written):
    with pytest.raises(ConfigError, match="ops: module 'broken' cannot be imported: RuntimeError: not today"):
        PS2Context.getOrCreate(servers=1, ops=[written("broken", BROKEN)])


def test_fleet_when_server_module_import_fails_then_says_why(written, tmp_path):
    name = written("only_here", OTHER.format(name="only_here", value=1))
    __import__(name)
    (tmp_path / f"{name}.py").unlink()
    with pytest.raises(LaunchError, match="ops: module 'only_here' cannot be imported: ModuleNotFoundError"):
        PS2Context.getOrCreate(servers=1, ops=[name])


def test_fleet_when_module_declares_nothing_then_error_says_so(written):
    with pytest.raises(ConfigError, match="module 'empty' declares no operations"):
        PS2Context.getOrCreate(servers=1, ops=[written("empty", "")])


def test_fleet_when_module_changed_since_import_then_names_both(written):
    name = written("changing", OTHER.format(name="changing", value=1))
    __import__(name)
    written(name, OTHER.format(name="changing", value=22))
    with pytest.raises(ConfigError, match=r"'changing' of module 'changing' differs between the two sides.*on .*:\d+"):
        PS2Context.getOrCreate(servers=1, ops=[name])


def install(folder, module):
    """Leave what pip leaves of a distribution that names its module of operations."""
    (folder / "answers-1.0.dist-info").mkdir()
    (folder / "answers-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: answers\nVersion: 1.0\n")
    (folder / "answers-1.0.dist-info" / "entry_points.txt").write_text(f"[ps2.ops]\nanswers = {module}\n")


def test_operations_when_entry_point_has_them_then_available(written, tmp_path):
    install(tmp_path, written("installed", OTHER.format(name="installed", value=21)))
    with PS2Context.getOrCreate(servers=2):
        assert DCV.dense(9).zip().apply("installed") == 42


def test_fleet_when_entry_point_module_is_broken_then_names_it(written, tmp_path):
    install(tmp_path, written("broken", BROKEN))
    with pytest.raises(
        ConfigError, match=r"the entry point 'answers' of 'ps2\.ops': module 'broken' cannot be imported: RuntimeError"
    ):
        PS2Context.getOrCreate(servers=1)
