"""``save`` and ``load`` with servers that are processes: places that are shared, or not, or full; what travels."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ps2 import DCV
from ps2.errors import CheckpointMissingError, RecoveryError
from tests.faults import disks

pytestmark = pytest.mark.parametrize("ps", [3], indirect=True, scope="module")

VALUES = np.arange(1, 2001)
KEYS = np.arange(2000) * (2**62 // 2000) + 5


def dense(dtype="float32", **options):
    return DCV.dense(VALUES.size, dtype=dtype, **options).push(VALUES)


def sparse(dtype="float32", **options):
    return DCV.sparse(2**63, dtype=dtype, **options).push(VALUES, KEYS)


@pytest.mark.parametrize("make", [dense, sparse], ids=["dense", "sparse"])
def test_save_and_load_when_many_values_then_no_array_travels(ps, tmp_path, statuses, make):
    """What clients and servers send each other of arrays is counted by the servers."""

    def travelled():
        return sum(status.bytes_in + status.bytes_out for status in statuses())

    vector = make("float64")
    before = travelled()
    vector.save(str(tmp_path))
    loaded = DCV.load(str(tmp_path))
    assert travelled() == before
    assert np.array_equal(loaded.pull(KEYS if loaded.isSparse else None), VALUES)


@pytest.mark.parametrize("place", ["file://{}".format, "{}".format, Path], ids=["URL", "path", "Path"])
def test_save_when_the_place_is_any_of_fsspec_then_loads(ps, tmp_path, place):
    for scale in (1, 2):
        dense().mul(scale).save(place(tmp_path / "models" / "weight"))
        assert DCV.load(place(tmp_path / "models" / "weight")).sum() == scale * VALUES.sum()


def test_save_when_folder_is_relative_then_from_this_process(ps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dense().save("here")
    assert DCV.load("here").sum() == VALUES.sum()
    assert (tmp_path / "here" / "manifest.json").is_file()


def test_save_when_folder_is_not_shared_then_says_so(ps):
    """The memory of each process is a file system of its own."""
    with pytest.raises(RecoveryError, match="must be a folder that servers and this process share"):
        dense().save("memory://models/w")
    with pytest.raises(CheckpointMissingError):
        DCV.load("memory://models/w")


@pytest.mark.parametrize("make", [dense, sparse], ids=["dense", "sparse"])
def test_save_when_disk_is_full_then_earlier_save_stays(ps, tmp_path, make):
    with disks.small_disk(tmp_path / "disk", 1 << 20) as disk:
        folder = disk / "weight"
        DCV.dense(10).fill(3).save(str(folder))
        before = sorted(os.listdir(folder))
        disks.fill(disk, left=8 << 10)
        with pytest.raises(RecoveryError, match=r"-\d-\w+.npy: writing failed: No space left on device"):
            make("float64").save(str(folder))
        assert sorted(os.listdir(folder)) == before
        assert DCV.load(str(folder)).sum() == 30


def test_save_when_the_folder_cannot_be_written_then_it_says_so(ps, tmp_path):
    with disks.read_only(tmp_path / "disk") as disk, pytest.raises(RecoveryError, match="Read-only file system"):
        dense().save(str(disk / "weight"))
