"""A worker's ratings for coordinate descent, from the packed rows in which they travel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ps2.algorithms.factors.ccd_kernels import Array
from ps2.algorithms.factors.ccd_ratings import RatingRows, SideRatings
from ps2.algorithms.factors.chunks import HELD, ITEM, RATING, USER, WEIGHT
from ps2.algorithms.factors.plan import FactorizationPlan

DTYPES = {USER: np.int32, ITEM: np.int32, RATING: np.float32, WEIGHT: np.float32, HELD: np.bool_}


@dataclass(frozen=True, eq=False)
class WorkersRatings:
    """What a worker has read.

    Attributes:
        of_users: ratings of the worker's users.
        of_items: ratings of the worker's items.
        held_out: held-out ratings of the worker's items; None: no row is held out here.
        strange: rows with ids that were missing at the first reading.
        users, items: places of the worker's users and items: the first one, and the end.
    """

    of_users: SideRatings
    of_items: SideRatings
    held_out: SideRatings | None
    strange: int
    users: tuple[int, int]
    items: tuple[int, int]


def read_ratings(
    batches: Iterable[pa.RecordBatch], users: tuple[int, int], items: tuple[int, int], plan: FactorizationPlan
) -> WorkersRatings:
    """Read packed ratings (``dealing.PACKED``).

    Args:
        users, items: places of the worker's: the first one, and the end.
    """
    found: dict[tuple[bool, str], list[Array]] = {}
    strange = 0
    for row in _rows(batches):
        strange += row["strange"]
        for name, dtype in DTYPES.items():
            if row[name] is not None:
                found.setdefault((row["by_item"], name), []).append(np.frombuffer(row[name], dtype))
    sides = []
    for by_item, (first, end) in ((False, users), (True, items)):
        columns = {name: np.concatenate(parts) for (side, name), parts in found.items() if side == by_item}
        own, others = (columns.get(name, np.zeros(0, np.int32)) for name in ((ITEM, USER) if by_item else (USER, ITEM)))
        ratings = columns.get(RATING, np.ones(len(own), np.float32))
        rows = RatingRows(own - np.int32(first), others, ratings, columns.get(WEIGHT))
        held = columns.get(HELD, np.zeros(len(own), np.bool_))
        sides.append((rows, held, end - first))
    (of_users, held, users_here), (of_items, held_items, items_here) = sides
    held_out = None
    if held_items.any():
        held_out = SideRatings.of(of_items.chosen(held_items), items_here, plan)
    return WorkersRatings(
        SideRatings.of(of_users.chosen(~held), users_here, plan),
        SideRatings.of(of_items.chosen(~held_items), items_here, plan),
        held_out,
        strange,
        users,
        items,
    )


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()
