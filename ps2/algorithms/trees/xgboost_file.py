"""A forest as xgboost's JSON model (schema of xgboost 3), for xgboost and other programs that read its models.

The forest is converted. In xgboost, rows go left only if they are below a threshold, not equal to it, and sets contain
the categories that go right. The base is added to the leaves of each output's first tree, because xgboost's base score
is float32 and, for some losses, passes through a link function, which would lose digits.

All numbers in xgboost are float32: it rounds features to float32, and adds up margins in float32. A forest is refused
if training rows would then go to other leaves, or if leaf values would be lost.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.algorithms.trees.tree import LEAF, Forest, Tree, leaf_range, leaf_tree
from ps2.array_types import Int64s
from ps2.errors import UsageError
from ps2.storage.files import resolve_url, write_atomically

VERSION = (3, 2, 0)
# What xgboost stores as the parent of a root, and as the condition of a split by a set.
NO_PARENT = 2**31 - 1
SET_SPLIT_CONDITION = float(np.finfo(np.float32).smallest_subnormal)
# The number above all categories that xgboost reads: larger ones are not exact in float32.
MAX_CATEGORY = 1 << 24
MAX_FLOAT32 = np.finfo(np.float32).max
# The maximum rounding error of margins, as a fraction of their range.
MAX_ROUNDING = 1e-3
# The base scores whose margin is 0, for losses with a link function; for other losses it is 0.
ZERO_MARGIN_SCORES = {"logistic": 0.5, "poisson": 1.0}


def save_xgboost(url: str, forest: Forest, names: Sequence[str] = ()) -> None:
    """Write a forest to a file; UsageError: see ``_check_float32``. To xgboost, absent entries are missing."""
    fs, path = resolve_url(url, "path")
    write_atomically(fs, path, [json.dumps(as_xgboost(forest, names)).encode()])


def as_xgboost(forest: Forest, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return a forest as the data of xgboost's JSON; UsageError: see ``_check_float32``."""
    if forest.statistics is not None:
        raise UsageError(
            "xgboost has no target statistics: for its file, expected a model trained with maxCtrComplexity=0"
        )
    _check_float32(forest)
    trees = _with_base(forest)
    categorical = np.zeros(forest.features, np.bool_)
    for tree in trees:
        categorical[tree.feature[np.diff(tree.set_begin) > 0]] = True
    booster = {
        "name": "gbtree",
        "model": {
            "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(len(trees))},
            "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
            "iteration_indptr": list(range(0, len(trees) + 1, forest.width)),
            "tree_info": [t % forest.width for t in range(len(trees))],
            "trees": [_tree(tree, number, forest.features) for number, tree in enumerate(trees)],
        },
    }
    base = f"{ZERO_MARGIN_SCORES.get(forest.loss, 0.0):E}"
    return {
        "version": list(VERSION),
        "learner": {
            "attributes": {},
            "feature_names": list(names),
            "feature_types": ["c" if flag else "float" for flag in categorical] if categorical.any() else [],
            "gradient_booster": booster,
            "learner_model_param": {
                "base_score": "[" + ",".join([base] * forest.width) + "]",
                "boost_from_average": "1",
                "num_class": str(forest.width if forest.loss == "softmax" else 0),
                "num_feature": str(forest.features),
                "num_target": "1",
            },
            "objective": _objective(forest),
        },
    }


def _check_float32(forest: Forest) -> None:
    """Raise UsageError if, in float32, training rows would go to other leaves, or leaf values would be lost."""
    for number, tree in enumerate(forest.trees):
        with np.errstate(over="ignore"):
            inexact = np.flatnonzero(tree.threshold != tree.threshold.astype(np.float32))
        if len(inexact):
            node = inexact[0]
            raise UsageError(
                f"tree {number}: xgboost rounds features to float32, in which the values of feature "
                f"{tree.feature[node]} on both sides of {tree.threshold[node]!s} are the same: subtract an offset from "
                "the feature, or scale it, before training"
            )
    for output, base in enumerate(forest.base.tolist()):
        low, high = leaf_range(forest.trees[output :: forest.width])
        largest = max(abs(base + low), abs(base + high))
        if largest > float(MAX_FLOAT32) or np.spacing(np.float32(largest)) / 2 > MAX_ROUNDING * (high - low) > 0:
            raise UsageError(
                f"xgboost adds up margins in float32, where margins up to {largest:g} have rounding errors above "
                f"{MAX_ROUNDING:g} of the range of the trees' leaves, {high - low:g}: subtract an offset from the "
                "labels, or scale them, before training"
            )


