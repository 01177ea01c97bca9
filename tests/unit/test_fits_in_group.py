"""Rows that exceed the memory of a control group: every family trains on them, to the model of rows in memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMIT_BYTES = 64 << 20
BATCHES = 110  # 88 MB of dense values, which take 132 MB in memory, and 66 MB of ratings


@pytest.fixture
def group() -> Iterator[Path]:
    """Yield a control group of LIMIT_BYTES."""
    roots = {"memory/memory.limit_in_bytes": Path("/sys/fs/cgroup/memory"), "memory.max": Path("/sys/fs/cgroup")}
    for limit, root in roots.items():
        if os.access(root / "cgroup.procs", os.W_OK):
            folder = root / f"ps2-test-{os.getpid()}"
            folder.mkdir()
            try:
                if (file := folder / Path(limit).name).exists():
                    file.write_text(str(LIMIT_BYTES))
                    yield folder
                    return
            finally:
                folder.rmdir()
    pytest.skip("control groups cannot be made here; test_trees_spilled.py limits the address space")


def fits(mode: str, folder: Path | str) -> list[list[str]]:
    command = [sys.executable, "-m", "tests.fits_in_group", mode, str(BATCHES), str(folder)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return [line.split() for line in finished.stdout.splitlines()]


def test_fits_when_rows_exceed_their_group_then_same_models(group):
    in_files, in_memory = fits("auto", group), fits("never", "")
    assert [line[2] for line in in_files] == ["True"] * 5
    assert [line[2] for line in in_memory] == ["False"] * 5
    assert [line[:2] for line in in_files] == [line[:2] for line in in_memory]
