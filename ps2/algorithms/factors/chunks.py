"""Chunks of ratings with dictionary-encoded ids, as Arrow rows. Does not need Spark."""

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

# The names of the columns that tasks read. HELD is true for held-out ratings.
USER, ITEM, RATING, WEIGHT, HELD = "user", "item", "rating", "weight", "held"
# The dtypes of the columns in packed rows. Users and items are indices of ids, or positions.
DTYPES: dict[str, Any] = {USER: np.int32, ITEM: np.int32, RATING: np.float32, WEIGHT: np.float32, HELD: np.bool_}
# The approximate number of rows of a chunk.
CHUNK_ROWS = 1 << 20
# A chunk as a row. part, number: the chunk's rdd_partition, and its index there. user_ids, item_ids: Arrow tables of
# distinct ids. Other binary columns: arrays of ``DTYPES``; null: the column is missing.
CHUNKS = pa.schema(
    [("part", pa.int32()), ("number", pa.int32())]
    + [(name, pa.binary()) for name in ("user_ids", "item_ids", "user", "item", "rating", "weight", "held")]
)


@dataclass(frozen=True, eq=False)
class EncodedIds:
    """A column of ids: row i has ``ids[codes[i]]``; ``ids`` are distinct int64 or strings, in any order."""

    ids: pa.Array
    codes: Int32s

    @staticmethod
    def from_ids(ids: pa.Array) -> EncodedIds:
        if pa.types.is_integer(ids.type) and len(ids):
            values = ids.to_numpy()
            low, high = int(values.min()), int(values.max())
            if high - low < 4 * len(values):  # dense ids: no hashing
                offsets = values - low
                distinct = np.flatnonzero(np.bincount(offsets))
                codes = np.zeros(high - low + 1, np.int32)
                codes[distinct] = np.arange(len(distinct), dtype=np.int32)
                return EncodedIds(pa.array(distinct + low), codes[offsets])
        encoded = ids.dictionary_encode()
        return EncodedIds(encoded.dictionary, encoded.indices.to_numpy())


@dataclass(frozen=True, eq=False)
class Chunk:
    """Rows of valid ratings. ``ratings`` or ``weights`` None: all are 1; ``held_out`` None: no row is held out."""

    users: EncodedIds
    items: EncodedIds
    ratings: Array | None
    weights: Array | None
    held_out: Mask | None

    @staticmethod
    def from_columns(columns: Mapping[str, pa.Array]) -> Chunk:
        """Encode columns without nulls; optional columns can be missing."""
        ratings, weights, held_out = (
            columns[name].to_numpy(zero_copy_only=False) if name in columns else None for name in (RATING, WEIGHT, HELD)
        )
        return Chunk(EncodedIds.from_ids(columns[USER]), EncodedIds.from_ids(columns[ITEM]), ratings, weights, held_out)

    def optional_columns(self) -> dict[str, Array]:
        """Return the columns RATING, WEIGHT and HELD as arrays of ``DTYPES``, without missing columns."""
        arrays = {RATING: self.ratings, WEIGHT: self.weights, HELD: self.held_out}
        return {name: array.astype(DTYPES[name], copy=False) for name, array in arrays.items() if array is not None}

    def to_row(self, part: int, number: int) -> dict[str, Any]:
        """Return a row of ``CHUNKS`` for chunk ``number`` of rdd_partition ``part``."""
        cells: dict[str, Any] = {name: array.tobytes() for name, array in self.optional_columns().items()}
        for name, encoded in ((USER, self.users), (ITEM, self.items)):
            cells[f"{name}_ids"] = to_bytes(pa.table({"id": encoded.ids}))
            cells[name] = encoded.codes.tobytes()
        return {**cells, "part": part, "number": number}

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> Chunk:
        """Return the chunk of a row that ``to_row`` made."""

        def read(name: str) -> Any:
            return None if row[name] is None else np.frombuffer(row[name], DTYPES[name])

        ids = (from_bytes(row[f"{name}_ids"]).column(0).combine_chunks() for name in (USER, ITEM))
        users, items = map(EncodedIds, ids, (read(USER), read(ITEM)))
        return Chunk(users, items, read(RATING), read(WEIGHT), read(HELD))


def join_columns(rows: list[dict[str, Any]]) -> dict[str, Array]:
    """Concatenate each column of packed rows; remove the columns from ``rows``. Optional columns can be missing."""
    columns = {}
    for name, dtype in DTYPES.items():
        arrays = [np.frombuffer(row.pop(name), dtype) for row in rows if row[name] is not None]
        if arrays or name in (USER, ITEM):
            columns[name] = np.concatenate([np.empty(0, dtype), *arrays])
    return columns


def join_batches(batches: Iterable[pa.RecordBatch], table_rows: int = CHUNK_ROWS) -> Iterator[pa.Table]:
    """Join batches into tables of about ``table_rows`` rows."""
    return map(pa.Table.from_batches, blocks_of((batch for batch in batches if len(batch)), len, table_rows))
