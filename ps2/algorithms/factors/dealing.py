"""Assign users and items to workers, and send each rating to the worker of its user.

For coordinate descent, each rating also goes to the worker of its item.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.factors.chunks import HELD, ITEM, RATING, USER, WEIGHT, Chunk, Coded
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

# The number of blocks of items per worker and rotation: a worker trains one block while another block travels.
SLICES = 2
# The maximum bytes of a block's vectors.
BLOCK_BYTES = 64 << 20
# The seed of Spark's hash().
HASH_SEED = 42
# A row for each chunk and worker. key: Spark's repartition sends the row to the worker. part, number: the chunk.
# strange: the number of the chunk's rows with unknown ids, in its last row; else 0. All other columns: bytes of arrays.
PACKED = pa.schema(
    [
        ("key", pa.int32()),
        ("part", pa.int32()),
        ("number", pa.int32()),
        ("by_item", pa.bool_()),
        ("strange", pa.int64()),
    ]
    + [(name, pa.binary()) for name in (USER, ITEM, RATING, WEIGHT, HELD)]
)


@dataclass(frozen=True, eq=False)
class Deal:
    """The users of each worker, and the items of each block that rotates.

    Attributes:
        user_positions, item_positions: the position in the layout of each user and each item.
        by_item: whether each rating also goes to the worker of its item.
    """

    layout: Layout
    user_positions: Int32s
    item_positions: Int32s
    by_item: bool = False

    @staticmethod
    def from_counts(user_counts: Int64s, item_counts: Int64s, workers: int, groups: int, item_bytes: int) -> Deal:
        """Assign users to workers, and items to blocks, balanced by ratings; an item's vector has ``item_bytes``."""
        max_items = max(BLOCK_BYTES // item_bytes, 1)
        blocks = SLICES * workers
        ring = RotationSchedule(workers, blocks * max(-(-len(item_counts) // (blocks * max_items)), 1), SLICES)
        user_positions, user_begins = _deal(user_counts, workers, groups, by_count=False)
        item_positions, item_begins = _deal(item_counts, ring.blocks, groups, by_count=True)
        return Deal(Layout(ring, groups, user_begins, item_begins), user_positions, item_positions)


@dataclass(frozen=True, eq=False)
class PackedRatings:
    """A DataFrame of the schema ``PACKED``, with one rdd_partition for each worker."""

    frame: Any
    deal: Deal

    @property
    def workers(self) -> int:
        return self.deal.layout.ring.workers


def deal_ratings(frame: Any, survey: RatingsSurvey, deal: Deal, plan: FactorizationPlan) -> PackedRatings:
    """Send ratings to the workers, by a shuffle of few large rows. Rows of unknown ids are left out."""
    deal = replace(deal, by_item=plan.solver == "ccd")
    workers = deal.layout.ring.workers
    keys = partition_keys(workers)
    spark = backend_of(frame)
    shared = spark.broadcast((survey.users, survey.items, deal))

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        users, items, deal = shared.value
        for batch in batches:
            for row in batch.to_pylist():
                source = row["part"], row["number"]
                yield packed(Chunk.from_row(row), users, items, deal, keys, source)

    rows = with_python(survey.chunks).mapInArrow(pack, spark_schema(PACKED)).repartition(workers, "key")
    spark.set_partitions(rows, workers)
    return PackedRatings(rows, deal)


def packed(chunk: Chunk, users: Ids, items: Ids, deal: Deal, keys: Int32s, source: tuple[int, int]) -> pa.RecordBatch:
    """Return a row of a chunk's ratings for each worker's users and, with ``deal.by_item``, for each worker's items.

    ``keys`` has the key of each worker; ``source`` is the rdd_partition of the chunk, and its number there.
    """
    columns: dict[str, Array] = {
        USER: _positions(chunk.users, users, deal.user_positions),
        ITEM: _positions(chunk.items, items, deal.item_positions),
    }
    columns |= chunk.numbers()
    unknown, strange = (columns[USER] == UNKNOWN) | (columns[ITEM] == UNKNOWN), 0
    if unknown.any():
        strange = int(unknown.sum() if chunk.held is None else (unknown & ~chunk.held).sum())
        columns = {name: values[~unknown] for name, values in columns.items()}
    rows: dict[str, list[Any]] = {name: [] for name in PACKED.names}
    for by_item in (False, True) if deal.by_item else (False,):
        for name, cells in _cut(columns, deal.layout, len(keys), by_item).items():
            rows[name] += cells
        rows["key"] += keys.tolist()
        rows["by_item"] += [by_item] * len(keys)
    count = len(rows["key"])
    rows |= {"part": [source[0]] * count, "number": [source[1]] * count, "strange": [strange] + [0] * (count - 1)}
    return pa.RecordBatch.from_pydict(rows, schema=PACKED)


def _cut(columns: Mapping[str, Array], layout: Layout, workers: int, by_item: bool) -> dict[str, list[bytes | None]]:
    """Return the columns of ratings as bytes, a list of one element per worker; None: there is no such column."""
    bounds = [layout.items_owned_by(rank)[1] if by_item else layout.user_bounds(rank)[-1] for rank in range(workers)]
    owners = np.searchsorted(np.array(bounds), columns[ITEM if by_item else USER], side="right")
    order = np.argsort(owners.astype(np.uint16 if workers <= 1 << 16 else np.int64), kind="stable")
    cuts = np.cumsum(np.bincount(owners, minlength=workers))[:-1]
    return {
        name: [part.tobytes() for part in np.split(columns[name][order], cuts)] if name in columns else [None] * workers
        for name in (USER, ITEM, RATING, WEIGHT, HELD)
    }


def _positions(coded: Coded, ids: Ids, positions: Int32s) -> Int32s:
    """Return the position of each row's id, or ``UNKNOWN``."""
    numbers = ids.find(coded.ids)
    positions_of_ids = np.where(numbers == UNKNOWN, np.int32(UNKNOWN), positions[numbers]).astype(np.int32)
    return positions_of_ids[coded.codes]


def partition_keys(workers: int) -> Int32s:
    """Return for each worker an integer that Spark's ``repartition`` sends to it: the smallest one.

    Spark sends a row to partition ``pmod(hash(key), partitions)``; ``hash`` is Murmur3 with a seed of 42.
    """
    keys, begin = np.full(workers, -1, np.int32), 0
    while (keys < 0).any():
        candidates = np.arange(begin, begin + 4 * workers, dtype=np.int32)
        partitions = murmur3(candidates).view(np.int32).astype(np.int64) % workers
        reached, first = np.unique(partitions, return_index=True)
        is_new = keys[reached] < 0
        keys[reached[is_new]] = candidates[first[is_new]]
        begin += 4 * workers
    return keys


def murmur3(numbers: Int32s) -> npt.NDArray[np.uint32]:
    """Return Spark's hash of 32-bit integers: Murmur3 (Austin Appleby) of one word."""
    k = numbers.astype(np.uint32) * np.uint32(0xCC9E2D51)
    k = ((k << np.uint32(15)) | (k >> np.uint32(17))) * np.uint32(0x1B873593)
    h = np.uint32(HASH_SEED) ^ k
    h = ((h << np.uint32(13)) | (h >> np.uint32(19))) * np.uint32(5) + np.uint32(0xE6546B64)
    h = h ^ np.uint32(4)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def _deal(counts: Int64s, parts: int, groups: int, by_count: bool) -> tuple[Int32s, Int64s]:
    """Assign users (or items) with these counts of ratings to parts, and those of each part to groups.

    Return the position of each user, and the groups' bounds. A group is ordered by number, or ``by_count``: the users
    with the most ratings come first, so that they lie together in caches.
    """
    part = deal_by_cost(counts, parts).astype(np.int64)
    group = np.zeros(len(counts), np.int64)
    if groups > 1:
        for number in range(parts):
            members = np.flatnonzero(part == number)
            group[members] = deal_by_cost(counts[members], groups)
    cell = part * groups + group
    order = np.lexsort((-counts, cell)) if by_count else np.argsort(cell, kind="stable")
    positions = np.empty(len(counts), np.int32)
    positions[order] = np.arange(len(counts), dtype=np.int32)
    return positions, np.append(0, np.cumsum(np.bincount(cell, minlength=parts * groups)))
