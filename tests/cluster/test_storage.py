"""``save`` and ``load``: what comes back is what was saved, or an error that says why not."""

from __future__ import annotations

import json
import os
import resource
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest

from ps2 import DCV
from ps2.client import realign, storage
from ps2.errors import CheckpointCorruptError, CheckpointMissingError, ConfigError, RecoveryError

pytestmark = pytest.mark.parametrize("ps", [3], indirect=True, scope="module")

DTYPES = ("float32", "float64", "int64")
VALUES = np.arange(1, 2001)
KEYS = np.arange(2000) * (2**62 // 2000) + 5


def dense(dtype="float32"):
    return DCV.dense(VALUES.size, dtype=dtype).push(VALUES)


def sparse(dtype="float32"):
    return DCV.sparse(2**63, dtype=dtype).push(VALUES, KEYS)


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def array_file(folder, name="values"):
    return folder / manifest(folder)["files"][name]["name"]


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


def test_save_when_vector_has_several_windows_then_whole(ps, folder, monkeypatch):
    for module, name, size in [
        (storage, "WINDOW_BYTES", 512), (storage, "KEYS_PER_PUSH", 99), (realign, "WINDOW_BYTES", 512),
        (realign, "WINDOW_KEYS", 99),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, size)
    for number, vector in enumerate((dense("float64"), sparse())):
        vector.save(str(folder / str(number)))
        loaded = DCV.load(str(folder / str(number)))
        assert loaded.sum() == VALUES.sum()
        with warnings.catch_warnings(action="ignore"):
            assert loaded.dot(vector) == VALUES @ VALUES


def test_load_when_key_count_is_limited_in_a_call_then_larger_vectors_load(ps, folder, monkeypatch):
    sparse().save(str(folder))
    monkeypatch.setattr("ps2.client.arguments.MAX_KEYS", 1000)
    monkeypatch.setattr(storage, "KEYS_PER_PUSH", 1000)
    assert DCV.load(str(folder)).sum() == VALUES.sum()


def test_files_when_saved_then_numpy_reads_them(ps, folder):
    dense("float64").save(str(folder / "dense"))
    sparse().save(str(folder / "sparse"))
    assert np.array_equal(np.load(array_file(folder / "dense"), allow_pickle=False), VALUES)
    assert np.array_equal(np.load(array_file(folder / "sparse", "keys"), allow_pickle=False), KEYS)
    assert np.array_equal(np.load(array_file(folder / "sparse"), allow_pickle=False), VALUES)


def test_read_values_when_dense_was_saved_then_an_array(ps, folder):
    dense("float64").save(str(folder))
    values = storage.read_values(str(folder))
    assert (values.dtype, values.tolist()) == (np.float64, VALUES.tolist())


@pytest.mark.parametrize("url", ["memory://models/w", "file://{folder}", "{folder}"])
def test_save_when_url_is_any_of_fsspec_then_loads(ps, folder, url):
    url = url.format(folder=folder)
    for scale in (1, 2):
        dense().mul(scale).save(url)
        assert DCV.load(url).sum() == scale * VALUES.sum()


def test_save_when_place_holds_a_save_then_replaced_and_nothing_else_left(ps, folder):
    dense().save(str(folder))
    sparse().save(str(folder))
    dense("int64").save(str(folder))
    assert DCV.load(str(folder)).dtype == np.int64
    assert sorted(os.listdir(folder)) == sorted(["manifest.json", array_file(folder).name])


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


@pytest.fixture
def small_files():
    """Let this process write no file larger than 4000 bytes, as a full disk would."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_save_when_disk_is_full_then_the_earlier_one_stays_and_no_debris(ps, folder, request):
    small = DCV.dense(10).fill(3)
    small.save(str(folder))
    before = sorted(os.listdir(folder))
    request.getfixturevalue("small_files")
    for large in (dense("float64"), sparse()):
        with pytest.raises(OSError, match="File too large"):
            large.save(str(folder))
        assert sorted(os.listdir(folder)) == before
        assert DCV.load(str(folder)).sum() == 30


@pytest.mark.parametrize("make", [dense, sparse], ids=["dense", "sparse"])
def test_load_when_a_byte_of_an_array_file_flipped_then_corrupt(ps, folder, make):
    make("float64").save(str(folder))
    for name in manifest(folder)["files"]:
        path = array_file(folder, name)
        whole = path.read_bytes()
        for at in (0, 7, 8, 20, 25, 128, 5000, len(whole) - 1):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
            if (loaded := load_or_none(folder, CheckpointCorruptError)) is not None:
                # What numpy does not look at, such as the header's shape.
                assert (at < 128, loaded.sum()) == (True, VALUES.sum())
        path.write_bytes(whole)


@pytest.mark.parametrize("make", [dense, sparse], ids=["dense", "sparse"])
def test_load_when_any_byte_of_the_manifest_flipped_then_corrupt_or_the_same(ps, folder, make):
    make("float64").save(str(folder))
    path = folder / "manifest.json"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x01]) + whole[at + 1 :])
        if (loaded := load_or_none(folder, RecoveryError)) is not None:
            assert (loaded.dtype, loaded.sum(), loaded.nnz()) == (np.float64, VALUES.sum(), VALUES.size)


@pytest.mark.parametrize("make", [dense, sparse], ids=["dense", "sparse"])
@pytest.mark.parametrize("size", [0, 5, 60, 128, 131, 1000, 8127])
def test_load_when_an_array_file_is_truncated_then_corrupt(ps, folder, make, size):
    make().save(str(folder))
    os.truncate(array_file(folder), size)
    with pytest.raises(CheckpointCorruptError, match=array_file(folder).name):
        DCV.load(str(folder))


def test_load_when_an_array_file_has_more_than_announced_then_corrupt(ps, folder):
    dense().save(str(folder))
    with open(array_file(folder), "ab") as file:
        file.write(b"\0" * 8)
    with pytest.raises(CheckpointCorruptError, match="expected 2000 values of float32, got another length"):
        DCV.load(str(folder))


def test_load_when_an_array_file_is_missing_then_corrupt(ps, folder):
    dense().save(str(folder))
    array_file(folder).unlink()
    with pytest.raises(CheckpointCorruptError, match="named by the manifest, but not there"):
        DCV.load(str(folder))


def test_load_when_array_file_is_of_another_dtype_then_corrupt(ps, folder):
    dense("float32").save(str(folder))
    np.save(array_file(folder), VALUES.astype(np.int32))
    with pytest.raises(CheckpointCorruptError, match="expected values of float32, got int32"):
        DCV.load(str(folder))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1]", b"3", b"null", b'{"format": "ps2.vector.v2"}'])
def test_manifest_when_not_ours_then_corrupt_for_load_and_untouched_by_save(ps, folder, content):
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(content)
    for use in (lambda: DCV.load(str(folder)), lambda: dense().save(str(folder))):
        with pytest.raises(
            CheckpointCorruptError, match=r"manifest.json: (not JSON|expected format 'ps2.vector.v1', got)"
        ):
            use()
    assert os.listdir(folder) == ["manifest.json"]
    assert (folder / "manifest.json").read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [
        {"dim": 2001}, {"dim": -1}, {"dim": "x"}, {"dtype": "float16"}, {"dtype": "float64"}, {"kind": "sparse"},
        {"kind": "wide"}, {"files": {}}, {"files": None}, {"files": {"values": {"name": "x"}}},
    ],
    ids=repr,
)  # fmt: skip
def test_load_when_the_manifest_is_inconsistent_then_corrupt(ps, folder, change):
    dense().save(str(folder))
    (folder / "manifest.json").write_text(json.dumps({**manifest(folder), **change}))
    with pytest.raises(CheckpointCorruptError):
        DCV.load(str(folder))


def test_load_when_sparse_keys_exceed_dim_then_corrupt(ps, folder):
    sparse().save(str(folder))
    (folder / "manifest.json").write_text(json.dumps({**manifest(folder), "dim": 1000}))
    with pytest.raises(CheckpointCorruptError, match="keys below its dim"):
        DCV.load(str(folder))


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


def test_load_when_corrupt_then_no_matrix_is_left_on_the_servers(ps, folder, statuses):
    dense().save(str(folder))
    array_file(folder).write_bytes(array_file(folder).read_bytes()[:-1] + b"\x55")
    with pytest.raises(CheckpointCorruptError):
        DCV.load(str(folder))
    last = DCV.dense(1)
    assert {m.matrix for status in statuses() for m in status.matrices} == {last._matrix}


def test_saves_when_loaded_in_place_of_each_other_then_path_objects_work(ps, folder):
    dense().save(Path(folder))
    assert DCV.load(Path(folder)).sum() == VALUES.sum()
