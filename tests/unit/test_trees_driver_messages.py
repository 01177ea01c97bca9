"""Tasks of workers, which number a row has, what histograms need: pure parts of the training of trees."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from ps2.algorithms.frame.program import Task
from ps2.algorithms.trees.driver_messages import FIELDS, NO_NODES, AddResiduals, FinalNodes, Moves
from ps2.algorithms.trees.gradients import Objective, quantise_pairs
from ps2.algorithms.trees.problem import TreeProblem, key_of
from ps2.algorithms.trees.program import min_rows_to_split
from ps2.algorithms.trees.rows import row_ids, sample_rows
from ps2.data.rows import LocalRows
from ps2.protocol.plain_data import decode
from ps2.run.message import Message
from tests import plans

NODES = FinalNodes(np.array([0, 4, 3]), np.array([False, True, True]), np.array([0.0, -0.25, 1.5]))


@pytest.mark.parametrize("nodes", [NO_NODES, NODES])
def test_task_when_a_worker_reads_it_then_says_the_same(nodes):
    splits = np.arange(2 * (FIELDS + 1)).reshape(2, FIELDS + 1)
    sent = AddResiduals(matrices=[7, 2**40, 9], cells=np.array([5, 6]), **Moves(splits, nodes).fields())
    read = Task.of(decode(Message(sent.encodable()).encoded))
    assert (type(read), read.matrices) == (AddResiduals, sent.matrices)
    np.testing.assert_array_equal(read.splits, splits)
    np.testing.assert_array_equal(read.cells, [5, 6])
    for one, other in zip(vars(read.nodes).values(), vars(nodes).values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_leaves_when_nodes_are_final_then_have_workers_numbers():
    assert NODES.leaves.tolist() == [4, 3]


def rows_of(x, keys, y):
    return LocalRows(np.asarray(keys, np.int64), sp.csr_array(x), np.asarray(y, np.float64))


def test_row_ids_when_zeros_are_stored_or_not_then_are_equal():
    x = np.array([[1.0, 0.0, 2.5], [0.0, 0.0, 0.0], [1.0, 2.5, 0.0], [1.0, 0.0, 2.5]], np.float32)
    held = sp.csr_array((x.reshape(-1), np.tile([0, 1, 2], 4), np.arange(5) * 3), shape=(4, 3))
    ids = row_ids(rows_of(x, [0, 1, 2], [0, 0, 0, 1]), "zero")
    np.testing.assert_array_equal(row_ids(rows_of(held, [0, 1, 2], [0, 0, 0, 1]), "zero"), ids)
    np.testing.assert_array_equal(row_ids(rows_of(x[:, [0, 2]], [0, 2], [0, 0, 0, 1]), "zero")[[0, 3]], ids[[0, 3]])
    assert len(np.unique(ids)) == 4


def test_row_ids_when_values_are_nan_then_all_nans_are_equal():
    other = np.uint64(0xFFF8000000000123).view(np.float64)
    x = np.array([[1.0, np.nan], [1.0, other], [1.0, 0.0], [np.nan, 1.0]])
    ids = row_ids(rows_of(x, [0, 1], np.zeros(4)), "zero")
    assert ids[0] == ids[1]
    assert len(np.unique(ids)) == 3


def test_row_ids_when_absent_is_missing_then_only_zeros_count():
    held = sp.csr_array(([1.0, np.nan, 1.0, 1.0, -0.0, 1.0, 0.0], [0, 1, 0, 0, 1, 0, 1], [0, 2, 3, 5, 7]), shape=(4, 2))
    ids = row_ids(LocalRows(np.arange(2), held, np.zeros(4)), "missing")
    assert ids[0] == ids[1] != ids[2] == ids[3]


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_draw_when_rows_are_many_then_each_tree_takes_its_share(fraction):
    ids = np.arange(20_000)
    first, second = (sample_rows(ids, key_of(5, tree), fraction) for tree in (0, 1))
    assert first.mean() == pytest.approx(fraction, abs=0.02)
    assert (first & second).mean() == pytest.approx(fraction**2, abs=0.02)
    np.testing.assert_array_equal(sample_rows(ids[::2], key_of(5, 0), fraction), first[::2])


def test_draw_and_rounding_when_the_key_is_one_are_independent():
    ids, key = np.arange(20_000), key_of(5, 1)
    rounded = quantise_pairs(np.full((len(ids), 2), 1.5), ids, key, (1.0, 1.0)) == 2
    is_sampled = sample_rows(ids, key, 0.5)
    for is_up in rounded.T:
        assert is_up[is_sampled].mean() == pytest.approx(is_up[~is_sampled].mean(), abs=0.03)


@pytest.mark.parametrize(
    ("objective", "recipe", "mean_weight", "expected"),
    [
        (Objective("logistic"), plans.boosting(minChildWeight=1.0), None, 4),
        (Objective("softmax", 3), plans.boosting(minChildWeight=2.0), None, 4),
        (Objective("squared"), plans.boosting(minChildWeight=1.0, minInstancesPerNode=9), None, 9),
        (Objective("poisson"), plans.boosting(minChildWeight=5.0), None, 1),
        (Objective("logistic"), plans.boosting(minChildWeight=0.0), None, 1),
        (Objective("logistic"), plans.boosting(minChildWeight=1.0), 2.5, 0),
    ],
)
def test_min_rows_to_split_when_nodes_must_be_heavy_then_follow(objective, recipe, mean_weight, expected):
    assert min_rows_to_split(TreeProblem(objective, 5, (0.0,)), recipe, mean_weight) == expected
