"""What servers do with packs of vertices, and what they refuse."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from ps2.algorithms.embeddings import ops, walk_kernels, warm
from ps2.algorithms.embeddings.walks import GraphPartitioning
from ps2.errors import OutOfRangeError, ShapeError
from ps2.ops.all import lookup
from ps2.ops.warm import _compile
from tests.graphs import PAIRS, VERTICES, Edges, random_edges, walk_settings

NUMBERS = np.linspace(0, 1, 50, endpoint=False)


def filled(edges, dtype="int32"):
    """A pack of all vertices, as the operations fill it, and its weights."""
    cut = GraphPartitioning.from_degrees(edges.degrees, 1)
    begins = cut.empty_bounds(0, edges.degrees)
    pack, sums = np.zeros((1, cut.width), dtype), np.zeros((1, cut.width))
    pack[0, : len(begins)] = begins
    targets = edges.targets.astype(dtype)
    if edges.weights is None:
        ops.add_neighbours(pack, edges.sources, targets)
        ops.order_neighbours(pack)
    else:
        ops.add_weighted_neighbours(pack, sums, edges.sources, targets, edges.weights)
        ops.order_weighted_neighbours(pack, sums)
    return pack, sums


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_draws_when_edges_weigh_the_same_then_numbers_choose(dtype):
    edges = Edges([(0, 2), (0, 1), (0, 2), (0, 0)], 3, directed=True)
    pack, _ = filled(edges, dtype)
    result = ops.draw_neighbours(pack, np.zeros(4, np.int64), np.array([0.0, 0.25, 0.5, 0.99]))
    assert result.dtype == dtype
    assert result.tolist() == [0, 1, 2, 2]


def test_draws_when_edges_have_weights_then_use_cumulative_sums():
    edges = random_edges(5, 2000, weighted=True)
    pack, sums = filled(edges)
    for vertex in range(5):
        result = ops.draw_weighted_neighbours(pack, sums, np.full(len(NUMBERS), vertex), NUMBERS)
        ends = np.cumsum(edges.matrix[vertex])
        np.testing.assert_array_equal(result, np.searchsorted(ends, NUMBERS * ends[-1], side="right"))


def test_draws_when_there_is_none_or_no_other_then_it_is_told():
    pack, _ = filled(Edges([(1, 2)], 3, directed=True))
    assert ops.draw_neighbours(pack, np.arange(3), np.zeros(3)).tolist() == [-1, -2 - 2, -1]


def test_pairs_when_looked_up_then_those_with_edge_are_told():
    edges = random_edges(40, 500)
    pack, _ = filled(edges)
    every, other = (axis.reshape(-1) for axis in np.indices((40, 40)))
    result = ops.are_neighbours(pack, every, other.astype(np.int32))
    np.testing.assert_array_equal(result.reshape(40, 40), edges.matrix > 0)


@pytest.mark.parametrize("slot", [-1, VERTICES, 1000])
def test_operations_when_a_slot_is_no_vertex_then_it_is_refused(slot):
    pack, sums = filled(Edges(PAIRS, VERTICES))
    before = pack.copy()
    slots = np.array([0, slot])
    for call in (
        lambda: ops.draw_neighbours(pack, slots, np.zeros(2)),
        lambda: ops.draw_weighted_neighbours(pack, sums, slots, np.zeros(2)),
        lambda: ops.are_neighbours(pack, slots, np.zeros(2, np.int32)),
        lambda: ops.add_neighbours(pack, slots, np.zeros(2, np.int32)),
    ):
        with pytest.raises(OutOfRangeError, match="vert"):
            call()
    np.testing.assert_array_equal(pack, before)


def test_neighbours_when_more_than_room_then_refused():
    pack, _ = filled(Edges([(0, 0)], 1))
    with pytest.raises(OutOfRangeError, match="no space"):
        ops.add_neighbours(pack, np.zeros(1, np.int64), np.zeros(1, np.int32))


def test_a_block_when_it_is_no_pack_then_it_is_refused():
    with pytest.raises(ShapeError, match="begin with 0"):
        ops.draw_neighbours(np.zeros((1, 9), np.int32), np.zeros(1, np.int64), np.zeros(1))


@pytest.mark.parametrize(
    "name",
    ["add_neighbours", "add_weighted_neighbours", "order_neighbours", "order_weighted_neighbours", "draw_neighbours",
     "draw_weighted_neighbours", "are_neighbours"],
)  # fmt: skip
def test_operations_when_precompiled_then_tiny_arguments_do(name):
    _compile(lookup(f"embeddings.{name}"))


def test_walks_when_warm_then_compile_nothing():
    warm.warm()
    modules = (walk_kernels,)

    def compiled():
        return {
            f"{module.__name__}.{name}": len(member.signatures)
            for module in modules
            for name, member in inspect.getmembers(module)
            if hasattr(member, "signatures")
        }

    before = compiled()
    for weighted in (False, True):
        edges = random_edges(20, 60, weighted=weighted)
        edges.local.walk(walk_settings(1, 5, p=0.5), np.arange(20))
        filled(edges)
    assert compiled() == before
