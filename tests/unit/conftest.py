"""Fixtures of tests that need no fleet."""

from __future__ import annotations

import contextlib
import subprocess

import pytest


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB that is full."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=False).returncode:
        pytest.skip("this user may not mount")
    with contextlib.suppress(OSError), open(folder / "filler", "wb") as file:
        file.write(bytes(2 << 20))
    yield folder
    subprocess.run(["umount", folder], check=True)
