"""``scripts/nightly``: which parts there are, and how their reports are read."""

from __future__ import annotations

import hashlib
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest
from faults.while_training import FAILURES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def nightly(monkeypatch):
    """The script as a module."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    loader = SourceFileLoader("nightly", str(ROOT / "scripts" / "nightly"))
    module = module_from_spec(spec_from_loader("nightly", loader))
    monkeypatch.setitem(sys.modules, "nightly", module)  # where dataclasses look for it
    loader.exec_module(module)
    return module


def test_parts_when_a_file_has_nightly_tests_then_one_runs_it(nightly):
    files = " ".join(part.variables.get("FILES", "") for part in nightly.all_parts()).split()
    marked = [
        str(path.relative_to(ROOT))
        for folder in ("chaos", "cluster", "contract", "spark", "unit")
        for path in (ROOT / "tests" / folder).glob("test_*.py")
        if nightly.MARK in path.read_text()
    ]
    assert set(marked) <= set(files)
    assert len(files) - len(FAILURES) == len(set(files)) - 1


def test_parts_when_failures_are_listed_then_each_has_one(nightly):
    assert [failure.replace(" ", "-") for failure in FAILURES] == list(nightly.FAILURES)


def test_slice_when_commits_differ_then_each_part_has_its_turn(nightly):
    parts = nightly.all_parts()
    commits = [hashlib.sha1(bytes([number])).hexdigest() for number in range(256)]
    assert {nightly.slice_of(commit, parts).name for commit in commits} == {part.name for part in parts}
    assert nightly.slice_of(commits[1], parts) == nightly.slice_of(commits[1], parts)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ('tests="7" failures="1" errors="2" skipped="1"', (3, 3)),
        ('tests="0" failures="0" errors="0" skipped="0"', (0, 0)),
    ],
)
def test_counts_when_report_has_errors_then_they_are_failures(nightly, tmp_path, attributes, expected):
    report = tmp_path / "part.xml"
    assert nightly.counts(report) == (0, 0)
    report.write_text(f"<testsuites><testsuite {attributes}/></testsuites>")
    assert nightly.counts(report) == expected


def test_table_when_a_part_fails_then_last_line_adds_up(nightly):
    results = [nightly.Result("chaos-1", 20, 0, 61.0, ""), nightly.Result("yarn", 3, 2, 30.0, "exit code 2")]
    lines = nightly.table(results).splitlines()
    assert lines[3].split() == ["yarn", "3", "2", "30", "exit", "code", "2"]
    assert lines[4].split() == ["all", "23", "2", "91"]
    assert [result.is_green for result in results] == [True, False]
