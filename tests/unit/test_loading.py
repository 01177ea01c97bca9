"""What a checkpoint holds comes back on any number of servers; one that cannot be trusted changes nothing."""

from __future__ import annotations

import json
import tempfile
import threading
from dataclasses import replace

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from ps2.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    KeyMissError,
    LimitError,
    NotFoundError,
    RecoveryError,
    StaleRouteError,
)
from ps2.matrix.partition import MatrixSpec, Partition
from ps2.protocol.messages import Keys, Operation, Request, RequestId, key_digest
from ps2.storage import folders
from ps2.storage.manifest import SavedFile
from tests.checkpoints import Fleet, op
from tests.conftest import wait_until

D, S = 1, 2
DIM = 1000
COLUMNS = np.arange(DIM)
KEYS = np.arange(3, 40_000, 7) * 2**30
DENSE = MatrixSpec(DIM, 3, dtype="float64")
SPARSE = MatrixSpec(2**62, 2, kind="sparse")


def filled(servers=2):
    """Return a fleet whose rows hold what ``check`` expects."""
    fleet = Fleet(servers)
    fleet.create(D, DENSE)
    fleet.create(S, SPARSE)
    fleet.push(D, 1, COLUMNS, COLUMNS + 0.5)
    fleet.push(S, 1, KEYS, np.arange(KEYS.size, dtype=np.float32))
    return fleet


def check(fleet):
    assert np.array_equal(fleet.pull(D, 1, COLUMNS), COLUMNS + 0.5)
    assert not fleet.pull(D, 0, COLUMNS).any()
    assert np.array_equal(fleet.pull(S, 1, KEYS), np.arange(KEYS.size))
    assert fleet.active(S) == KEYS.size


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoint-00000001"


@pytest.fixture
def saved(folder):
    return filled().save(folder)


def file_of(manifest, kind, matrix=D):
    shards = next(m.shards for m in manifest.matrices if m.id == matrix)
    return shards[0].files[kind]


