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
    """The ratings of a worker.

    Attributes:
        users: the ratings of the worker's users.
        items: the ratings of the worker's items.
        held_out: held-out ratings of the worker's items; None: no row is held out here.
        strange: the number of rows with ids that were missing at the first reading.
        user_bounds, item_bounds: the first position of the worker's users and items, and the end.
    """

    users: SideRatings
    items: SideRatings
    held_out: SideRatings | None
    strange: int
    user_bounds: tuple[int, int]
    item_bounds: tuple[int, int]


def read_ratings(
    batches: Iterable[pa.RecordBatch],
    user_bounds: tuple[int, int],
    item_bounds: tuple[int, int],
    plan: FactorizationPlan,
) -> WorkersRatings:
    """Read packed ratings (``dealing.PACKED``).

    Args:
        user_bounds, item_bounds: the first position of the worker's users and items, and the end.
    """
    parts: dict[tuple[bool, str], list[Array]] = {}
    strange = 0
    for row in _rows(batches):
        strange += row["strange"]
        for name, dtype in DTYPES.items():
            if row[name] is not None:
                parts.setdefault((row["by_item"], name), []).append(np.frombuffer(row[name], dtype))
    sides = []
    for by_item, (first, end) in ((False, user_bounds), (True, item_bounds)):
        columns = {name: np.concatenate(arrays) for (side, name), arrays in parts.items() if side == by_item}
        own, others = (columns.get(name, np.zeros(0, np.int32)) for name in ((ITEM, USER) if by_item else (USER, ITEM)))
        ratings = columns.get(RATING, np.ones(len(own), np.float32))
        rows = RatingRows(own - np.int32(first), others, ratings, columns.get(WEIGHT))
        held = columns.get(HELD, np.zeros(len(own), np.bool_))
        sides.append((rows, held, end - first))
    (user_rows, held, num_users), (item_rows, held_items, num_items) = sides
    held_out = None
    if held_items.any():
        held_out = SideRatings.from_rows(item_rows.chosen(held_items), num_items, plan)
    return WorkersRatings(
        SideRatings.from_rows(user_rows.chosen(~held), num_users, plan),
        SideRatings.from_rows(item_rows.chosen(~held_items), num_items, plan),
        held_out,
        strange,
        user_bounds,
        item_bounds,
    )


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()
