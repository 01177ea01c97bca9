"""``save`` and ``load``: what comes back is what was saved, or an error that says why not."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import numpy as np
import pytest

import ps2
from ps2 import DCV
from ps2.client import storage
from ps2.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    ConfigError,
    LimitError,
    RecoveryError,
    UsageError,
)
from ps2.saved_vectors import BLOCK_VALUES
from tests.faults import disks

pytestmark = pytest.mark.parametrize("ps", [3], indirect=True, scope="module")

DTYPES = ("float32", "float64", "int64")
VALUES = np.arange(1, 2001)
KEYS = np.arange(2000) * (2**62 // 2000) + 5


def dense(dtype="float32", **options):
    return DCV.dense(VALUES.size, dtype=dtype, **options).push(VALUES)


def sparse(dtype="float32", **options):
    return DCV.sparse(2**63, dtype=dtype, **options).push(VALUES, KEYS)


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def array_files(folder, kind="values"):
    return [folder / part["files"][kind]["name"] for part in manifest(folder)["parts"]]


def array_file(folder, kind="values"):
    return array_files(folder, kind)[0]


def change_manifest(folder, **change):
    (folder / "manifest.json").write_text(json.dumps({**manifest(folder), **change}))


def change_part(folder, **change):
    """Change the second of the parts."""
    parts = manifest(folder)["parts"]
    parts[1] |= change
    change_manifest(folder, parts=parts)


def old_save(folder, kind, **arrays):
    """Write a folder of the first format, with all values in one file."""
    folder.mkdir(parents=True)
    files = {}
    for name, array in arrays.items():
        np.save(folder / f"{name}-x.npy", array)
        files[name] = {"name": f"{name}-x.npy", "count": array.size, "crc32": zlib.crc32(array.tobytes())}
    dim = VALUES.size if kind == "dense" else 2**63
    content = {"format": "ps2.vector.v1", "dim": dim, "dtype": arrays["values"].dtype.name, "kind": kind}
    (folder / "manifest.json").write_text(json.dumps({**content, "files": files}))


def load_or_none(folder, error):
    """Return the vector, or None after that error and no other."""
    try:
        return DCV.load(str(folder))
    except error:
        return None


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "models" / "weight"


@pytest.mark.parametrize("dtype", DTYPES)
def test_load_when_dense_was_saved_then_same_vector(ps, folder, dtype):
    dense(dtype).save(str(folder))
    loaded = DCV.load(str(folder))
    assert (loaded.dim, loaded.dtype, loaded.isSparse) == (VALUES.size, dtype, False)
    assert np.array_equal(loaded.pull(), VALUES)


@pytest.mark.parametrize("dtype", DTYPES)
def test_load_when_sparse_was_saved_then_same_vector(ps, folder, dtype):
    sparse(dtype).save(str(folder))
    loaded = DCV.load(str(folder))
    assert (loaded.dim, loaded.dtype, loaded.isSparse) == (2**63, dtype, True)
    keys, values = loaded.pull()
    assert np.array_equal(keys, KEYS)
    assert np.array_equal(values, VALUES)


@pytest.mark.parametrize("make", [lambda: DCV.dense(1), lambda: DCV.sparse(5, dtype="int64")], ids=["short", "empty"])
def test_load_when_little_was_saved_then_same_vector(ps, folder, make):
    saved = make()
    saved.save(str(folder))
    assert DCV.load(str(folder)).dim == saved.dim
    assert DCV.load(str(folder)).nnz() == 0


def test_load_when_nan_and_infinities_were_saved_then_bit_for_bit(ps, folder):
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-40], np.float32)
    DCV.dense(5).push(values).save(str(folder))
    assert DCV.load(str(folder)).pull().tobytes() == values.tobytes()


def test_load_when_rows_are_given_then_so_many_are_reserved(ps, folder, statuses):
    dense().save(str(folder))
    loaded = DCV.load(str(folder), rows=7)
    assert {m.rows for status in statuses() for m in status.matrices if m.matrix == loaded._matrix} == {7}


@pytest.mark.parametrize("make", [dense, sparse], ids=["dense", "sparse"])
def test_load_when_it_was_saved_in_more_parts_then_same_vector(ps, folder, make):
    """As on a larger fleet: the parts that a server reads are not its own partitions."""
    make("float64", partitionsPerServer=7 if make is sparse else 5).save(str(folder))
    assert len(manifest(folder)["parts"]) > 10
    loaded = DCV.load(str(folder))
    assert np.array_equal(loaded.pull(KEYS if make is sparse else None), VALUES)
    assert (loaded.nnz(), loaded.sum()) == (VALUES.size, VALUES.sum())


def test_load_when_parts_are_longer_than_a_window_then_whole(ps, folder):
    values = np.arange(3 * BLOCK_VALUES + 5, dtype=np.float32)
    saved = DCV.dense(values.size, align=2 * BLOCK_VALUES + 1).push(values)
    saved.save(str(folder))
    change_manifest(folder, align=1)
    assert np.array_equal(DCV.load(str(folder)).pull(), values)


def test_load_when_keys_of_a_part_are_more_than_a_window_then_whole(ps, folder):
    keys = np.arange(BLOCK_VALUES + 30_000) * 7
    old_save(folder, "sparse", keys=keys, values=keys + 1)
    found, values = DCV.load(str(folder)).pull()
    assert np.array_equal(found, keys)
    assert np.array_equal(values, keys + 1)


@pytest.mark.parametrize("make", [dense, sparse], ids=["dense", "sparse"])
def test_save_and_load_when_values_are_many_then_no_array_travels(ps, folder, statuses, make):
    """What clients and servers send each other of arrays is counted by the servers."""

    def travelled():
        return sum(status.bytes_in + status.bytes_out for status in statuses())

    vector = make("float64")
    before = travelled()
    vector.save(str(folder))
    loaded = DCV.load(str(folder))
    assert travelled() == before
    assert loaded.sum() == VALUES.sum()


def test_load_when_the_vector_was_aligned_then_it_is_again(ps, folder):
    dense(align=700).save(str(folder))
    loaded = DCV.load(str(folder))
    assert [p.width for p in loaded._route.partitions] == [700, 700, 600]


def test_save_when_additions_are_under_way_then_they_are_in_it(ps, folder):
    vector = dense()
    vector.add(np.ones(VALUES.size), wait=False)
    vector.save(str(folder))
    assert np.array_equal(storage.read_values(str(folder)), VALUES + 1)


def test_save_when_values_travel_shortened_then_as_they_are_stored(ps, folder):
    value = np.float32(1) + np.float32(2**-20)
    DCV.dense(10, wire="float16").fill(float(value)).save(str(folder))
    assert storage.read_values(str(folder)).tolist() == [value] * 10


def test_save_and_load_when_in_a_batch_then_usage_error(ps, folder):
    vector = dense()
    for use in (lambda: vector.save(str(folder)), lambda: DCV.load(str(folder))):
        with pytest.raises(UsageError, match="cannot be part of a batch"), ps2.batch():
            use()


def test_files_when_saved_then_numpy_reads_them(ps, folder):
    dense("float64").save(str(folder / "dense"))
    sparse().save(str(folder / "sparse"))
    assert np.array_equal(np.concatenate([np.load(f) for f in array_files(folder / "dense")]), VALUES)
    keys, values = (np.concatenate([np.load(f) for f in array_files(folder / "sparse", k)]) for k in ("keys", "values"))
    assert dict(zip(keys, values, strict=True)) == dict(zip(KEYS, VALUES, strict=True))


# -- without the fleet -------------------------------------------------------------------------------------------------


def test_read_values_when_dense_was_saved_then_an_array(ps, folder):
    dense("float64").save(str(folder))
    values = storage.read_values(str(folder))
    assert (values.dtype, values.tolist()) == (np.float64, VALUES.tolist())


def test_read_sparse_when_sparse_was_saved_then_keys_and_values(ps, folder):
    vector = sparse("int64")
    vector.save(str(folder))
    for found, expected in zip(storage.read_sparse(str(folder)), vector.pull(), strict=True):
        assert np.array_equal(found, expected)


def test_read_when_it_is_of_the_other_kind_then_usage_error_names_the_function(ps, folder):
    dense().save(str(folder / "dense"))
    sparse().save(str(folder / "sparse"))
    with pytest.raises(UsageError, match="this one is sparse: see read_sparse"):
        storage.read_values(str(folder / "sparse"))
    with pytest.raises(UsageError, match="this one is dense: see read_values"):
        storage.read_sparse(str(folder / "dense"))


def test_describe_when_saved_then_what_it_is(ps, folder):
    sparse("float64").save(str(folder))
    found = storage.describe(str(folder))
    assert (found.spec.dim, found.spec.dtype, found.spec.kind, found.count) == (2**63, "float64", "sparse", KEYS.size)


# -- the first format --------------------------------------------------------------------------------------------------


def test_load_when_dense_is_in_the_first_format_then_same_vector(ps, folder):
    old_save(folder, "dense", values=VALUES.astype(np.float64))
    assert np.array_equal(DCV.load(str(folder)).pull(), VALUES)
    assert np.array_equal(storage.read_values(str(folder)), VALUES)


def test_load_when_sparse_is_in_the_first_format_then_same_vector(ps, folder):
    old_save(folder, "sparse", keys=KEYS, values=VALUES.astype(np.float32))
    for keys, values in (DCV.load(str(folder)).pull(), storage.read_sparse(str(folder))):
        assert np.array_equal(keys, KEYS)
        assert np.array_equal(values, VALUES)


def test_load_when_the_first_format_is_corrupt_then_the_file_is_named(ps, folder):
    old_save(folder, "dense", values=VALUES.astype(np.float64))
    path = folder / "values-x.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    with pytest.raises(CheckpointCorruptError, match=r"values-x.npy: expected 16,128 bytes, values with checksum"):
        DCV.load(str(folder))


def test_save_when_a_save_of_the_first_format_is_there_then_replaced(ps, folder):
    old_save(folder, "sparse", keys=KEYS, values=VALUES)
    dense().save(str(folder))
    assert sorted(os.listdir(folder)) == sorted(["manifest.json", *(file.name for file in array_files(folder))])


# -- places ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["file://{folder}", "{folder}"])
def test_save_when_url_is_any_of_fsspec_then_loads(ps, folder, url):
    url = url.format(folder=folder)
    for scale in (1, 2):
        dense().mul(scale).save(url)
        assert DCV.load(url).sum() == scale * VALUES.sum()


def test_save_when_the_folder_is_relative_then_to_the_one_of_this_process(ps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dense().save("here")
    assert DCV.load("here").sum() == VALUES.sum()
    assert (tmp_path / "here" / "manifest.json").is_file()


def test_save_when_the_place_is_empty_then_usage_error_and_the_current_folder_stays_empty(ps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="url: expected a path or a URL, got ''"):
        DCV.dense(3).save("")
    assert list(tmp_path.iterdir()) == []


def test_save_when_the_place_is_not_shared_with_the_servers_then_it_says_so(ps):
    """The memory of each process is a file system of its own."""
    with pytest.raises(RecoveryError, match="must be a place that the servers and this process share"):
        dense().save("memory://models/w")
    with pytest.raises(CheckpointMissingError):
        DCV.load("memory://models/w")


def test_save_when_place_holds_a_save_then_replaced_and_nothing_else_left(ps, folder):
    dense().save(str(folder))
    sparse().save(str(folder))
    dense("int64").save(str(folder))
    assert DCV.load(str(folder)).dtype == np.int64
    assert sorted(os.listdir(folder)) == sorted(["manifest.json", *(file.name for file in array_files(folder))])


def test_save_when_it_stops_before_the_manifest_then_the_earlier_one_loads(ps, folder, monkeypatch):
    dense().save(str(folder))
    before = sorted(os.listdir(folder))

    def stops(*args, **kwargs):
        raise OSError("no luck")

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.mv", stops)
    with pytest.raises(RecoveryError, match="renaming it into place failed: OSError: no luck"):
        sparse().save(str(folder))
    assert sorted(os.listdir(folder)) == before
    assert DCV.load(str(folder)).sum() == VALUES.sum()


@pytest.mark.parametrize("make", [dense, sparse], ids=["dense", "sparse"])
def test_save_when_disk_is_full_then_the_earlier_one_stays_and_no_debris(ps, tmp_path, make):
    with disks.small_disk(tmp_path / "disk", 1 << 20) as disk:
        folder = disk / "weight"
        DCV.dense(10).fill(3).save(str(folder))
        before = sorted(os.listdir(folder))
        disks.fill(disk, left=8 << 10)
        with pytest.raises(RecoveryError, match=r"-\d.npy: writing failed: No space left on device"):
            make("float64").save(str(folder))
        assert sorted(os.listdir(folder)) == before
        assert DCV.load(str(folder)).sum() == 30


def test_save_when_the_folder_cannot_be_written_then_it_says_so(ps, tmp_path):
    with disks.read_only(tmp_path / "disk") as disk, pytest.raises(RecoveryError, match="Read-only file system"):
        dense().save(str(disk / "weight"))


# -- files that are not what was saved ---------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [dense, sparse], ids=["dense", "sparse"])
def test_load_when_a_byte_of_an_array_file_flipped_then_corrupt(ps, folder, make):
    make("float64").save(str(folder))
    for kind in manifest(folder)["parts"][0]["files"]:
        path = array_file(folder, kind)
        whole = path.read_bytes()
        for at in (0, 7, 8, 20, 25, 128, 3000, len(whole) - 1):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
            with pytest.raises(CheckpointCorruptError, match=path.name):
                DCV.load(str(folder))
        path.write_bytes(whole)


@pytest.mark.parametrize("make", [dense, sparse], ids=["dense", "sparse"])
def test_load_when_any_byte_of_the_manifest_flipped_then_corrupt_or_the_same(ps, folder, make):
    make("float64").save(str(folder))
    path = folder / "manifest.json"
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x01]) + whole[at + 1 :])
        if (loaded := load_or_none(folder, RecoveryError)) is not None:
            assert (loaded.dtype, loaded.sum(), loaded.nnz()) == (np.float64, VALUES.sum(), VALUES.size)


@pytest.mark.parametrize("make", [dense, sparse], ids=["dense", "sparse"])
@pytest.mark.parametrize("size", [0, 60, 128, 131, 1000])
def test_load_when_an_array_file_is_truncated_then_corrupt(ps, folder, make, size):
    make().save(str(folder))
    os.truncate(array_file(folder), size)
    with pytest.raises(CheckpointCorruptError, match=array_file(folder).name):
        DCV.load(str(folder))


def test_load_when_an_array_file_has_more_than_announced_then_corrupt(ps, folder):
    dense().save(str(folder))
    with open(array_file(folder), "ab") as file:
        file.write(b"\0" * 8)
    with pytest.raises(CheckpointCorruptError, match=r"expected 2,\d+ bytes, got 2,\d+"):
        DCV.load(str(folder))


def test_load_when_an_array_file_is_missing_then_corrupt(ps, folder):
    dense().save(str(folder))
    array_file(folder).unlink()
    with pytest.raises(CheckpointCorruptError, match="named by the manifest, but not there"):
        DCV.load(str(folder))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1]", b"3", b"null", b'{"format": "ps2.vector.v3"}'])
def test_manifest_when_not_ours_then_corrupt_for_load_and_untouched_by_save(ps, folder, content):
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(content)
    for use in (lambda: DCV.load(str(folder)), lambda: dense().save(str(folder))):
        with pytest.raises(
            CheckpointCorruptError,
            match=r"manifest.json: (not JSON|expected format 'ps2.vector.v2' or 'ps2.vector.v1', got)",
        ):
            use()
    assert os.listdir(folder) == ["manifest.json"]
    assert (folder / "manifest.json").read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [
        {"dim": 2001}, {"dim": -1}, {"dim": "x"}, {"dtype": "float16"}, {"dtype": "float64"}, {"kind": "sparse"},
        {"kind": "wide"}, {"align": 0}, {"parts": []}, {"parts": None}, {"parts": [{"begin": 0, "end": 2000}]},
    ],
    ids=repr,
)  # fmt: skip
def test_load_when_the_manifest_is_inconsistent_then_corrupt(ps, folder, change):
    dense().save(str(folder))
    change_manifest(folder, **change)
    with pytest.raises(CheckpointCorruptError):
        DCV.load(str(folder))


@pytest.mark.parametrize(
    "change",
    [{"begin": 0}, {"end": 1}, {"count": 1}, {"files": {}}, {"files": {"values": {"name": "../x"}}}],
    ids=repr,
)
def test_load_when_a_part_is_inconsistent_then_corrupt(ps, folder, change):
    dense().save(str(folder))
    change_part(folder, **change)
    with pytest.raises(CheckpointCorruptError):
        DCV.load(str(folder))


def test_load_when_sparse_keys_exceed_dim_then_corrupt(ps, folder):
    sparse().save(str(folder))
    change_manifest(folder, dim=1000)
    with pytest.raises(CheckpointCorruptError, match="expected keys below 1000, got"):
        DCV.load(str(folder))


def test_load_when_parts_are_interchanged_then_corrupt(ps, folder):
    sparse().save(str(folder))
    parts = manifest(folder)["parts"]
    for name in ("files", "count"):
        parts[0][name], parts[1][name] = parts[1][name], parts[0][name]
    change_manifest(folder, parts=parts)
    for read in (DCV.load, storage.read_sparse):
        with pytest.raises(CheckpointCorruptError, match=r"key \d+ belongs to another part"):
            read(str(folder))


@pytest.mark.parametrize("prepare", [lambda f: None, lambda f: f.mkdir(parents=True)], ids=["absent", "empty"])
def test_load_when_there_is_no_save_then_missing(ps, folder, prepare):
    prepare(folder)
    with pytest.raises(CheckpointMissingError, match=rf"{folder}: there is no manifest.json"):
        DCV.load(str(folder))


@pytest.mark.parametrize("url", ["nosuch://x/y", 3, None], ids=repr)
def test_url_when_unknown_then_config_error(ps, url):
    for use in (lambda: DCV.load(url), lambda: dense().save(url)):
        with pytest.raises(ConfigError, match=f"got {url!r}"):
            use()


@pytest.fixture
def memory(statuses):
    """``memory()``: what the servers' matrices take, and which they are."""
    return lambda: [{(m.matrix, m.bytes) for m in status.matrices} for status in statuses()]


@pytest.mark.parametrize("make", [dense, sparse], ids=["dense", "sparse"])
def test_load_when_corrupt_then_nothing_is_left_on_the_servers(ps, folder, memory, make):
    make().save(str(folder))
    last = array_files(folder)[-1]
    last.write_bytes(last.read_bytes()[:-1] + b"\x55")
    anchor = DCV.dense(1)  # rows of handles that are gone are freed with the next call for rows
    before = memory()
    with pytest.raises(CheckpointCorruptError, match=last.name):
        DCV.load(str(folder))
    assert memory() == before
    anchor.free()


def test_load_when_memory_does_not_suffice_then_limit_error_and_nothing_is_left(ps, folder, statuses, memory):
    dense().save(str(folder))
    anchor = DCV.dense(1)
    before = memory()
    rows = 4 * statuses()[0].memory_limit_bytes // (4 * VALUES.size)
    with pytest.raises(LimitError):
        DCV.load(str(folder), rows=rows)
    assert memory() == before
    anchor.free()


def test_saves_when_loaded_in_place_of_each_other_then_path_objects_work(ps, folder):
    dense().save(Path(folder))
    assert DCV.load(Path(folder)).sum() == VALUES.sum()
