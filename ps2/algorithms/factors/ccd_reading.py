"""A worker's ratings for coordinate descent, from the packed rows in which they travel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ps2.algorithms.factors.ccd_kernels import Array
from ps2.algorithms.factors.ccd_ratings import RatingRows, UserRatings
from ps2.algorithms.factors.chunks import HELD, ITEM, RATING, USER, WEIGHT
from ps2.algorithms.factors.options import FactorOptions

DTYPES = {USER: np.int32, ITEM: np.int32, RATING: np.float32, WEIGHT: np.float32, HELD: np.bool_}


@dataclass(frozen=True, eq=False)
class WorkersRatings:
    """What a worker has read.

    Attributes:
        training: ratings to train with.
        held_out: ratings of the same users for validation; None: no row is held out here.
        strange: rows with ids that were missing at the first reading.
    """

    training: UserRatings
    held_out: UserRatings | None
    strange: int


def read_ratings(batches: Iterable[pa.RecordBatch], places: tuple[int, int], options: FactorOptions) -> WorkersRatings:
    """Read packed ratings (``dealing.PACKED``).

    Args:
        places: of the worker's users: the first one, and the end.
    """
    found: dict[str, list[Array]] = {name: [] for name in DTYPES}
    strange = 0
    for batch in batches:
        strange += sum(batch.column("strange").to_pylist())
        for name, dtype in DTYPES.items():
            cells: list[Any] = batch.column(name).to_pylist()
            found[name] += [np.frombuffer(cell, dtype) for cell in cells if cell is not None]
    columns = {name: np.concatenate(parts) for name, parts in found.items() if parts}
    users, items = (columns.get(name, np.zeros(0, np.int32)) for name in (USER, ITEM))
    ratings = columns.get(RATING, np.ones(len(users), np.float32))
    rows, held = RatingRows(users - np.int32(places[0]), items, ratings, columns.get(WEIGHT)), columns.get(HELD)
    count = places[1] - places[0]
    if held is None or not held.any():
        return WorkersRatings(UserRatings.of(rows, count, options), None, strange)
    training, held_out = (UserRatings.of(rows.chosen(marks), count, options) for marks in (~held, held))
    return WorkersRatings(training, held_out, strange)
