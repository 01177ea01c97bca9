"""Exports in folders: a base, deltas, and what a reader sees when a write ends half way."""

from __future__ import annotations

import itertools
import json
import os
import select
import subprocess
import sys

import numpy as np
import pytest

from ps2.errors import (
    CheckpointCorruptError,
    CheckpointMissingError,
    ConfigError,
    DivergedError,
    RecoveryError,
    UsageError,
)
from ps2.serving import Scorer
from ps2.storage import export_writing
from ps2.storage.exports import MANIFEST, find_manifest, read_manifest
from tests.exporting import export, values_of
from tests.faults.disks import fill, small_disk

KEYS = np.array([3, 5, 8, 2**62, 2**63 - 1])
MANY = np.arange(20_000)


def test_base_when_read_then_holds_what_was_written(tmp_path):
    written = export(tmp_path, KEYS)
    result = Scorer(str(tmp_path)).vectors(KEYS[::-1])
    np.testing.assert_array_equal(result, values_of(KEYS[::-1]))
    assert (written.number, written.keys, written.full) == (1, 5, True)


def test_keys_in_two_parts_when_read_then_all_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(export_writing, "PART_BYTES", 24)  # two keys
    export(tmp_path, KEYS)
    assert len(read_manifest(str(tmp_path)).newest.key_files) == 3
    np.testing.assert_array_equal(Scorer(str(tmp_path)).vectors(KEYS), values_of(KEYS))


def test_delta_when_read_then_newer_values_win(tmp_path):
    first = export(tmp_path, KEYS)
    second = export(tmp_path, [5, 7], shift=100, removed=[8], since=first)
    export(tmp_path, [5], shift=200, since=second)
    result, present = Scorer(str(tmp_path)).lookUp([3, 5, 7, 8])
    np.testing.assert_array_equal(result[:3], [*values_of([3]), *values_of([5], 200), *values_of([7], 100)])
    assert present.tolist() == [True, True, True, False]
    assert not result[3].any()


def test_key_when_removed_and_made_anew_then_is_there(tmp_path):
    first = export(tmp_path, KEYS)
    second = export(tmp_path, [], removed=[5], since=first)
    third = export(tmp_path, [5], shift=7, removed=[5], since=second)
    np.testing.assert_array_equal(Scorer(str(tmp_path)).vectors([5]), values_of([5], 7))
    assert not third.full


def test_delta_since_an_older_export_then_replaces_newer_ones(tmp_path):
    first = export(tmp_path, KEYS)
    export(tmp_path, [3], shift=100, since=first)
    export(tmp_path, [5], shift=100, since=first.number)
    assert [entry.number for entry in read_manifest(str(tmp_path)).entries] == [1, 3]


def test_export_when_replaced_twice_then_its_files_are_gone(tmp_path):
    for _ in range(3):
        export(tmp_path, KEYS)
    folders = sorted(entry for entry in os.listdir(tmp_path) if entry != MANIFEST)
    assert [folder[:13] for folder in folders] == ["base-00000002", "base-00000003"]


def test_dense_arrays_when_read_then_are_equal(tmp_path):
    inputs = {"bias": np.array(0.5), "layer.0": np.ones((2, 3), np.float32)}
    export(tmp_path, KEYS, dense=inputs)
    loaded = Scorer(str(tmp_path))._model.loaded.dense
    assert {name: array.shape for name, array in loaded.items()} == {"bias": (), "layer.0": (2, 3)}


def test_since_when_there_is_no_export_then_refused(tmp_path):
    with pytest.raises(CheckpointMissingError, match="leave out since="):
        export(tmp_path, KEYS, since="last")


def test_since_when_unknown_then_names_what_is_there(tmp_path):
    export(tmp_path, KEYS)
    with pytest.raises(UsageError, match="expected one of the exports 1, got 7"):
        export(tmp_path, KEYS, since=7)
    with pytest.raises(ConfigError, match="got 'newest'"):
        export(tmp_path, KEYS, since="newest")


def test_delta_when_the_model_is_another_then_refused(tmp_path):
    export(tmp_path, KEYS)
    with pytest.raises(UsageError, match="the export has kind 'table', and this model has 'fm'"):
        export(tmp_path, KEYS, since="last", kind="fm")


def test_values_when_not_finite_then_not_exported(tmp_path):
    export(tmp_path, KEYS)
    with pytest.raises(DivergedError, match="key 3"):
        export(tmp_path, KEYS, shift=np.nan)
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("keys", [[5, 3], [3, 3], [-1, 3]])
def test_keys_when_not_ascending_then_refused(tmp_path, keys):
    with pytest.raises(UsageError, match="distinct non-negative keys in ascending order"):
        export(tmp_path, keys)


def test_export_when_the_disk_is_full_then_the_last_stays(tmp_path):
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        export(disk, KEYS)
        full = fill(disk, left=8192)
        with pytest.raises(RecoveryError, match="No space left"):
            export(disk, np.arange(50_000), since="last")
        full.unlink()
        assert read_manifest(str(disk)).number == 1
        np.testing.assert_array_equal(Scorer(str(disk)).vectors(KEYS), values_of(KEYS))
        assert len(os.listdir(disk)) == 2


