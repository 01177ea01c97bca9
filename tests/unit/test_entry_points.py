"""What installed packages bring is found as soon as they are installed."""

from __future__ import annotations

import os

import pytest

from ps2.programs import installed_entry_points


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """``installed(name)``: a package with an entry point of that name appears in a folder on the import path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[ps2.of_this_test]\n{name} = nowhere:{name}\n")
        changed_ns = os.stat(tmp_path).st_mtime_ns + 1  # clocks of file systems tick slowly
        os.utime(tmp_path, ns=(changed_ns, changed_ns))

    return install


def names():
    return sorted(entry.name for entry in installed_entry_points("ps2.of_this_test"))


def test_entries_when_a_package_is_installed_then_it_is_found(installed):
    assert names() == []
    installed("first")
    assert names() == ["first"]
    installed("second")
    assert names() == ["first", "second"]


def test_entries_when_the_path_does_not_change_then_read_once(installed, monkeypatch):
    installed("first")
    assert names() == ["first"]
    monkeypatch.setattr("ps2.programs.entry_points", lambda group: pytest.fail("they were read again"))
    assert names() == ["first"]
