"""A manifest comes back as it was written, or as an error that says what is wrong; folders are what their names say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ps2.errors import CheckpointCorruptError, CheckpointMissingError, ConfigError, RecoveryError
from ps2.matrix.key_policy import Initial, KeyPolicy
from ps2.matrix.partition import HASH_SPACE, MatrixSpec, partitions
from ps2.storage import folders
from ps2.storage.manifest import Manifest, SavedFile, SavedMatrix, SavedShard, array_kinds

DENSE = MatrixSpec(10, 3, align=5)
SPARSE = MatrixSpec(2**62, 2, dtype="float64", kind="sparse", wire="float16")
MANAGED = replace(SPARSE, key_policy=KeyPolicy(3, 0.5, None, Initial("uniform", 0.1, -(2**63), 1, 2), "event"))


def matrix(id, spec, bounds):
    shards = tuple(
        SavedShard(
            id,
            p,
            {
                kind: SavedFile(f"{id}-{p.index}-{kind}", p.index + 7, f"{id:032x}")
                for kind in (*array_kinds(spec), "ids")
            },
        )
        for p in partitions(bounds)
    )
    return SavedMatrix(id, spec, bounds, {0: 0, 2: 4} if spec.rows > 2 else {}, {}, spec.rows, (1,), shards)


def manifest(number=3, step=17):
    dense = matrix(5, DENSE, (0, 5, 10))
    named = replace(dense, names={"weight": 2})
    sparse, managed = (matrix(2**63 + 1, spec, (0, HASH_SPACE // 3, HASH_SPACE)) for spec in (SPARSE, MANAGED))
    return Manifest(number, step, 1.5, 0.25, 2.5, "0.1.0", (named, sparse, managed))


def content():
    return json.loads(json.dumps(manifest().to_json()))


def put(value, *path):
    """Return the manifest's content with one part of it changed."""
    created = content()
    inner = created
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return created


# -- manifests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [None, 0, 17])
def test_manifest_when_it_went_through_json_then_is_the_same(step):
    created = manifest(step=step)
    assert Manifest.from_json(json.loads(json.dumps(created.to_json())), "m") == created


@pytest.mark.parametrize("name", [name for name in content() if name != "format"])
def test_manifest_when_a_field_is_missing_then_error_names_it(name):
    created = content()
    del created[name]
    with pytest.raises(CheckpointCorruptError, match=rf"^m: {name} is missing$"):
        Manifest.from_json(created, "m")


@pytest.mark.parametrize("name", list(content()["matrices"][0]))
def test_manifest_when_matrix_field_is_missing_then_names_it(name):
    created = content()
    del created["matrices"][0][name]
    with pytest.raises(CheckpointCorruptError, match=rf"^m: matrices\[0\]: {name} is missing$"):
        Manifest.from_json(created, "m")


@pytest.mark.parametrize(
    ("made", "match"),
    [
        ([], r"^m: expected an object, got \[\]"),
        (
            put("ps2.checkpoint.v2", "format"),
            r"^m: expected format 'ps2.checkpoint.v1', got 'ps2.checkpoint.v2'",
        ),
        (put("3", "number"), r"^m: number: expected an integer, got '3'"),
        (put(True, "number"), r"^m: number: expected an integer, got True"),
        (put(-1, "number"), r"^m: number: expected a non-negative integer, got -1"),
        (put("now", "created_s"), r"^m: created_s: expected a number or an integer, got 'now'"),
        (put({}, "matrices"), r"^m: matrices: expected a list"),
        (put("float16", "matrices", 0, "spec", "dtype"), r"matrices\[0\]: spec: dtype: expected one of .* 'float16'"),
        (put(11, "matrices", 0, "spec", "dim"), r"matrices\[0\]: bounds: expected ascending integers from 0 to 11"),
        (put([0, 10, 10], "matrices", 0, "bounds"), r"matrices\[0\]: bounds: expected ascending"),
        (put({"3": 0}, "matrices", 0, "born"), r"matrices\[0\]: born: expected rows below 3"),
        (put({"w": 1}, "matrices", 0, "names"), r"matrices\[0\]: names: expected names of rows in use"),
        (put(4, "matrices", 0, "fresh"), r"matrices\[0\]: fresh: expected at most 3"),
        (put([0], "matrices", 0, "retired"), r"matrices\[0\]: retired: expected rows below 3 that are not in use"),
        (put([], "matrices", 0, "shards"), r"matrices\[0\]: shards: expected one for each of 2 partitions"),
        (put(2, "matrices", 0, "shards", 0, "partition"), r"shards\[0\]: partition: expected an index below 2, got 2"),
        (put({}, "matrices", 1, "shards", 0, "files"), r"matrices\[1\]: shards\[0\]: files: keys is missing"),
        (put("../up", "matrices", 0, "shards", 0, "files", "ids", "name"), r"ids: name: expected the name of a file"),
        (put("0x", "matrices", 0, "shards", 0, "files", "ids", "xxh3"), r"ids: xxh3: expected 32 hexadecimal digits"),
    ],
)
def test_manifest_when_part_is_wrong_then_says_expected_and_got(made, match):
    with pytest.raises(CheckpointCorruptError, match=match):
        Manifest.from_json(made, "m")


