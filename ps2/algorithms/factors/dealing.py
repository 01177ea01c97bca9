"""Assign users and items to workers; send a rating to the worker of its user and, for "ccd", of its item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.factors.chunks import HELD, ITEM, RATING, USER, WEIGHT, Chunk, EncodedIds
from ps2.algorithms.factors.grid import Layout
from ps2.algorithms.factors.plan import FactorizationPlan
from ps2.algorithms.factors.ratings import RatingsSurvey
from ps2.algorithms.frame.arrow_batches import spark_schema
from ps2.algorithms.training.table import deal_by_cost
from ps2.array_types import Int32s, Int64s
from ps2.data.ids import UNKNOWN, Ids
from ps2.run.rotation import RotationSchedule
from ps2.run.spark.backend_lookup import backend_of, with_python

Array = npt.NDArray[Any]

# The ``slices`` of the rotation: a worker trains on one block of items while its next block is sent.
SLICES = 2
# The maximum bytes of the vectors of a block of items.
BLOCK_BYTES = 64 << 20
# The seed of Spark's hash().
HASH_SEED = 42
# Packed ratings: a row has a chunk's ratings for a worker. key: see ``partition_keys``. part, number: see ``CHUNKS``.
# by_item: whether the ratings are those of the worker's items, else of its users. unknown_rows: the number of the
# chunk's ratings with unknown ids, in the chunk's first row only; else 0. Binary columns: arrays of ``DTYPES``.
PACKED = pa.schema(
    [
        ("key", pa.int32()),
        ("part", pa.int32()),
        ("number", pa.int32()),
        ("by_item", pa.bool_()),
        ("unknown_rows", pa.int64()),
    ]
    + [(name, pa.binary()) for name in (USER, ITEM, RATING, WEIGHT, HELD)]
)


@dataclass(frozen=True, eq=False)
class Assignment:
    """The positions in ``layout`` of users and items; ``by_item``: whether the items' workers get ratings, too."""

    layout: Layout
    user_positions: Int32s
    item_positions: Int32s
    by_item: bool = False

    @staticmethod
    def from_counts(user_counts: Int64s, item_counts: Int64s, workers: int, groups: int, item_bytes: int) -> Assignment:
        """Assign users to workers (of ``groups`` threads) and items to blocks, with about equal numbers of ratings."""
        max_items = max(BLOCK_BYTES // item_bytes, 1)
        blocks = SLICES * workers
        rotation = RotationSchedule(workers, blocks * max(-(-len(item_counts) // (blocks * max_items)), 1), SLICES)
        user_positions, user_begins = _assign(user_counts, workers, groups, by_count=False)
        item_positions, item_begins = _assign(item_counts, rotation.blocks, groups, by_count=True)
        return Assignment(Layout(rotation, groups, user_begins, item_begins), user_positions, item_positions)


@dataclass(frozen=True, eq=False)
class PackedRatings:
    """A DataFrame of the schema ``PACKED``, with one rdd_partition for each worker."""

    frame: Any
    assignment: Assignment

    @property
    def workers(self) -> int:
        return self.assignment.layout.rotation.workers


def deal_ratings(frame: Any, survey: RatingsSurvey, assignment: Assignment, plan: FactorizationPlan) -> PackedRatings:
    """Send ratings to the workers in a shuffle of few large rows. Ratings with unknown ids are left out."""
    assignment = replace(assignment, by_item=plan.solver == "ccd")
    workers = assignment.layout.rotation.workers
    keys = partition_keys(workers)
    spark = backend_of(frame)
    broadcast = spark.broadcast((survey.users, survey.items, assignment))

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        users, items, assignment = broadcast.value
        for batch in batches:
            for row in batch.to_pylist():
                source = row["part"], row["number"]
                yield pack_chunk(Chunk.from_row(row), users, items, assignment, keys, source)

    rows = with_python(survey.chunks).mapInArrow(pack, spark_schema(PACKED)).repartition(workers, "key")
    spark.set_partitions(rows, workers)
    return PackedRatings(rows, assignment)


def pack_chunk(
    chunk: Chunk, users: Ids, items: Ids, assignment: Assignment, keys: Int32s, source: tuple[int, int]
) -> pa.RecordBatch:
    """Return rows of ``PACKED``: one for each worker's users, and one for its items with ``assignment.by_item``.

    ``keys`` are the workers' ``partition_keys``; ``source`` is the chunk's rdd_partition, and its index there.
    """
    columns: dict[str, Array] = {
        USER: _positions(chunk.users, users, assignment.user_positions),
        ITEM: _positions(chunk.items, items, assignment.item_positions),
    }
    columns |= chunk.optional_columns()
    is_unknown, unknown_rows = (columns[USER] == UNKNOWN) | (columns[ITEM] == UNKNOWN), 0
    if is_unknown.any():
        unknown_rows = int(is_unknown.sum() if chunk.held_out is None else (is_unknown & ~chunk.held_out).sum())
        columns = {name: values[~is_unknown] for name, values in columns.items()}
    rows: dict[str, list[Any]] = {name: [] for name in PACKED.names}
    for by_item in (False, True) if assignment.by_item else (False,):
        for name, cells in _split_by_worker(columns, assignment.layout, len(keys), by_item).items():
            rows[name] += cells
        rows["key"] += keys.tolist()
        rows["by_item"] += [by_item] * len(keys)
    count = len(rows["key"])
    rows |= {"part": [source[0]] * count, "number": [source[1]] * count}
    rows["unknown_rows"] = [unknown_rows] + [0] * (count - 1)
    return pa.RecordBatch.from_pydict(rows, schema=PACKED)


def _split_by_worker(
    columns: Mapping[str, Array], layout: Layout, workers: int, by_item: bool
) -> dict[str, list[bytes | None]]:
    """Return each column of ratings as a list of bytes, one element per worker; None: the column is missing."""
    ends = [layout.items_owned_by(rank)[1] if by_item else layout.user_bounds(rank)[-1] for rank in range(workers)]
    owners = np.searchsorted(np.array(ends), columns[ITEM if by_item else USER], side="right")
    order = np.argsort(owners.astype(np.uint16 if workers <= 1 << 16 else np.int64), kind="stable")
    bounds = np.cumsum(np.bincount(owners, minlength=workers))[:-1]
    return {
        name: [values.tobytes() for values in np.split(columns[name][order], bounds)]
        if name in columns
        else [None] * workers
        for name in (USER, ITEM, RATING, WEIGHT, HELD)
    }


def _positions(encoded: EncodedIds, ids: Ids, positions: Int32s) -> Int32s:
    """Return the position in the layout of each row's id, or ``UNKNOWN``; ``positions`` has those of all ``ids``."""
    id_indices = ids.find(encoded.ids)
    positions_of_ids = np.where(id_indices == UNKNOWN, np.int32(UNKNOWN), positions[id_indices]).astype(np.int32)
    return positions_of_ids[encoded.codes]


def partition_keys(workers: int) -> Int32s:
    """Return for each worker the smallest integer that Spark's ``repartition`` sends to the worker's partition.

    Spark sends a row to partition ``pmod(hash(key), partitions)``; ``hash`` is Murmur3 with a seed of 42.
    """
    keys, begin = np.full(workers, -1, np.int32), 0
    while (keys < 0).any():
        candidates = np.arange(begin, begin + 4 * workers, dtype=np.int32)
        partitions = murmur3(candidates).view(np.int32).astype(np.int64) % workers
        reached, first_indices = np.unique(partitions, return_index=True)
        is_new = keys[reached] < 0
        keys[reached[is_new]] = candidates[first_indices[is_new]]
        begin += 4 * workers
    return keys


def murmur3(values: Int32s) -> npt.NDArray[np.uint32]:
    """Return Spark's ``hash`` of each 32-bit integer: MurmurHash3_x86_32 (Austin Appleby) of its four bytes."""
    k = values.astype(np.uint32) * np.uint32(0xCC9E2D51)
    k = ((k << np.uint32(15)) | (k >> np.uint32(17))) * np.uint32(0x1B873593)
    h = np.uint32(HASH_SEED) ^ k
    h = ((h << np.uint32(13)) | (h >> np.uint32(19))) * np.uint32(5) + np.uint32(0xE6546B64)
    h = h ^ np.uint32(4)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def _assign(counts: Int64s, owners: int, groups: int, by_count: bool) -> tuple[Int32s, Int64s]:
    """Assign users to workers (or items to blocks), and those of each to groups, balanced by ratings.

    With ``by_count``, users of a group are in descending order of ratings, so that frequently used vectors are adjacent
    in memory; else they keep their order. Return each user's position, and the bounds of the groups' positions.
    """
    owner = deal_by_cost(counts, owners).astype(np.int64)
    group = np.zeros(len(counts), np.int64)
    if groups > 1:
        for index in range(owners):
            members = np.flatnonzero(owner == index)
            group[members] = deal_by_cost(counts[members], groups)
    owner_group = owner * groups + group
    order = np.lexsort((-counts, owner_group)) if by_count else np.argsort(owner_group, kind="stable")
    positions = np.empty(len(counts), np.int32)
    positions[order] = np.arange(len(counts), dtype=np.int32)
    return positions, np.append(0, np.cumsum(np.bincount(owner_group, minlength=owners * groups)))
