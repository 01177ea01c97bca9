"""Operations on graphs: a shard is a pack (see ``walk_kernels``), the adjacency lists of some vertices.

Vertices and neighbours are columns of the matrix, so a request about a vertex is sent to the server that has its list.
For a step of a walk, the client sends a vertex and a random number, and the server returns a neighbour.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.algorithms.embeddings import walk_kernels as kernels
from ps2.errors import OutOfRangeError, ShapeError
from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s
from ps2.ops.operands import along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import Array, Block, Floats, Of, Slots, Tiny, Values, op

# ``Tiny`` makes a valid array, with which kernels are compiled: a pack of one vertex, with space for one neighbour.
Pack = Annotated[Block, Tiny(lambda dtype: np.array([[2, 2, 0]], dtype))]
Weights = Annotated[Block, Of("float64"), Tiny(lambda dtype: np.zeros((1, 3)))]
Numbers = Annotated[Floats, along("slots")]
Neighbours = Annotated[Values, along("slots")]
PerSlot = Annotated[Array, along("slots")]

INTEGERS = ("int32", "int64")
NO_WEIGHTS = np.empty(0)
# The time of drawing a neighbour, in additions; it has two cache misses.
COST = 64


@op(writes=("pack",), dtypes=INTEGERS)
def add_neighbours(pack: Pack, slots: Slots, neighbours: Neighbours) -> None:
    """Append neighbours to lists of vertices; raise OutOfRangeError if a slot is not a vertex, or its list is full."""
    _append(_row(pack), NO_WEIGHTS, slots, neighbours, NO_WEIGHTS)


@op(writes=("pack", "pack_weights"), dtypes=INTEGERS)
def add_weighted_neighbours(
    pack: Pack, pack_weights: Weights, slots: Slots, neighbours: Neighbours, edge_weights: Numbers
) -> None:
    """Append neighbours with edge weights; raise OutOfRangeError like ``add_neighbours``."""
    _append(_row(pack), pack_weights[0], slots, neighbours, edge_weights)


@op(writes=("pack",), dtypes=INTEGERS)
def order_neighbours(pack: Pack) -> None:
    """Sort the lists, which are full."""
    kernels.sort_lists(_row(pack), NO_WEIGHTS)


@op(writes=("pack", "pack_weights"), dtypes=INTEGERS)
def order_weighted_neighbours(pack: Pack, pack_weights: Weights) -> None:
    """Sort the lists, which are full, and replace the weights of each list by their cumulative sums."""
    kernels.sort_lists(_row(pack), pack_weights[0])


@op(dtypes=INTEGERS)
def draw_neighbours(pack: Pack, slots: Slots, numbers: Numbers) -> PerSlot:
    """Draw a neighbour of each vertex by random ``numbers`` in [0, 1); all edges are equally likely.

    Return the neighbours' columns; -1: the vertex has no neighbour; -2 - column: the vertex has a single neighbour.
    """
    return _draw(_row(pack), NO_WEIGHTS, slots, numbers)


@op(dtypes=INTEGERS)
def draw_weighted_neighbours(pack: Pack, pack_weights: Weights, slots: Slots, numbers: Numbers) -> PerSlot:
    """Like ``draw_neighbours``, with probabilities proportional to edge weights."""
    return _draw(_row(pack), pack_weights[0], slots, numbers)


@op(dtypes=INTEGERS)
def are_neighbours(pack: Pack, slots: Slots, others: Neighbours) -> PerSlot:
    """For each pair of vertices, return 1 if there is an edge from the first to the second, else 0."""
    row = _row(pack)
    slots = _checked(row, slots)
    are_edges = np.empty(len(slots), row.dtype)
    over_blocks(kernels.find_edges, (slots, readable(others), are_edges), readable(row), cost=COST)
    return are_edges


def _row(block: Array) -> Array:
    """Return the pack, which is the only row of its matrix."""
    pack: Array = block[0]
    if not 1 <= pack[0] <= len(pack):
        raise ShapeError(f"pack: expected bounds and lists, got {len(pack)} numbers that begin with {pack[0]}")
    return pack


def _checked(pack: Array, slots: Int64s) -> Int64s:
    """Return the slots; raise OutOfRangeError unless all are vertices whose lists are inside the pack."""
    slots = readable(slots)
    invalid = kernels.check_vertices(readable(pack), slots)
    if invalid >= 0:
        raise OutOfRangeError(
            f"slot {slots[invalid]} (at position {invalid}) is not one of {int(pack[0]) - 1} vertices, or its list is "
            "outside the pack"
        )
    return slots


def _append(pack: Array, weights: Array, slots: Int64s, neighbours: Array, edge_weights: Array) -> None:
    slots = readable(slots)
    if len(slots) and not (slots.min() >= 0 and slots.max() + 1 < pack[0]):
        raise OutOfRangeError(f"slots: expected vertices below {int(pack[0]) - 1}, got {slots.min()} to {slots.max()}")
    full_index = kernels.append(pack, weights, slots, readable(neighbours), readable(edge_weights))
    if full_index >= 0:
        raise OutOfRangeError(
            f"slot {slots[full_index]} (at position {full_index}): its list has no space for another neighbour"
        )


def _draw(pack: Array, weights: Array, slots: Int64s, numbers: Array) -> Array:
    slots = _checked(pack, slots)
    neighbours = np.empty(len(slots), pack.dtype)
    over_blocks(kernels.draw_many, (slots, readable(numbers), neighbours), readable(pack), readable(weights), cost=COST)
    return neighbours
