"""Where compiled functions of shipped files are kept, and which ones are pickled by name."""

from __future__ import annotations

import numba
import pytest
from numba import njit

from ps2.client.stopwatch import Stopwatch
from ps2.ops.kernels import gather
from ps2.run import compiled
from ps2.run.compiled import ShippedLocator, importable_name, measure_kernel_loads


def function():
    pass


kept_elsewhere = njit(function)


@pytest.fixture
def ship(tmp_path, monkeypatch):
    """Ship files for another application; return where numba is told to keep a function of one of them."""
    applications = iter(range(9))
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))

    def kept(files, name):
        folder = tmp_path / f"application-{next(applications)}"
        for file, text in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        monkeypatch.setattr(compiled, "shipped_folder", lambda: str(folder))
        locator = ShippedLocator.from_function(function, f"{folder}/./{name}")
        return locator and locator.get_cache_path()

    return kept


def test_shipped_function_when_shipped_again_then_same_place(ship):
    first, second = (ship({"a.py": "1", "b.zip": "2"}, "a.py") for _ in range(2))
    assert first is not None
    assert first == second


@pytest.mark.parametrize("files", [{"a.py": "2", "b.zip": "2"}, {"a.py": "1", "b.zip": "3"}, {"a.py": "1"}])
def test_shipped_function_when_source_changes_then_other_place(ship, files):
    assert ship({"a.py": "1", "b.zip": "2"}, "a.py") != ship(files, "a.py")


def test_shipped_functions_when_two_archive_files_then_apart(ship):
    assert ship({"b.zip": "2"}, "b.zip/c/f.py") != ship({"b.zip": "2"}, "b.zip/d/f.py")


@pytest.mark.parametrize("name", ["environment/lib/a.py", "../a.py", "b.zipped/a.py"])
def test_function_when_file_was_not_shipped_then_numba_decides(ship, name):
    assert ship({name: "1", "b.zip": "2"}, name) is None


def test_function_when_nothing_is_shipped_then_numba_decides():
    assert ShippedLocator.from_function(function, __file__) is None


def test_shipped_function_when_not_writable_then_numba_decides(ship, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder would be")
    assert ship({"a.py": "1"}, "a.py") is None


@pytest.mark.parametrize("by_value", [(), ("ps",)])
def test_compiled_function_when_in_its_module_then_goes_by_name(by_value):
    assert importable_name(gather, by_value) == "gather"


@pytest.mark.parametrize("by_value", ["ps2.ops.kernels", "ps2.ops"])
def test_compiled_function_when_module_goes_by_value_then_too(by_value):
    assert importable_name(gather, {by_value}) is None


@pytest.mark.parametrize(
    "other", [function, njit(lambda x: x), kept_elsewhere, 7], ids=["plain", "lambda", "elsewhere", "number"]
)
def test_compiled_function_when_not_in_module_then_not_by_name(other):
    assert importable_name(other, ()) is None


def test_stopwatch_when_numba_compiles_then_counts_kernels():
    stopwatch = Stopwatch()
    stopwatch.reset()
    measure_kernel_loads(stopwatch)
    with stopwatch.running("pull"):
        assert njit(lambda number: number + 1)(1) == 2
    assert stopwatch.seconds["kernels"] > stopwatch.seconds["pull"] > 0