def test_export_when_not_finished_then_readers_see_the_last(tmp_path, monkeypatch):
    export(tmp_path, KEYS)
    monkeypatch.setattr(export_writing, "write_json", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setattr(export_writing, "_remove_folder", lambda *_: None)  # as if the process were killed
    with pytest.raises(KeyboardInterrupt):
        export(tmp_path, KEYS, shift=100, since="last")
    monkeypatch.undo()
    scorer = Scorer(str(tmp_path))
    np.testing.assert_array_equal(scorer.vectors(KEYS), values_of(KEYS))
    export(tmp_path, KEYS, shift=200, since="last")
    assert scorer.refresh()
    np.testing.assert_array_equal(scorer.vectors(KEYS), values_of(KEYS, 200))
    export(tmp_path, [3], since="last")
    assert len(os.listdir(tmp_path)) == 4  # what was half written is removed


def test_two_writers_when_at_once_then_one_is_refused(tmp_path):
    export(tmp_path, KEYS)

    def read(keys):
        export(tmp_path, [1])
        return values_of(keys)

    content = export_writing.Content(KEYS, read)
    with pytest.raises(RecoveryError, match="another program has exported"):
        export_writing.write_export(str(tmp_path), read_manifest(str(tmp_path)).description, content)
    assert read_manifest(str(tmp_path)).number == 2


def test_two_writers_when_both_replace_it_then_one_is_refused(tmp_path, monkeypatch):
    """The other one begins and ends between the first one's last look and its manifest."""
    export(tmp_path, KEYS)
    write_json, refused = export_writing.write_json, []

    def late(*arguments):
        if not refused:
            with pytest.raises(RecoveryError, match="another program exports to this folder now") as caught:
                export(tmp_path, [1])
            refused.append(caught.value)
        write_json(*arguments)

    monkeypatch.setattr(export_writing, "write_json", late)
    assert export(tmp_path, [7]).number == 2
    assert refused
    assert Scorer(str(tmp_path)).lookUp([7, 1])[1].tolist() == [True, False]
    assert len(os.listdir(tmp_path)) == 3  # the manifest, and the folders of both exports


@pytest.mark.parametrize("kind", ["keys-0.npy", "values-0.npy"])
def test_file_when_damaged_then_named(tmp_path, kind):
    export(tmp_path, KEYS)
    folder = tmp_path / find_manifest(str(tmp_path)).newest.folder
    content = bytearray((folder / kind).read_bytes())
    content[-1] ^= 1
    (folder / kind).write_bytes(content)
    with pytest.raises(CheckpointCorruptError, match=kind):
        Scorer(str(tmp_path))


def test_manifest_when_damaged_then_the_field_is_named(tmp_path):
    export(tmp_path, KEYS)
    path = tmp_path / MANIFEST
    content = json.loads(path.read_text())
    content["exports"][0]["folder"] = "../elsewhere"
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointCorruptError, match=r"exports\[0\]: folder: expected base-00000001"):
        Scorer(str(tmp_path))


def test_folder_when_of_something_else_then_refused(tmp_path):
    (tmp_path / MANIFEST).write_text('{"format": "ps2.checkpoint.v1"}')
    with pytest.raises(CheckpointCorruptError, match=r"ps2\.export\.v1"):
        export(tmp_path, KEYS)
    with pytest.raises(CheckpointMissingError, match="expected an export"):
        Scorer(str(tmp_path / "nothing"))


def test_export_on_another_file_system_then_read_by_copy():
    export("memory://exports-a", KEYS)
    export("memory://exports-a", [4], shift=1, removed=[3], since="last")
    scorer = Scorer("memory://exports-a")
    np.testing.assert_array_equal(scorer.vectors([4, 5]), [*values_of([4], 1), *values_of([5])])
    assert not scorer.lookUp(3)[1]


def test_writer_when_killed_then_the_export_is_whole(tmp_path):
    script = f"from tests.unit.test_exports import write_on; write_on({str(tmp_path)!r})"
    rng = np.random.default_rng(3)
    for _ in range(3):
        before = find_manifest(str(tmp_path))
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
            for _ in range(int(rng.integers(2, 6))):
                writer.stdout.readline()
            select.select([writer.stdout], [], [], float(rng.uniform(0, 0.02)))
            writer.kill()
        scorer = Scorer(str(tmp_path))
        assert scorer.number > (before.number if before else 0)
        shifts = np.unique(np.round(scorer.vectors(MANY)[:, 0] - values_of(MANY)[:, 0]))
        assert len(shifts) == 1


def write_on(path):
    """Export without end: a base, then deltas of all keys."""
    for shift in itertools.count():
        since = None if find_manifest(path) is None or shift % 4 == 3 else "last"
        export(path, MANY, shift=shift, since=since)
        print(shift, flush=True)
