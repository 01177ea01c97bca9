"""``ps2 checkpoint ls`` and ``verify``: in this process, and as a shell runs them."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from ps2.matrix.partition import MatrixSpec
from ps2.storage.folders import folder as folder_of
from tests.checkpoints import Fleet
from tests.commands import ps2

TIMEOUT_S = 60.0


def checkpoint(*arguments):
    return ps2("checkpoint", *arguments)


@pytest.fixture(scope="module")
def fleet():
    fleet = Fleet(2)
    fleet.create(1, MatrixSpec(1000, 2))
    fleet.create(2, MatrixSpec(2**40, 2, kind="sparse"))
    fleet.push(2, 0, np.arange(100), np.ones(100, np.float32))
    return fleet


@pytest.fixture
def root(fleet, tmp_path):
    """Two complete checkpoints, and one that was never finished."""
    for number, step in ((1, None), (2, 40)):
        fleet.save(folder_of(str(tmp_path), number, "run"), number=number, step=step)
    (tmp_path / "checkpoint-00000003-run").mkdir()
    return tmp_path


def test_ls_when_there_are_several_then_each_has_a_line(root):
    result = checkpoint("ls", root)
    lines = [line.split() for line in result.stdout.splitlines()]
    assert [(line[0], line[1], line[2]) for line in lines[1:]] == [
        ("1", "complete", "-"),
        ("2", "complete", "40"),
        ("3", "incomplete", "-"),
    ]
    assert result.returncode == 0


def test_ls_when_json_then_tells_sizes_and_matrices(root):
    listed = json.loads(checkpoint("ls", root, "-o", "json").stdout)["checkpoints"]
    assert [checkpoint["state"] for checkpoint in listed] == ["complete", "complete", "incomplete"]
    assert (listed[1]["step"], listed[1]["matrices"], listed[1]["shards"]) == (40, 2, 4)
    files = (root / "checkpoint-00000002-run").glob("*-*")
    assert listed[1]["bytes"] == sum(file.stat().st_size for file in files)


def test_ls_when_path_is_a_checkpoint_then_lists_that(root):
    (listed,) = json.loads(checkpoint("ls", root / "checkpoint-00000002-run", "-o", "json").stdout)["checkpoints"]
    assert (listed["number"], listed["state"]) == (2, "complete")


def test_ls_when_folder_is_empty_then_says_so(tmp_path):
    result = checkpoint("ls", tmp_path)
    assert (result.stdout, result.returncode) == (f"there are no checkpoints in {tmp_path}\n", 0)


def test_ls_when_there_is_no_such_folder_then_exits_1(tmp_path):
    command = [sys.executable, "-m", "ps2.cli.main", "checkpoint", "ls", tmp_path / "nope"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert result.stderr == f"ps2: {tmp_path}/nope: expected a folder with a checkpoint, but there is nothing\n"
    assert result.returncode == 1


def test_ls_when_manifest_format_differs_then_lists_rest_exits_1(root):
    (root / "checkpoint-00000001-run" / "manifest.json").write_text('{"format": "ps2.checkpoint.v9"}')
    result = checkpoint("ls", root)
    assert "1  unreadable" in result.stdout
    assert "2  complete" in result.stdout
    assert "expected format 'ps2.checkpoint.v1', got 'ps2.checkpoint.v9'" in result.stderr
    assert result.returncode == 1


def test_verify_when_all_is_well_then_reads_newest_and_exits_0(root):
    result = checkpoint("verify", root)
    assert f"{root}/checkpoint-00000002-run: all 10 files" in result.stdout
    assert (result.stderr, result.returncode) == ("", 0)


def test_verify_when_files_are_bad_then_names_each_and_exits_1(root):
    folder = root / "checkpoint-00000002-run"
    (folder / "1-1-values.npy").unlink()
    flipped = bytearray((folder / "1-0-values.npy").read_bytes())
    flipped[-1] ^= 1
    (folder / "1-0-values.npy").write_bytes(flipped)
    (folder / "2-0-keys.npy").write_bytes((folder / "2-0-keys.npy").read_bytes()[:-3])
    result = checkpoint("verify", root)
    states = {line.split()[0]: line.split(maxsplit=3)[3].strip() for line in result.stdout.splitlines()[1:] if line}
    assert states["1-0-values.npy"].startswith("expected bytes with XXH3-128")
    assert states["1-1-values.npy"] == "named by the manifest, but missing"
    assert "bytes, got" in states["2-0-keys.npy"]
    assert sum(state == "ok" for state in states.values()) == 7
    assert result.stderr == f"ps2: {folder}: 3 of 10 files cannot be used\n"
    assert result.returncode == 1


def test_verify_when_json_then_tells_problems_by_file(root):
    (root / "checkpoint-00000002-run" / "1-0-ids.json").unlink()
    result = checkpoint("verify", root, "-o", "json")
    report = json.loads(result.stdout)
    assert (report["ok"], report["step"], result.returncode) == (False, 40, 1)
    assert [file["name"] for file in report["files"] if not file["ok"]] == ["1-0-ids.json"]


@pytest.mark.parametrize(("name", "there"), [("", "it holds nothing"), ("file", "this is a file")])
def test_verify_when_there_is_no_checkpoint_then_exits_1(tmp_path, name, there):
    if name:
        (tmp_path / name).touch()
    result = checkpoint("verify", tmp_path / name)
    assert there in result.stderr
    assert result.returncode == 1


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_help_when_asked_then_has_examples(command):
    assert f"ps2 checkpoint {command} /data/checkpoints" in checkpoint(command, "--help").stdout