def test_read_manifest_when_not_json_then_error_names_file(tmp_path):
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(CheckpointCorruptError, match=r"manifest\.json: not JSON"):
        folders.read_manifest(str(tmp_path))


# -- folders -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["path", "memory"])
def root(request, tmp_path):
    return str(tmp_path / "checkpoints") if request.param == "path" else f"memory://{tmp_path.name}"


def write(root, *numbers, run="run", created_s=1.5):
    for number in numbers:
        created = replace(manifest(number), created_s=created_s)
        folders.write_manifest(folders.folder(root, number, run), created)


def of(root, numbers, run="run"):
    return [folders.folder(root, number, run) for number in numbers]


def test_newest_when_several_then_is_highest_complete_one(root, tmp_path):
    write(root, 9, 10, 11)
    folders.remove(folders.folder(root, 11, "run"))
    assert folders.newest(root) == f"{root}/checkpoint-00000010-run"
    assert folders.read_manifest(folders.newest(root)) == manifest(10)


def test_newest_when_given_a_checkpoint_then_is_that(root):
    write(root, 1, 2)
    assert folders.newest(folders.folder(root, 1, "run")) == folders.folder(root, 1, "run")


def test_newest_when_two_runs_share_number_then_is_later_one(root):
    write(root, 1, 2, run="b", created_s=7.0)
    write(root, 2, run="a", created_s=8.0)
    write(root, 2, run="c", created_s=6.0)
    assert folders.newest(root) == folders.folder(root, 2, "a")


def test_find_when_a_manifest_is_not_there_then_says_incomplete(tmp_path):
    write(str(tmp_path), 1)
    (tmp_path / "checkpoint-00000002-run").mkdir()
    (tmp_path / "checkpoint-00000003-run").touch()
    (tmp_path / "other").mkdir()
    assert [(result.number, result.complete) for result in folders.find(str(tmp_path))] == [(1, True), (2, False)]


def test_newest_when_folder_holds_nothing_then_error_says_so(tmp_path):
    with pytest.raises(CheckpointMissingError, match="folder of checkpoint-NNNNNNNN-RUN; it holds nothing"):
        folders.newest(str(tmp_path))


def test_newest_when_none_is_complete_then_error_says_so(tmp_path):
    (tmp_path / "checkpoint-00000002-run").mkdir()
    with pytest.raises(CheckpointMissingError, match=r"1 incomplete checkpoint\(s\) without manifest\.json"):
        folders.newest(str(tmp_path))


def test_newest_when_path_does_not_exist_then_error_says_so(root):
    with pytest.raises(CheckpointMissingError, match="expected a folder with a checkpoint, but there is nothing"):
        folders.newest(f"{root}/nope")


def test_newest_when_path_is_a_file_then_error_says_so(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointMissingError, match="but this is a file"):
        folders.newest(str(tmp_path / "file"))


def test_prune_when_more_than_keep_then_drops_old_and_unfinished(root):
    write(root, 1, 2, 4, 5)
    fs, unfinished = folders.resolve_url(folders.folder(root, 3, "run"))
    fs.makedirs(unfinished)
    folders.prune(root, 2, of(root, range(1, 6)))
    assert [result.number for result in folders.find(root)] == [4, 5]


def test_prune_when_some_are_of_another_run_then_they_stay(root):
    write(root, 1, 2, 4, 5)
    write(root, 4, run="other")
    folders.prune(root, 1, of(root, [4, 5]))
    assert [(result.number, result.run) for result in folders.find(root)] == [
        (1, "run"),
        (2, "run"),
        (4, "other"),
        (5, "run"),
    ]


def test_prune_when_a_later_one_is_unfinished_then_it_stays(tmp_path):
    write(str(tmp_path), 1)
    (tmp_path / "checkpoint-00000002-run").mkdir()
    assert folders.prune(str(tmp_path), 3, of(str(tmp_path), [1, 2])) == []


def test_prepare_when_folder_is_new_then_is_made_and_empty(root):
    folders.prepare(root)
    assert folders.find(root) == []


@pytest.mark.parametrize("below", ["", "/below"])
def test_prepare_when_path_is_a_file_then_error_says_so(tmp_path, below):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^checkpointDir: expected a writable folder"):
        folders.prepare(f"{tmp_path}/file{below}")


def test_prepare_when_folder_cannot_be_made_then_error_names_it():
    with pytest.raises(ConfigError, match=r"expected a writable folder, got /proc/ps2"):
        folders.prepare("/proc/ps2")


def test_prepare_when_disk_is_full_then_error_says_so(small_disk):
    with pytest.raises(RecoveryError, match=rf"there is no space left at {small_disk}$"):
        folders.prepare(str(small_disk))
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_write_manifest_when_disk_is_full_then_none_is_there(small_disk):
    with pytest.raises(RecoveryError, match="No space left on device"):
        folders.write_manifest(str(small_disk), manifest())
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_write_manifest_when_shard_is_missing_then_writes_none(tmp_path):
    whole = manifest()
    lacking = replace(whole, matrices=(replace(whole.matrices[0], shards=whole.matrices[0].shards[:1]),))
    with pytest.raises(CheckpointCorruptError, match=r"shards: expected one for each of 2 partitions"):
        folders.write_manifest(str(tmp_path), lacking)
    assert list(tmp_path.iterdir()) == []
