"""Models of the real xgboost as forests: the oracle of the trees' tests."""

from __future__ import annotations

import json

import numpy as np

from ps2.algorithms.trees.tree import Forest, Tree


def forest_of(booster, base):
    """Return the trees of a booster, with margins ``base`` before them (xgboost's, after its link function)."""
    learner = json.loads(booster.save_raw("json"))["learner"]
    trees = tuple(tree_of(tree) for tree in learner["gradient_booster"]["model"]["trees"])
    return Forest(trees, np.array(base, np.float64), int(learner["learner_model_param"]["num_feature"]))


def tree_of(saved):
    """Return one tree; xgboost's rows go left below the threshold, ours at it too."""
    left = np.array(saved["left_children"], np.int32)
    leaf = left < 0
    conditions = np.array(saved["split_conditions"], np.float32)
    sets = [np.empty(0, np.bool_)] * len(left)
    for node, begin, size in zip(
        saved["categories_nodes"], saved["categories_segments"], saved["categories_sizes"], strict=True
    ):
        to_the_right = saved["categories"][begin : begin + size]
        sets[node] = ~np.isin(np.arange(max(to_the_right) + 1), to_the_right)
    categorical = np.array(saved["split_type"]) == 1
    return Tree(
        np.where(leaf, -1, saved["split_indices"]).astype(np.int32),
        np.where(leaf | categorical, 0, np.nextafter(conditions, np.float32(-np.inf))).astype(np.float32),
        np.array(saved["default_left"], np.bool_),
        left,
        np.array(saved["right_children"], np.int32),
        np.where(leaf, conditions, np.array(saved["base_weights"], np.float32)).astype(np.float32),
        np.array(saved["loss_changes"], np.float64),
        np.array(saved["sum_hessian"], np.float64),
        np.zeros(len(left), np.int64),
        np.append(0, np.cumsum([len(flags) for flags in sets])),
        np.concatenate(sets),
    )
