"""Trees as arrays, and what they say of themselves."""

from __future__ import annotations

import numpy as np
import pytest
from tree_builder import TreeBuilder

from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.tree import Forest, java_number
from ps2.algorithms.trees.tree_table import nodes_as_table


def drafted():
    """x0 <= 1.5, then on the left a set of x1."""
    draft = TreeBuilder(0.5, 10.0, 10)
    draft.split(0, 0, 1.5, default_left=True, gain=4.0)
    left = draft.add_child(0, -1.0, 6.0, 6)
    draft.add_child(0, 2.0, 4.0, 4)
    draft.split(left, 1, np.array([True, False, False, True]), default_left=False, gain=1.0)
    draft.add_child(left, -4.0, 2.0, 2)
    draft.add_child(left, 1e-5, 4.0, 4)
    return draft


def test_draft_when_finished_then_is_tree_with_scaled_values():
    tree = drafted().finish(rate=0.5)
    assert tree.feature.tolist() == [0, 1, -1, -1, -1]
    assert tree.left.tolist() == [1, 3, -1, -1, -1]
    assert tree.right.tolist() == [2, 4, -1, -1, -1]
    assert tree.set_of(0).tolist() == []
    assert tree.set_of(1).tolist() == [True, False, False, True]
    np.testing.assert_array_equal(tree.value, np.array([0.25, -0.5, 1.0, -2.0, 5e-6]))
    assert (tree.depth, tree.leaves.tolist()) == (2, [3, 4, 2])


def test_trees_when_printed_then_show_size_without_arrays():
    tree = drafted().finish()
    assert repr(tree) == f"Tree(depth={tree.depth}, nodes={len(tree)}, leaves={tree.leaf_count})"
    assert repr(GBTModel(Forest((tree, tree), np.zeros(1), 2))) == "GBTModel(trees=2, features=2, loss='squared')"


def test_to_debug_string_when_called_then_matches_pyspark_ml():
    forest = Forest((drafted().finish(), TreeBuilder(-0.1, 1.0, 1).finish()), np.zeros(1), 2)
    assert forest.to_debug_string("GBTModel: uid = u, numTrees=2") == (
        "GBTModel: uid = u, numTrees=2\n"
        "  Tree 0 (weight 1.0):\n"
        "    If (feature 0 <= 1.5)\n"
        "     If (feature 1 in {0.0,3.0})\n"
        "      Predict: -4.0\n"
        "     Else (feature 1 not in {0.0,3.0})\n"
        "      Predict: 1.0E-5\n"
        "    Else (feature 0 > 1.5)\n"
        "     Predict: 2.0\n"
        "  Tree 1 (weight 1.0):\n"
        "    Predict: -0.1\n"
    )


def test_parts_when_summed_by_weight_then_are_the_forest():
    forest = Forest((drafted().finish(0.5), drafted().finish(0.5)), np.array([0.25]), 2)
    assert forest.weights(0.5) == [1.0, 0.5]
    first, second = forest.parts(0.5)
    assert (first.base.tolist(), second.base.tolist()) == ([0.25], [0.0])
    np.testing.assert_array_equal(first.trees[0].value, forest.trees[0].value)
    np.testing.assert_array_equal(second.trees[0].value, forest.trees[1].value * 2)
    assert forest.to_debug_string("", 0.5).count("(weight 0.5)") == 1


def test_to_debug_string_when_tree_is_deep_then_prints_all():
    draft, node = TreeBuilder(0.0, 1.0, 1), 0
    for _ in range(2000):
        draft.split(node, 0, 0.0, default_left=False, gain=0.0)
        draft.add_child(node, 0.0, 1.0, 1)
        node = draft.add_child(node, 0.0, 1.0, 1)
    tree = draft.finish()
    assert tree.depth == 2000
    assert tree.to_debug_string().count("Predict") == 2001


def test_importances_when_trees_have_gains_then_they_are_shares():
    np.testing.assert_allclose(Forest((drafted().finish(),), np.zeros(1), 3).importances(), [0.8, 0.2, 0])


def test_importances_when_nothing_was_split_then_they_are_zeros():
    assert Forest((TreeBuilder(0.0, 1.0, 1).finish(),), np.zeros(1), 2).importances().tolist() == [0, 0]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (1234567.0, "1234567.0"),
        (1e7, "1.0E7"),
        (-1.5e20, "-1.5E20"),
        (np.float32(0.1), "0.1"),
        (np.int64(3), "3.0"),
        (0.0, "0.0"),
        (np.inf, "Infinity"),
        (-np.inf, "-Infinity"),
        (np.nan, "NaN"),
    ],
)
def test_java_number_when_said_then_it_is_as_java_says_it(value, said):
    assert java_number(value) == said


def test_table_when_made_then_rows_are_nodes_with_their_splits():
    tree = drafted().finish(rate=0.5)
    table = nodes_as_table(Forest((tree, tree), np.zeros(1), 8), {1: "kind"})
    assert table["tree"].tolist() == [0] * 5 + [1] * 5
    second = table[5:].astype(object).where(table[5:].notna(), None).drop(columns="tree")
    assert second.to_numpy().tolist() == [
        [0, 0, 0, None, 1.5, None, 1, 2, "left", 4.0, 10.0, 10, 0.25],
        [1, 1, 1, "kind", None, [0, 3], 3, 4, "right", 1.0, 6.0, 6, -0.5],
        [2, 1, None, None, None, None, None, None, None, 0.0, 4.0, 4, 1.0],
        [3, 2, None, None, None, None, None, None, None, 0.0, 2.0, 2, -2.0],
        [4, 2, None, None, None, None, None, None, None, 0.0, 4.0, 4, 5e-6],
    ]


def test_table_when_there_are_no_trees_then_is_empty():
    assert nodes_as_table(Forest((), np.zeros(1), 2), {}).empty
