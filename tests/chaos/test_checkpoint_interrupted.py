"""Checkpoints that fail on the way: full disks, disks that nobody can write to, servers that die meanwhile."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from faults import disks, processes

from ps2 import DCV, PS2Context
from ps2.errors import PS2Error, RecoveryError

DIM = 100_000
LARGE = 24_000_000  # of float64: 96 MB a server

pytestmark = pytest.mark.usefixtures("leaves_nothing")


def restored(folder, name="weight"):
    """What a new fleet has that starts from the newest checkpoint."""
    with PS2Context.getOrCreate(servers=2, restore=str(folder)) as ps:
        return np.unique(ps.vector(name).pull()).tolist()


def test_checkpoint_when_disk_is_full_then_previous_stays_usable(tmp_path):
    with disks.small_disk(tmp_path / "disk", 4 << 20) as disk:
        with PS2Context.getOrCreate(servers=2, checkpointDir=str(disk)) as ps:
            weight = DCV.dense(DIM, name="weight").fill(1.0)
            ps.checkpoint()
            weight.fill(2.0)
            full = disks.fill(disk, left=100_000)
            with pytest.raises(RecoveryError, match="No space left"):
                ps.checkpoint()
            assert np.unique(weight.pull()).tolist() == [2.0]
            full.unlink()
        assert restored(disk) == [1.0]


def test_checkpoint_when_disk_has_room_again_then_is_written(tmp_path):
    with disks.small_disk(tmp_path / "disk", 4 << 20) as disk:
        with PS2Context.getOrCreate(servers=2, checkpointDir=str(disk)) as ps:
            DCV.dense(DIM, name="weight").fill(3.0)
            full = disks.fill(disk, left=100_000)
            with pytest.raises(RecoveryError, match="No space left"):
                ps.checkpoint()
            full.unlink()
            ps.checkpoint()
        assert restored(disk) == [3.0]


def test_checkpoint_when_folder_is_not_writable_then_reports_it(tmp_path):
    with disks.read_only(tmp_path / "disk") as disk, PS2Context.getOrCreate(servers=2) as ps:
        weight = DCV.dense(DIM, name="weight").fill(1.0)
        with pytest.raises(PS2Error, match="Read-only file system"):
            ps.checkpoint(str(disk))
        assert np.unique(weight.pull()).tolist() == [1.0]


@pytest.mark.nightly
def test_checkpoint_when_server_dies_midway_then_previous_works(tmp_path):
    with PS2Context.getOrCreate(servers=2, checkpointDir=str(tmp_path)) as ps:
        weight = DCV.dense(LARGE, dtype="float64", name="weight").fill(1.0)
        before = ps.checkpoint()
        weight.fill(2.0)
        killed = []

        def kill():
            deadline_s = time.monotonic() + 60
            while time.monotonic() < deadline_s:
                written = {path for path in Path(tmp_path).rglob("*") if not path.is_relative_to(before.path)}
                if any(path.is_file() for path in written):
                    processes.kill(processes.servers_of(ps)[1])
                    killed.append(True)
                    return

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            with pytest.raises(RecoveryError):
                ps.checkpoint()
        finally:
            killer.join()
        assert killed
        # Its half is back from the checkpoint before, and the other one as it was.
        assert np.unique(weight.pull()).tolist() == [1.0, 2.0]
        assert ps.recoveries[0].checkpoint == before.path
