"""A context that begins with a checkpoint, on any number of servers; and what it says when it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ps2 import DCV, PS2Context, load_numpy
from ps2.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    ConfigError,
    LimitError,
    NotFoundError,
    RecoveryError,
    UsageError,
)
from ps2.storage import folders
from ps2.storage.manifest import Manifest

DENSE = np.random.default_rng(0).standard_normal(1000)
KEYS = np.arange(300) * 10**15
COUNTS = np.arange(300)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with one checkpoint of two servers, made after step 6."""
    folder = str(tmp_path_factory.mktemp("checkpoints"))
    with PS2Context.getOrCreate(servers=2, checkpointDir=folder) as ps:
        weight = DCV.dense(1000, dtype="float64", name="weight").push(DENSE)
        weight.derive(name="velocity").push(2 * DENSE)
        weight.derive().fill(9).free()
        DCV.sparse(2**62, dtype="int32", name="counts").add(COUNTS, KEYS)
        DCV.dense(100, 3, "float64", name="topics").matrix().push(range(3), DENSE[:300].reshape(3, 100))
        ps.checkpoint(step=7)
    return folder


@pytest.fixture
def copied(saved, tmp_path):
    """A checkpoint's folder of one's own, to be spoiled."""
    import shutil

    (created,) = Path(saved).iterdir()
    return Path(shutil.copytree(created, tmp_path / created.name))


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_restore_when_servers_differ_then_named_vectors_match(saved, servers):
    with PS2Context.getOrCreate(servers=servers, restore=saved) as ps:
        weight, velocity, counts = (ps.vector(name) for name in ("weight", "velocity", "counts"))
        assert np.array_equal(weight.pull(), DENSE)
        assert np.array_equal(velocity.pull(), 2 * DENSE)
        assert np.array_equal(counts.pull(KEYS), COUNTS)
        assert weight.isColocated(velocity)
        assert np.array_equal(ps.vector("topics").matrix().pull(range(3)), DENSE[:300].reshape(3, 100))
        assert ps.nextStep == 7


def test_load_numpy_when_vectors_have_names_then_reads_them(saved):
    assert np.array_equal(load_numpy(saved, "velocity"), 2 * DENSE)
    assert [part.tolist() for part in load_numpy(saved, "counts")] == [KEYS.tolist(), COUNTS.tolist()]
    with pytest.raises(NotFoundError, match="'bias', got a checkpoint with 'counts', 'topics', 'velocity', 'weight'"):
        load_numpy(saved, "bias")
    with pytest.raises(UsageError, match=r"load_numpy\(url, name\) reads one of its named vectors: 'counts'"):
        load_numpy(saved)


def test_restore_when_vectors_are_derived_then_are_zeros(saved):
    """A row that was freed before the checkpoint is handed out again."""
    with PS2Context.getOrCreate(servers=2, restore=saved) as ps:
        weight = ps.vector("weight")
        assert [weight.derive().nnz() for _ in range(6)] == [0] * 6
        assert np.array_equal(weight.pull(), DENSE)


def test_restore_when_server_dies_later_then_shards_come_from_it(saved):
    with PS2Context.getOrCreate(servers=3, restore=saved) as ps:
        ps._coordinator.fleet.launcher._children[1].kill()
        assert np.array_equal(ps.vector("weight").pull(), DENSE)
        assert np.array_equal(ps.vector("counts").pull(KEYS), COUNTS)


def test_vector_when_name_is_unknown_then_error_lists_names(saved):
    with (
        PS2Context.getOrCreate(servers=1, restore=saved) as ps,
        pytest.raises(NotFoundError, match="no vector 'w'; expected one of counts, topics, velocity, weight"),
    ):
        ps.vector("w")


def fails_with(error, path, match, **more):
    with pytest.raises(error, match=match):
        PS2Context.getOrCreate(servers=1, restore=str(path), **more)
    assert PS2Context._active is None


def test_restore_latest_when_nothing_is_there_then_starts_empty(tmp_path):
    with PS2Context.getOrCreate(servers=1, checkpointDir=str(tmp_path / "new"), restore="latest") as ps:
        DCV.dense(3, name="w").fill(2)
        ps.checkpoint(step=1)
    with PS2Context.getOrCreate(servers=1, checkpointDir=str(tmp_path / "new"), restore="latest") as ps:
        assert (ps.nextStep, DCV.dense(3, name="w", reuse=True).sum()) == (1, 6)