def put_file(folder, manifest, file, data):
    """Put other bytes in a file's place, and make the manifest agree."""
    (folder / file.name).write_bytes(data)
    text = (folder / "manifest.json").read_text()
    content = json.loads(text)
    for matrix in content["matrices"]:
        for shard in matrix["shards"]:
            for entry in shard["files"].values():
                if entry["name"] == file.name:
                    entry |= {"nbytes": len(data), "xxh3": xxhash.xxh3_128(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(content))


def npy(array):
    with tempfile.TemporaryFile() as file:
        np.save(file, array)
        file.seek(0)
        return file.read()


# -- what comes back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_load_when_server_count_changes_then_values_are_the_same(saved, folder, servers):
    fleet = Fleet(servers)
    fleet.load(folder)
    check(fleet)


def test_load_when_place_is_a_url_then_values_are_the_same(tmp_path):
    filled().save(url := f"memory://{tmp_path.name}/checkpoint-00000001")
    fleet = Fleet(3)
    fleet.load(url)
    check(fleet)


def test_load_when_row_exceeds_block_then_values_are_the_same(folder):
    fleet, restored = Fleet(2), Fleet(3)
    columns = np.arange(1_700_000)
    fleet.create(D, MatrixSpec(columns.size, 2, dtype="float64"))
    fleet.push(D, 1, columns, columns * 0.5)
    fleet.save(folder)
    restored.load(folder)
    assert np.array_equal(restored.pull(D, 1, columns), columns * 0.5)


@st.composite
def matrix_specs(draw):
    dtype = draw(st.sampled_from(["float32", "float64", "int32", "int64"]))
    rows = draw(st.integers(1, 5))
    shared = {"partitions_per_server": draw(st.integers(1, 3)), "layout": draw(st.sampled_from(["row", "column"]))}
    if draw(st.booleans()):
        return MatrixSpec(draw(st.sampled_from([100, 2**40, 2**63])), rows, dtype, "sparse", **shared)
    return MatrixSpec(draw(st.integers(1, 300)), rows, dtype, align=draw(st.integers(1, 7)), **shared)


@settings(max_examples=60)
@given(specs=st.lists(matrix_specs(), min_size=1, max_size=4), before=st.integers(1, 4), after=st.integers(1, 4),
       seed=st.integers(0, 2**32))  # fmt: skip
def test_load_when_any_matrices_were_saved_then_values_match(specs, before, after, seed):
    random = np.random.default_rng(seed)
    fleet, restored = Fleet(before), Fleet(after)
    written = {}
    for id, spec in enumerate(specs):
        fleet.create(id, spec)
        for row in range(spec.rows):
            columns = np.unique(random.integers(0, spec.dim, random.integers(1, 50), dtype=np.int64))
            values = random.integers(-(2**20), 2**20, columns.size).astype(spec.np_dtype)
            fleet.push(id, row, columns, values)
            written[id, row] = columns, values
    with tempfile.TemporaryDirectory() as folder:
        fleet.save(folder)
        restored.load(folder)
    for (id, row), (columns, values) in written.items():
        assert np.array_equal(restored.pull(id, row, columns), values)
        assert restored.active(id) == fleet.active(id)


def test_load_when_matrix_has_grown_then_new_rows_are_zeros(saved, folder):
    fleet = Fleet(2)
    manifest = replace(saved, matrices=saved.matrices[:1])
    grown = replace(DENSE, rows=6)
    for server, loading in enumerate(fleet.loadings):
        loading.load(str(folder), fleet.to_load(manifest, server, spec=grown), ids=False)
        loading.activate()
    fleet.specs[D] = grown
    assert np.array_equal(fleet.pull(D, 1, COLUMNS), COLUMNS + 0.5)
    assert not fleet.pull(D, 5, COLUMNS).any()


def test_load_when_rows_are_newer_or_unused_then_zeros_or_gone(saved, folder):
    fleet = Fleet(2)
    fleet.load(folder, zeros=(1,), unused=(0,))
    assert not fleet.pull(D, 1, COLUMNS).any()
    with pytest.raises(NotFoundError, match="row 0 was freed"):
        fleet.pull(D, 0, COLUMNS)


def test_load_when_matrix_has_no_sources_then_it_is_zeros(saved, folder):
    fleet = Fleet(2)
    fleet.load(folder, sources=())
    assert not fleet.pull(D, 1, COLUMNS).any()
    assert fleet.active(S) == 0


@pytest.mark.parametrize("layout", ["row", "column"])
@pytest.mark.parametrize("servers", [2, 3])
def test_load_when_some_rows_were_in_use_then_others_are_zeros(folder, servers, layout):
    fleet, restored = Fleet(2), Fleet(servers)
    for matrix, spec, columns in ((D, DENSE, COLUMNS), (S, replace(SPARSE, rows=3), KEYS)):
        fleet.create(matrix, replace(spec, layout=layout))
        for row in range(3):
            fleet.push(matrix, row, columns, np.full(columns.size, row + 1.0, spec.np_dtype))
    fleet.save(folder, rows=[0, 2])
    restored.load(folder)
    for matrix, columns in ((D, COLUMNS), (S, KEYS)):
        assert [set(restored.pull(matrix, row, columns)) for row in range(3)] == [{1.0}, {0.0}, {3.0}]


@pytest.mark.parametrize("ids", [True, False])
def test_load_when_ids_are_wanted_then_old_mutation_is_skipped(folder, ids):
    fleet, restored = Fleet(1), Fleet(1)
    fleet.create(D, DENSE)
    add = Request((op("push_add", D, 0, 0, arrays=[np.ones(DIM)], start=0),), RequestId("task", 0))
    fleet.engines[0].execute(add)
    fleet.save(folder)
    restored.load(folder, ids=ids)
    assert restored.engines[0].execute(add).replayed == ids
    assert set(restored.pull(D, 0, COLUMNS)) == {1.0 if ids else 2.0}


def test_load_when_ids_are_wanted_but_unsaved_then_error_says_so(folder):
    fleet = Fleet(1)
    fleet.create(D, DENSE)
    manifest = fleet.save(folder)
    (matrix,) = manifest.matrices
    shards = tuple(replace(shard, files={"values": shard.files["values"]}) for shard in matrix.shards)
    folders.write_manifest(str(folder), replace(manifest, matrices=(replace(matrix, shards=shards),)))
    fleet.load(folder)
    with pytest.raises(CheckpointCorruptError, match="expected a file of applied ids"):
        fleet.load(folder, ids=True)


def test_load_when_cut_otherwise_then_ids_are_left_out(folder):
    fleet, restored = filled(), Fleet(3)
    fleet.save(folder)
    restored.load(folder, ids=True)
    assert [len(s.applied) for engine in restored.engines for s in engine.shards().values()] == [0] * 6


# -- into place ------------------------------------------------------------------------------------------------------


def test_load_when_not_taken_then_present_shards_stay(saved, folder):
    fleet = filled()
    fleet.push(D, 0, COLUMNS, COLUMNS * 2.0)
    fleet.load(folder, take=False)
    assert np.array_equal(fleet.pull(D, 0, COLUMNS), COLUMNS * 2)


def test_take_when_shards_were_loaded_then_others_are_freed(saved, folder):
    fleet, fresh = filled(), Fleet(2)
    fleet.create(7, MatrixSpec(10**6, 2))
    fleet.engines[0].create_matrix(8, MatrixSpec(4, 1), [Partition(0, 0, 4)], copies=True)
    fleet.load(folder)
    fresh.load(folder)
    assert {matrix for engine in fleet.engines for matrix, _ in engine.shards()} == {D, S}
    assert [engine.memory.used_bytes for engine in fleet.engines] == [
        engine.memory.used_bytes for engine in fresh.engines
    ]


def test_take_when_nothing_was_loaded_then_error_says_so():
    with pytest.raises(RecoveryError, match="this server has loaded no checkpoint"):
        Fleet(1).loadings[0].activate()


def test_load_when_called_again_then_earlier_read_is_dropped(saved, folder):
    fleet = Fleet(2)
    fleet.load(folder, take=False)
    before = fleet.engines[0].memory.used_bytes
    fleet.load(folder, take=False)
    assert fleet.engines[0].memory.used_bytes == before
    fleet.loadings[0].close()
    assert fleet.engines[0].memory.used_bytes == 0


def test_take_when_keys_were_remembered_then_client_must_resend(saved, folder):
    fleet = filled(1)
    engine, keys = fleet.engines[0], np.sort(KEYS[:10])
    digest = key_digest(keys)

    def gather(columns):
        operation = Operation("gather", S, 0, (1,), {}, (), Keys(keys.size, columns, digest))
        return engine.execute(Request((operation,))).results[0].arrays[0]

    assert np.array_equal(gather(keys), np.arange(10))
    assert np.array_equal(gather(None), np.arange(10))
    fleet.load(folder)
    with pytest.raises(KeyMissError):
        gather(None)
    assert np.array_equal(gather(keys), np.arange(10))


def test_request_when_shards_were_replaced_then_is_refused(saved, folder):
    fleet = Fleet(1)
    fleet.load(folder)
    engine = fleet.engines[0]
    engine.fence.activate(1, "c", 0)
    errors = []

    def push():
        try:
            engine.execute(Request((op("fill", D, 0, 1, value=9.0),), RequestId("late", 0), route_version=1))
        except StaleRouteError as error:
            errors.append(error)

    fleet.load(folder, take=False)
    late = threading.Thread(target=push)
    with engine.shards()[D, 0].lock:
        late.start()
        wait_until(lambda: engine.meter.read().waiting == 1, "the request waits")
        engine.fence.activate(2, "c", 0)
        fleet.loadings[0].activate()
    late.join(timeout=30)
    assert len(errors) == 1


# -- what cannot be trusted ------------------------------------------------------------------------------------------


def refused(folder, error, match, servers=2, **changes):
    """Check that loading fails so, and that the running model and its memory are as before."""
    fleet = filled(servers)
    specs = dict(fleet.specs)
    before = [engine.memory.used_bytes for engine in fleet.engines]
    with pytest.raises(error, match=match):
        fleet.load(folder, take=False, **changes)
    for loading in fleet.loadings:
        loading.close()
    assert [engine.memory.used_bytes for engine in fleet.engines] == before
    fleet.specs = specs
    check(fleet)


@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize(("matrix", "kind"), [(D, "values"), (D, "ids"), (S, "keys"), (S, "values"), (S, "ids")])
def test_load_when_a_file_is_missing_then_error_names_it(saved, folder, matrix, kind, servers):
    file = file_of(saved, kind, matrix)
    (folder / file.name).unlink()
    refused(folder, CheckpointCorruptError, rf"{folder}/{file.name}: named by the manifest, but missing", servers)


@pytest.mark.parametrize("servers", [2, 3])
@pytest.mark.parametrize(("matrix", "kind"), [(D, "values"), (D, "ids"), (S, "keys"), (S, "values"), (S, "ids")])
def test_load_when_file_is_truncated_then_error_names_both_sizes(saved, folder, matrix, kind, servers):
    file = file_of(saved, kind, matrix)
    (folder / file.name).write_bytes((folder / file.name).read_bytes()[:-1])
    match = rf"{file.name}: expected {file.nbytes:,} bytes, got {file.nbytes - 1:,}"
    refused(folder, CheckpointCorruptError, match, servers)


@pytest.mark.parametrize("at", [0, 20, 90, 130, -1])
@pytest.mark.parametrize(("matrix", "kind"), [(D, "values"), (S, "keys"), (S, "values")])
def test_load_when_a_byte_is_flipped_then_error_names_the_file(saved, folder, matrix, kind, at):
    file = file_of(saved, kind, matrix)
    data = bytearray((folder / file.name).read_bytes())
    data[at] ^= 0x10
    (folder / file.name).write_bytes(data)
    refused(folder, CheckpointCorruptError, file.name)


def test_load_when_value_is_flipped_then_error_names_checksums(saved, folder):
    file = file_of(saved, "values")
    data = bytearray((folder / file.name).read_bytes())
    data[-1] ^= 1
    (folder / file.name).write_bytes(data)
    result = xxhash.xxh3_128(bytes(data)).hexdigest()
    refused(folder, CheckpointCorruptError, rf"{file.name}: expected bytes with XXH3-128 {file.xxh3}, got {result}")


def test_load_when_file_has_another_dtype_then_error_names_both(saved, folder):
    file = file_of(saved, "values")
    put_file(folder, saved, file, npy(np.zeros((3, DIM // 2), np.float32)))
    refused(folder, CheckpointCorruptError, f"{file.name}: expected values of float64, got float32")


@pytest.mark.parametrize("shape", [(2, DIM // 2), (3, DIM // 2 + 1), (3 * DIM // 2,)])
def test_load_when_file_has_another_shape_then_error_names_both(saved, folder, shape):
    file = file_of(saved, "values")
    put_file(folder, saved, file, npy(np.zeros(shape)))
    refused(folder, CheckpointCorruptError, rf"expected values of shape \(3, {DIM // 2}\), got \({shape[0]}")


def test_load_when_file_ends_before_header_says_then_error(saved, folder):
    file = file_of(saved, "values")
    put_file(folder, saved, file, (folder / file.name).read_bytes()[:-8])
    message = rf"{file.name}: expected 3 x {DIM // 2} values of float64, but the file ends"
    refused(folder, CheckpointCorruptError, message)


def test_load_when_file_goes_on_after_array_then_names_sizes(saved, folder):
    file = file_of(saved, "values")
    (folder / file.name).write_bytes((folder / file.name).read_bytes() + b"more")
    refused(folder, CheckpointCorruptError, rf"expected {file.nbytes:,} bytes, got {file.nbytes + 4:,}")


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        (lambda keys: np.append(keys[:-1], keys[0]), "a key occurs twice"),
        (lambda keys: np.append(keys[:-1], -5), "expected keys below"),
        (lambda keys: KEYS[: keys.size], "belongs to another partition"),
        (lambda keys: keys[:, None], "expected one dimension of keys"),
        (lambda keys: keys.astype(float), "expected values of int64, got float64"),
    ],
)
def test_load_when_keys_are_wrong_then_error_says_how(saved, folder, keys, match):
    file = file_of(saved, "keys", S)
    put_file(folder, saved, file, npy(keys(np.load(folder / file.name))))
    refused(folder, CheckpointCorruptError, match)


def test_load_when_ids_have_another_format_then_error_names_file(saved, folder):
    file = file_of(saved, "ids")
    put_file(folder, saved, file, b'{"applied": {"task": 3}}')
    refused(folder, CheckpointCorruptError, rf"{file.name}: expected applied ids", ids=True)


def test_load_when_another_format_then_error_names_both(saved, folder):
    content = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**content, "format": "ps2.checkpoint.v9"}))
    refused(folder, CheckpointCorruptError, r"expected format 'ps2\.checkpoint\.v1', got 'ps2\.checkpoint\.v9'")


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        (replace(DENSE, dim=DIM + 1), f"expected dim {DIM + 1}, the checkpoint has {DIM}"),
        (replace(DENSE, dtype="float32"), "expected dtype 'float32', the checkpoint has 'float64'"),
        (replace(DENSE, rows=2), "expected at most 2 rows, the checkpoint has 3"),
    ],
)
def test_load_when_matrix_is_another_then_error_names_both(saved, folder, spec, match):
    fleet = Fleet(2)
    with pytest.raises(CheckpointCorruptError, match=f"matrix 1: {match}"):
        fleet.load(folder, take=False, spec=spec)


def test_load_when_source_is_not_given_then_error_names_columns(saved, folder):
    fleet = Fleet(1)
    (dense, _) = fleet.to_load(saved, 0)
    with pytest.raises(CheckpointCorruptError, match=rf"columns \[0, {DIM}\), but no file has column {DIM // 2}"):
        fleet.loadings[0].load(str(folder), [replace(dense, sources=dense.sources[:1])], ids=False)


def test_load_when_folder_is_not_there_then_error_says_so(saved, tmp_path):
    fleet = Fleet(2)
    with pytest.raises(CheckpointMissingError, match="nope: expected a checkpoint, but there is nothing"):
        fleet.loadings[0].load(str(tmp_path / "nope"), fleet.to_load(saved, 0), ids=False)


def test_load_when_a_file_is_a_folder_then_error_names_it(saved, folder):
    file = file_of(saved, "ids")
    (folder / file.name).unlink()
    (folder / file.name).mkdir()
    refused(folder, RecoveryError, file.name)


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("matrix", [D, S])
def test_load_when_no_room_beside_current_data_then_error(saved, folder, matrix):
    fleet = filled()
    engine = fleet.engines[0]
    before = engine.memory.used_bytes
    engine.memory.limit_bytes = before + (1000 if matrix == D else 3 * 4 * DIM)
    with pytest.raises(LimitError, match="the server keeps its current shards in memory until the checkpoint"):
        fleet.loadings[0].load(str(folder), fleet.to_load(saved, 0), ids=False)
    assert engine.memory.used_bytes == before
    check(fleet)


def test_load_when_fewer_servers_lack_memory_then_names_limit(saved, folder):
    fleet = Fleet(1, limit_bytes=2 * 8 * DIM)
    with pytest.raises(LimitError, match=f"are left of the server's limit of {16 * DIM:,}$"):
        fleet.load(folder)
    assert fleet.engines[0].memory.used_bytes == 0


def test_verified_files_when_all_are_good_then_match_disk(saved, folder):
    file = file_of(saved, "values")
    data = (folder / file.name).read_bytes()
    assert file == SavedFile(file.name, len(data), xxhash.xxh3_128(data).hexdigest())
