"""A forest in a folder: the nodes of all trees, one after the other, as NumPy arrays.

What the arrays are, and their checksums, is in the metadata that pyspark writes beside them. ``load_forest`` reads both
without Spark.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_args

import numpy as np

from ps2.algorithms.frame.array_files import load_content, read_array, reading, write_arrays
from ps2.algorithms.trees.tree import Absent, Forest, Tree

FORMAT = "ps2.forest.v2"
SETS = ("set_begin", "set_flags")
# A node's numbers, and the number of categories of its set.
NODE = np.dtype(
    [
        ("feature", "<i4"),
        ("threshold", "<f8"),
        ("default_left", "?"),
        ("left", "<i4"),
        ("right", "<i4"),
        ("value", "<f8"),
        ("gain", "<f8"),
        ("cover", "<f8"),
        ("count", "<i8"),
        ("set_size", "<i8"),
    ]
)
PLAIN = [field.name for field in fields(Tree) if field.name not in SETS]


def arrays_of(forest: Forest) -> dict[str, Any]:
    """Return a forest's arrays, by file name."""
    nodes = np.zeros(forest.nodes, NODE)
    begin = 0
    for tree in forest.trees:
        part = nodes[begin : begin + len(tree)]
        for name in PLAIN:
            part[name] = getattr(tree, name)
        part["set_size"] = np.diff(tree.set_begin)
        begin += len(tree)
    return {
        "nodes.npy": nodes,
        "sizes.npy": np.array([len(tree) for tree in forest.trees], np.int64),
        "sets.npy": np.concatenate([np.empty(0, np.bool_), *(tree.set_flags for tree in forest.trees)]),
        "base.npy": np.asarray(forest.base, np.float64),
    }


def write_forest(url: str, forest: Forest) -> dict[str, Any]:
    """Write a forest; return its part of the metadata."""
    return {
        "format": FORMAT,
        "features": forest.features,
        "loss": forest.loss,
        "shape": forest.shape,
        "absent": forest.absent,
        "files": write_arrays(url, arrays_of(forest)),
    }


def read_forest(path: str, url: str, content: Any) -> Forest:
    """Read a forest; path: the user's name of the folder; content: the result of ``write_forest``."""
    with reading(path, content, FORMAT, "trees"):
        forest = forest_of(url, content["files"], int(content["features"]), content["absent"])
        return replace(forest, loss=content["loss"], shape=float(content["shape"]))


def forest_of(url: str, files: Any, features: int, absent: Any) -> Forest:
    """Read the arrays of ``arrays_of``; ValueError or CheckpointCorruptError if they are not as the metadata say."""
    nodes, sizes, sets, base = (read_array(url, f"{name}.npy", files) for name in ("nodes", "sizes", "sets", "base"))
    trees: list[Tree] = []
    begin = begin_sets = 0
    for size in sizes.tolist():
        part = nodes[begin : begin + size]
        set_begin = np.append(0, np.cumsum(part["set_size"]))
        flags = sets[begin_sets : begin_sets + set_begin[-1]]
        plain: dict[str, Any] = {name: np.ascontiguousarray(part[name]) for name in PLAIN}
        trees.append(Tree(**plain, set_begin=set_begin, set_flags=flags))
        begin, begin_sets = begin + size, begin_sets + int(set_begin[-1])
    if absent not in get_args(Absent):
        raise ValueError(f"absent: {absent!r}")
    return Forest(tuple(trees), base, features, absent=absent)


def load_forest(path: str) -> Forest:
    """Read the forest of a saved model, without Spark; path: a local folder or a URL that fsspec knows."""
    return read_forest(path, path, load_content(path))