def test_restore_when_folders_differ_behind_colons_then_two(tmp_path, monkeypatch):
    """The servers' current folder is another one, and the second name would be a chain of file systems."""
    for run in (1, 2):
        with PS2Context.getOrCreate(servers=1) as ps:
            monkeypatch.chdir(tmp_path)
            DCV.dense(3, name="w").fill(run)
            ps.checkpoint(f"run::{run}")
    for run, url in ((1, f"file://localhost{tmp_path}/run::1"), (2, "run::2")):
        with PS2Context.getOrCreate(servers=1, restore=url) as ps:
            assert ps.vector("w").sum() == 3 * run


def test_checkpoint_when_folder_is_one_process_s_then_refused():
    with pytest.raises(
        ConfigError, match=r"checkpointDir: expected a folder .* share, got memory://c, the memory of one"
    ):
        PS2Context.getOrCreate(servers=1, checkpointDir="memory://c")
    with PS2Context.getOrCreate(servers=1) as ps:
        DCV.dense(3, name="w").fill(1)
        with pytest.raises(RecoveryError, match=r"memory://c/.* must be a folder that servers and this process share"):
            ps.checkpoint("memory://c")


def test_restore_latest_when_without_folder_then_says_so():
    with pytest.raises(ConfigError, match="checkpointDir, which is not given"):
        PS2Context.getOrCreate(servers=1, restore="latest")


def test_restore_when_the_path_does_not_exist_then_it_is_named(tmp_path):
    fails_with(CheckpointMissingError, tmp_path / "nowhere", "nowhere: expected a folder with a checkpoint")


def test_restore_when_the_path_is_empty_then_it_is_named(tmp_path):
    fails_with(CheckpointMissingError, tmp_path, "no complete checkpoint|expected a checkpoint")


def test_restore_when_the_path_is_a_file_then_it_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    fails_with(CheckpointMissingError, tmp_path / "file", "but this is a file")


def test_restore_when_rows_were_saved_then_says_what_reads_them(tmp_path):
    folders.write_manifest(str(tmp_path), Manifest(0, None, 1.5e9, 0.0, 0.5, "0.1.0", ()))
    fails_with(UsageError, tmp_path, "expected a checkpoint of a fleet, got .* for DCV.load")


def test_restore_when_a_shard_is_missing_then_it_is_named(copied):
    gone = next(copied.glob("*.npy"))
    gone.unlink()
    fails_with(CheckpointCorruptError, copied, gone.name)


def test_restore_when_shard_is_truncated_then_names_both_sizes(copied):
    short = next(copied.glob("*.npy"))
    short.write_bytes(short.read_bytes()[:-8])
    fails_with(CheckpointCorruptError, copied, rf"{short.name}: expected [\d,]+ bytes, got [\d,]+")


def test_restore_when_a_byte_is_flipped_then_the_checksum_tells(copied):
    spoiled = max(copied.glob("*.npy"), key=lambda file: file.stat().st_size)
    data = bytearray(spoiled.read_bytes())
    data[-1] ^= 1
    spoiled.write_bytes(data)
    fails_with(CheckpointCorruptError, copied, rf"{spoiled.name}: expected bytes with XXH3-128")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda m: m.update(format="ps2.checkpoint.v9"),
            "expected format 'ps2.checkpoint.v1', got 'ps2.checkpoint.v9'",
        ),
        (lambda m: m["matrices"][0]["spec"].update(dtype="float16"), "dtype: expected one of float32"),
        (lambda m: m["matrices"][0]["spec"].update(dtype="float32"), "float32"),
        (lambda m: m["matrices"][0]["spec"].update(dim=999), "bounds: expected ascending integers from 0 to 999"),
        (lambda m: m.pop("matrices"), "matrices is missing"),
    ],
)
def test_restore_when_manifest_does_not_fit_then_says_where(copied, change, match):
    manifest = json.loads((copied / "manifest.json").read_text())
    change(manifest)
    (copied / "manifest.json").write_text(json.dumps(manifest))
    fails_with(CheckpointCorruptError, copied, match)


def test_restore_when_memory_is_too_small_then_limit_error(saved):
    fails_with(LimitError, saved, "left of the server's limit of 10,000", memoryLimit=10_000)


def test_restore_when_context_is_running_then_refused(saved):
    with PS2Context.getOrCreate(servers=1):
        weight = DCV.dense(10).fill(1)
        with pytest.raises(ConfigError, match="restore: a context is running"):
            PS2Context.getOrCreate(restore=saved)
        assert weight.sum() == 10
