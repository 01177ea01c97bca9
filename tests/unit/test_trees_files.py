"""Forests in folders come back as they were, or as an error that names what is wrong."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest
from tree_builder import TreeBuilder

from ps2.algorithms.trees.tree import Forest, Tree
from ps2.errors import CheckpointCorruptError, CheckpointMissingError, RecoveryError, UsageError


def forest(sets=True):
    trees = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        draft, leaves = TreeBuilder(0.5, 10.0, 10), [0]
        for split in range(seed * 4):
            node = leaves.pop(0)
            test = rng.random(5) < 0.5 if sets and split % 2 else float(rng.normal())
            draft.split(node, int(rng.integers(4)), test, bool(rng.integers(2)), rng.random())
            leaves += [draft.add_child(node, rng.normal(), rng.random(), int(rng.integers(100))) for _ in range(2)]
        trees.append(draft.finish())
    return Forest(tuple(trees), np.array([0.25]), 4, "huber", 1.5, "missing")


def saved(folder, model):
    """Save as pyspark's writer does: metadata beside what the model writes."""
    content = model.write(str(folder))
    (folder / "metadata").mkdir()
    (folder / "metadata" / "part-00000").write_text(json.dumps({"class": "GBTModel", "ps2": content}) + "\n")
    (folder / "metadata" / "_SUCCESS").touch()
    return content


@pytest.mark.parametrize("sets", [True, False])
def test_forest_when_saved_and_loaded_then_it_is_the_same(sets, tmp_path):
    model = forest(sets)
    saved(tmp_path, model)
    result = Forest.load(str(tmp_path))
    assert (result.features, result.loss, result.shape, result.base.tolist()) == (4, "huber", 1.5, [0.25])
    assert result.absent == "missing"
    for ours, theirs in zip(result.trees, model.trees, strict=True):
        for field in fields(Tree):
            one, other = getattr(ours, field.name), getattr(theirs, field.name)
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype


def test_forest_when_it_has_no_trees_then_it_comes_back_too(tmp_path):
    saved(tmp_path, Forest((), np.array([1.0, 2.0]), 4, "softmax"))
    assert (Forest.load(str(tmp_path)).trees, Forest.load(str(tmp_path)).width) == ((), 2)


def test_load_when_there_is_nothing_then_the_error_says_so(tmp_path):
    with pytest.raises(CheckpointMissingError, match="no folder metadata"):
        Forest.load(str(tmp_path))


@pytest.mark.parametrize("name", ["nodes", "sizes", "sets", "base"])
def test_load_when_file_changed_or_is_gone_then_error_names_it(name, tmp_path):
    saved(tmp_path, forest())
    file = tmp_path / f"{name}.npy"
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(CheckpointCorruptError, match=rf"{name}\.npy: its checksum"):
        Forest.load(str(tmp_path))
    file.unlink()
    with pytest.raises(CheckpointCorruptError, match=rf"{name}\.npy: the metadata list this file, but it does not"):
        Forest.load(str(tmp_path))


def test_read_when_metadata_version_differs_then_error_says_so(tmp_path):
    content = saved(tmp_path, forest())
    with pytest.raises(UsageError, match=r"expected trees of format 'ps2\.forest\.v2', got 'ps2\.forest\.v9'"):
        Forest.read("here", str(tmp_path), content | {"format": "ps2.forest.v9"})
    with pytest.raises(UsageError, match="got None"):
        Forest.read("here", str(tmp_path), None)
    with pytest.raises(CheckpointCorruptError, match="KeyError"):
        Forest.read("here", str(tmp_path), {"format": content["format"]})
    with pytest.raises(CheckpointCorruptError, match="absent: 'one'"):
        Forest.read("here", str(tmp_path), content | {"absent": "one"})
    (tmp_path / "metadata" / "part-00000").write_text("no JSON")
    with pytest.raises(CheckpointCorruptError, match="not JSON"):
        Forest.load(str(tmp_path))


def test_write_when_folder_cannot_be_made_then_error_names_it(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RecoveryError, match="file"):
        forest().write(str(tmp_path / "file"))
