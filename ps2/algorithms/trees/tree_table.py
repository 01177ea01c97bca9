"""The nodes of trees as a table of pandas."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ps2.algorithms.trees.tree import LEAF, Forest

# The columns of integers that are null at leaves.
NULL_AT_LEAVES = ("feature", "left", "right")


def nodes_as_table(forest: Forest, names: Mapping[int, str]) -> pd.DataFrame:
    """Return a row for each node, with the columns of ``AnyTrees.toPandas``; names: the features' names by index."""
    arrays = forest.arrays()
    nodes, sizes = arrays["nodes"], arrays["sizes"]
    roots = np.repeat(np.cumsum(sizes) - sizes, sizes)
    is_leaf, has_set = nodes["feature"] == LEAF, nodes["set_size"] > 0
    depths = np.zeros(len(nodes), np.int64)
    for node in np.flatnonzero(~is_leaf).tolist():  # children come after their parent
        depths[roots[node] + nodes["left"][node]] = depths[roots[node] + nodes["right"][node]] = depths[node] + 1
    if (columns := forest.statistic_columns) is not None:
        names = {**names, **{number: columns.column_name(number) for number in range(columns.features, columns.dim)}}
    categories = [
        tree.node_codes(node)[tree.set_of(node)].tolist() if len(tree.set_of(node)) else None
        for tree in forest.trees
        for node in range(len(tree))
    ]
    integers = {name: pd.arrays.IntegerArray(nodes[name].astype(np.int64), is_leaf) for name in NULL_AT_LEAVES}
    return pd.DataFrame(
        {
            "tree": np.repeat(np.arange(len(sizes)), sizes),
            "node": np.arange(len(nodes)) - roots,
            "depth": depths,
            "feature": integers["feature"],
            "name": pd.Series([names.get(feature) for feature in nodes["feature"].tolist()], dtype=object),
            "threshold": np.where(is_leaf | has_set, np.nan, nodes["threshold"]),
            "categories": pd.Series(categories, dtype=object),
            "left": integers["left"],
            "right": integers["right"],
            "missing": pd.Series(np.where(nodes["default_left"], "left", "right"), dtype=object).mask(is_leaf, None),
            **{name: nodes[name] for name in ("gain", "cover", "count", "value")},
        }
    )