def _objective(forest: Forest) -> dict[str, Any]:
    regression: dict[str, Any] = {"reg_loss_param": {"scale_pos_weight": "1"}}
    shape = f"{forest.shape:.9g}"
    objectives: dict[str, dict[str, Any]] = {
        "logistic": {"name": "binary:logistic"} | regression,
        "softmax": {"name": "multi:softprob", "softmax_multiclass_param": {"num_class": str(forest.width)}},
        "squared": {"name": "reg:squarederror"} | regression,
        "absolute": {"name": "reg:absoluteerror"},
        # xgboost's loss is a smooth approximation; predictions are margins in both.
        "huber": {"name": "reg:pseudohubererror", "pseudo_huber_param": {"huber_slope": shape}},
        "poisson": {"name": "count:poisson", "poisson_regression_param": {"max_delta_step": "0.7"}},
        "lambdarank": {
            "name": "rank:ndcg",
            "lambdarank_param": {"lambdarank_num_pair_per_sample": f"{forest.shape:.0f}"},
        },
        "quantile": {"name": "reg:quantileerror", "quantile_loss_param": {"quantile_alpha": f"[{shape}]"}},
    }
    return objectives[forest.loss]


def _with_base(forest: Forest) -> list[Tree]:
    """Return the trees, at least one for each output; the base is added to the leaves of an output's first tree."""
    trees = list(forest.trees) or [leaf_tree(0.0) for _ in range(forest.width)]
    for output, base in enumerate(forest.base):
        trees[output] = replace(trees[output], value=trees[output].value + base)
    return trees


def _tree(tree: Tree, number: int, features: int) -> dict[str, Any]:
    leaf, sizes = tree.feature == LEAF, np.diff(tree.set_begin)
    # A set with codes lists the categories that leave the default side, which is xgboost's left side for unknown ones.
    is_swapped = (sizes > 0) & ~tree.default_left & (len(tree.set_codes) > 0)
    left, right = np.where(is_swapped, (tree.right, tree.left), (tree.left, tree.right))
    parents = np.full(len(tree), NO_PARENT)
    parents[tree.left[~leaf]] = parents[tree.right[~leaf]] = np.flatnonzero(~leaf)
    set_nodes = np.flatnonzero(sizes)
    right_sets = [_right_categories(tree, node) for node in set_nodes.tolist()]
    ends = np.append(0, np.cumsum([len(right_set) for right_set in right_sets])).astype(np.int64)
    splits = np.where(sizes > 0, SET_SPLIT_CONDITION, smallest_above(tree.threshold.astype(np.float32)))
    conditions = np.where(leaf, tree.value.astype(np.float32), splits)
    return {
        "base_weights": tree.value.astype(np.float32).tolist(),
        "categories": [int(category) for right_set in right_sets for category in right_set],
        "categories_nodes": set_nodes.tolist(),
        "categories_segments": ends[:-1].tolist(),
        "categories_sizes": np.diff(ends).tolist(),
        "default_left": (tree.default_left | is_swapped).astype(int).tolist(),
        "id": number,
        "left_children": left.tolist(),
        "loss_changes": tree.gain.tolist(),
        "parents": parents.tolist(),
        "right_children": right.tolist(),
        "split_conditions": conditions.tolist(),
        "split_indices": np.where(leaf, 0, tree.feature).tolist(),
        "split_type": (sizes > 0).astype(int).tolist(),
        "sum_hessian": tree.cover.tolist(),
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(features),
            "num_nodes": str(len(tree)),
            "size_leaf_vector": "1",
        },
    }


def _right_categories(tree: Tree, node: int) -> Int64s:
    """Return the categories that go right; if there are none, an unused category, as xgboost requires one."""
    flags, codes = tree.set_of(node), tree.node_codes(node)
    if len(tree.set_codes):
        if codes[-1] >= MAX_CATEGORY:
            raise UsageError(
                f"feature {tree.feature[node]}: xgboost's categories are below {MAX_CATEGORY:,}, but a split uses "
                f"category {codes[-1]:,}: let StringIndexer number the frequent categories first"
            )
        return codes
    categories = np.flatnonzero(~flags)
    return categories if len(categories) else np.array([len(flags)])


def smallest_above(threshold: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the smallest float32 above each threshold; for infinity, which JSON lacks, the largest float32."""
    infinity = np.float32(np.inf)
    return np.nextafter(np.minimum(threshold, np.nextafter(MAX_FLOAT32, -infinity)), infinity)
