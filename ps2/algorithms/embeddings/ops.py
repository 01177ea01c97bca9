"""Operations of graphs: a shard is a pack of vertices with the lists of their neighbours (``list_kernels``).

Vertices and neighbours are columns of the matrix, so a vertex is asked for where its list lies. Of a step of a walk, a
vertex and a random number go to the server, and a vertex comes back.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ps2.algorithms.embeddings import list_kernels as kernels
from ps2.errors import OutOfRangeError, ShapeError
from ps2.ops.guards import readable
from ps2.ops.kernels import Int64s
from ps2.ops.operands import along
from ps2.ops.parallel import over_blocks
from ps2.ops.table import Array, Block, Floats, Of, Slots, Tiny, Values, op

# A vertex, with room for a neighbour.
Pack = Annotated[Block, Tiny(lambda dtype: np.array([[2, 2, 0]], dtype))]
Weights = Annotated[Block, Of("float64"), Tiny(lambda dtype: np.zeros((1, 3)))]
Numbers = Annotated[Floats, along("slots")]
Neighbours = Annotated[Values, along("slots")]
Found = Annotated[Array, along("slots")]

INTEGERS = ("int32", "int64")
NO_WEIGHTS = np.empty(0)
# What a draw costs, in additions: it waits for memory twice.
COST = 64


@op(writes=("pack",), dtypes=INTEGERS)
def add_neighbours(pack: Pack, slots: Slots, neighbours: Neighbours) -> None:
    """Append neighbours to the lists of vertices.

    Raises:
        OutOfRangeError: a slot is no vertex, or there are more neighbours than there is room for.
    """
    _append(_row(pack), NO_WEIGHTS, slots, neighbours, NO_WEIGHTS)


@op(writes=("pack", "pack_weights"), dtypes=INTEGERS)
def add_weighted_neighbours(
    pack: Pack, pack_weights: Weights, slots: Slots, neighbours: Neighbours, their: Numbers
) -> None:
    """Append neighbours, with the weights of the edges to them; raises as ``add_neighbours`` does."""
    _append(_row(pack), pack_weights[0], slots, neighbours, their)


@op(writes=("pack",), dtypes=INTEGERS)
def order_neighbours(pack: Pack) -> None:
    """Put full lists in order."""
    kernels.put_in_order(_row(pack), NO_WEIGHTS)


@op(writes=("pack", "pack_weights"), dtypes=INTEGERS)
def order_weighted_neighbours(pack: Pack, pack_weights: Weights) -> None:
    """Put full lists in order, and sum up their weights."""
    kernels.put_in_order(_row(pack), pack_weights[0])


@op(dtypes=INTEGERS)
def draw_neighbours(pack: Pack, slots: Slots, numbers: Numbers) -> Found:
    """Draw a neighbour of each vertex, by random numbers in [0, 1): each of its edges is as likely as the others.

    Returns:
        Columns; -1 if there is none, and -2 - column if there is no other.

    Raises:
        OutOfRangeError: a slot is no vertex.
    """
    return _draw(_row(pack), NO_WEIGHTS, slots, numbers)


@op(dtypes=INTEGERS)
def draw_weighted_neighbours(pack: Pack, pack_weights: Weights, slots: Slots, numbers: Numbers) -> Found:
    """Do what ``draw_neighbours`` does, with edges as likely as they have weight."""
    return _draw(_row(pack), pack_weights[0], slots, numbers)


@op(dtypes=INTEGERS)
def are_neighbours(pack: Pack, slots: Slots, others: Neighbours) -> Found:
    """Tell of pairs of vertices whether there is an edge from the first to the second: 1, or 0.

    Raises:
        OutOfRangeError: a slot is no vertex.
    """
    row = _row(pack)
    slots = _checked(row, slots)
    found = np.empty(len(slots), row.dtype)
    over_blocks(kernels.look_up_many, (slots, readable(others), found), readable(row), cost=COST)
    return found


def _row(block: Array) -> Array:
    """Return a pack, the only row of its matrix."""
    pack: Array = block[0]
    if not 1 <= pack[0] <= len(pack):
        raise ShapeError(f"pack: expected one of vertices, got {len(pack)} numbers that begin with {pack[0]}")
    return pack


def _checked(pack: Array, slots: Int64s) -> Int64s:
    slots = readable(slots)
    wrong = kernels.check_vertices(readable(pack), slots)
    if wrong >= 0:
        raise OutOfRangeError(
            f"slot {slots[wrong]} (at position {wrong}) is no vertex: there are {int(pack[0]) - 1}, in order"
        )
    return slots


def _append(pack: Array, weights: Array, slots: Int64s, neighbours: Array, their: Array) -> None:
    slots = readable(slots)
    if len(slots) and not (slots.min() >= 0 and slots.max() + 1 < pack[0]):
        raise OutOfRangeError(f"slots: expected vertices, of which there are {int(pack[0]) - 1}")
    full = kernels.append(pack, weights, slots, readable(neighbours), readable(their))
    if full >= 0:
        raise OutOfRangeError(f"slot {slots[full]} (at position {full}): there is no room for another neighbour")


def _draw(pack: Array, weights: Array, slots: Int64s, numbers: Array) -> Array:
    slots = _checked(pack, slots)
    found = np.empty(len(slots), pack.dtype)
    over_blocks(kernels.draw_many, (slots, readable(numbers), found), readable(pack), readable(weights), cost=COST)
    return found
