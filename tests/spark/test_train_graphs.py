"""``ps2 train deepwalk``, ``node2vec`` and ``line`` on files: what they print and draw, and what was wrong."""

from __future__ import annotations

import gzip
import json

import pytest

from ps2.algorithms import Embedding
from tests.commands import assert_one_line

PNG = b"\x89PNG"
GROUP = 6
SMALL = ["--size", 8, "--iterations", 5, "--lr", 0.05]
WALKS = ["--walks", 4, "--length", 8, "--window", 2]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two groups of vertices with all edges within, and one between; with and without weights; and what is wrong."""
    folder = tmp_path_factory.mktemp("graphs")
    groups = [range(GROUP), range(GROUP, 2 * GROUP)]
    pairs = [*((a, b) for group in groups for a in group for b in group if a < b), (0, GROUP)]
    (folder / "edges").write_text("# a comment\n\n" + "".join(f"{a}\t{b}\n" for a, b in pairs))
    with gzip.open(folder / "weighted.gz", "wt") as file:
        file.write("".join(f"v{a} v{b} {1 + a / 10}\n" for a, b in pairs))
    (folder / "labels").write_text("".join(f"{v} {'a' if v < GROUP else 'b'} more\n" for v in range(2 * GROUP)))
    (folder / "malformed").write_text("1 2\n2 3\n\n3 4 5\n")
    (folder / "negative").write_text("1 2 0.5\n2 3 -1\n")
    (folder / "comments").write_text("# nothing\n")
    return folder


@pytest.fixture
def train(run_train, tmp_path):
    """``train(name, *options)``: run a command; see ``run_train``."""

    def run(name, *options, **elsewhere):
        return run_train(name, "--output", tmp_path / "model", *options, **elsewhere)

    return run


def test_deepwalk_when_done_then_writes_model_and_pictures(train, files, tmp_path):
    positions = ["--plots", tmp_path / "plots", "--labels", files / "labels", "-o", "json", "--shown", 3]
    code, stdout, stderr = train("deepwalk", "--input", files / "edges", *positions, *SMALL, *WALKS)
    assert (code, stderr) == (0, "")
    messages = json.loads(stdout)
    assert (messages["edges"], messages["vertices"], messages["weighted"]) == (31, 12, False)
    assert messages["steps"][0]["loss"] > messages["steps"][-1]["loss"]
    result = Embedding.load(str(tmp_path / "model"))
    assert sorted(result.names.values.to_pylist()) == list(range(12))
    assert len(messages["neighbours"]) == 3
    for each in messages["neighbours"]:
        assert len(each["similar"]) == 5
        assert each["similar"][0]["vertex"] // GROUP == each["vertex"] // GROUP
    assert [path.read_bytes()[:4] for path in sorted((tmp_path / "plots").iterdir())] == [PNG, PNG]
    assert [str(tmp_path / "plots" / name) for name in ("loss.png", "vectors.png")] == messages["plots"]


@pytest.mark.parametrize(
    ("name", "options"), [("node2vec", ["--p", 0.5, *WALKS]), ("line", ["--order", "first", "--directed"])]
)
def test_others_when_edges_are_weighted_and_named_then_reported(train, files, tmp_path, name, options):
    code, stdout, stderr = train(name, "--input", files / "weighted.gz", *SMALL, *options)
    assert (code, stderr) == (0, "")
    for messages in ("vertex  most similar", "v0 ", "31 edges with weights, 12 vertices", "Model.load("):
        assert messages in stdout
    assert "v3" in Embedding.load(str(tmp_path / "model"))


def test_line_when_ids_are_hashed_then_vertices_are_of_edges(train, files, tmp_path):
    code, _, stderr = train("line", "--input", files / "edges", *SMALL, "--hashed", "--order", "second", "-o", "json")
    assert (code, stderr) == (0, "")
    assert sorted(Embedding.load(str(tmp_path / "model")).names.values.to_pylist()) == list(range(12))


WRONG_FILES = {
    "malformed": "/malformed: line 4: expected 2 fields, as the first line has, got 3: '3 4 5'",
    "negative": "column 'weight': expected finite numbers that are not negative, got negative weights in 1 of 2 rows",
    "comments": "/comments: expected lines 'source target' or 'source target weight', got none",
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_file_when_it_is_wrong_then_it_is_said(train, files, name):
    code, _, stderr = train("line", "--input", files / name)
    assert_one_line(stderr)
    assert (code, WRONG_FILES[name] in stderr) == (1, True), stderr
