"""Ratings in a compact form: each id is the index of a distinct id. Arrow in, Arrow out; no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.frame.arrow_batches import blocks_of, from_bytes, to_bytes
from ps2.array_types import Int32s

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

# The names of the columns that tasks get. HELD marks held-out ratings.
USER, ITEM, RATING, WEIGHT, HELD = "user", "item", "rating", "weight", "held"
# The dtypes in which the columns travel; users and items travel as indices.
DTYPES: dict[str, Any] = {USER: np.int32, ITEM: np.int32, RATING: np.float32, WEIGHT: np.float32, HELD: np.bool_}
# The approximate number of rows of a chunk.
CHUNK_ROWS = 1 << 20
CHUNKS = pa.schema(
    [("part", pa.int32()), ("number", pa.int32())]
    + [(name, pa.binary()) for name in ("user_ids", "item_ids", "user", "item", "rating", "weight", "held")]
)


@dataclass(frozen=True, eq=False)
class Coded:
    """A column of ids, dictionary-encoded.

    Attributes:
        ids: the distinct ids, int64 or strings, in any order.
        codes: the index in ``ids`` of each row's id.
    """

    ids: pa.Array
    codes: Int32s

    @staticmethod
    def from_ids(ids: pa.Array) -> Coded:
        if pa.types.is_integer(ids.type) and len(ids):
            values = ids.to_numpy()
            low, high = int(values.min()), int(values.max())
            if high - low < 4 * len(values):  # dense ids: no hashing
                numbers = values - low
                used = np.flatnonzero(np.bincount(numbers))
                codes = np.zeros(high - low + 1, np.int32)
                codes[used] = np.arange(len(used), dtype=np.int32)
                return Coded(pa.array(used + low), codes[numbers])
        encoded = ids.dictionary_encode()
        return Coded(encoded.dictionary, encoded.indices.to_numpy())


@dataclass(frozen=True, eq=False)
class Chunk:
    """A block of valid ratings.

    Attributes:
        ratings, weights: float64 or float32; None: all are 1.
        held: whether each row is held out; None: no row is.
    """

    users: Coded
    items: Coded
    ratings: Array | None
    weights: Array | None
    held: Mask | None

    @staticmethod
    def from_columns(columns: Mapping[str, pa.Array]) -> Chunk:
        """Return the ratings of columns without nulls."""
        ratings, weights, held = (
            columns[name].to_numpy(zero_copy_only=False) if name in columns else None for name in (RATING, WEIGHT, HELD)
        )
        return Chunk(Coded.from_ids(columns[USER]), Coded.from_ids(columns[ITEM]), ratings, weights, held)

    def numbers(self) -> dict[str, Array]:
        """Return the present ones of the columns RATING, WEIGHT and HELD, in the dtypes in which they travel."""
        arrays = {RATING: self.ratings, WEIGHT: self.weights, HELD: self.held}
        return {name: array.astype(DTYPES[name], copy=False) for name, array in arrays.items() if array is not None}

    def row(self, part: int, number: int) -> dict[str, Any]:
        """Return a row of ``CHUNKS``: the ``number``-th chunk of rdd_partition ``part``."""
        cells: dict[str, Any] = {name: array.tobytes() for name, array in self.numbers().items()}
        for name, coded in ((USER, self.users), (ITEM, self.items)):
            cells[f"{name}_ids"] = to_bytes(pa.table({"id": coded.ids}))
            cells[name] = coded.codes.tobytes()
        return {**cells, "part": part, "number": number}

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> Chunk:
        """Return the chunk that ``row`` has written."""

        def read(name: str) -> Any:
            return None if row[name] is None else np.frombuffer(row[name], DTYPES[name])

        ids = (from_bytes(row[f"{name}_ids"]).column(0).combine_chunks() for name in (USER, ITEM))
        users, items = map(Coded, ids, (read(USER), read(ITEM)))
        return Chunk(users, items, read(RATING), read(WEIGHT), read(HELD))


def join_columns(rows: list[dict[str, Any]]) -> dict[str, Array]:
    """Concatenate the columns of packed rows and delete them there; leave out optional columns that no row has."""
    columns = {}
    for name, dtype in DTYPES.items():
        parts = [np.frombuffer(row.pop(name), dtype) for row in rows if row[name] is not None]
        if parts or name in (USER, ITEM):
            columns[name] = np.concatenate([np.empty(0, dtype), *parts])
    return columns


def tables(batches: Iterable[pa.RecordBatch], rows: int = CHUNK_ROWS) -> Iterator[pa.Table]:
    """Join batches into tables of about ``rows`` rows."""
    return map(pa.Table.from_batches, blocks_of((batch for batch in batches if len(batch)), len, rows))
