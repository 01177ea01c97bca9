"""Ratings in a compact form: ids as numbers of the distinct ids among them. Arrow in, Arrow out; no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.array_types import Int32s

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

# Names of the columns that tasks get.
USER, ITEM, RATING, WEIGHT, HELD = "user", "item", "rating", "weight", "held"
# The approximate number of rows of a chunk.
CHUNK_ROWS = 1 << 20
CHUNKS = pa.schema(
    [("part", pa.int32()), ("number", pa.int32())]
    + [(name, pa.binary()) for name in ("user_ids", "item_ids", "user", "item", "rating", "weight", "held")]
)


@dataclass(frozen=True, eq=False)
class Coded:
    """Ids as numbers.

    Attributes:
        ids: int64 or strings, distinct, in any order.
        codes: int32: for each row, the position of its id.
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
    """Some ratings without faults.

    Attributes:
        users, items: the users and items of the rows.
        ratings, weights: float64 or float32; None: all are 1.
        held: whether each row is held out; None: none is.
    """

    users: Coded
    items: Coded
    ratings: Array | None
    weights: Array | None
    held: Mask | None

    @staticmethod
    def from_columns(columns: Mapping[str, pa.Array]) -> Chunk:
        """Return rows in this form; none of them holds a null."""
        ratings, weights, held = (
            columns[name].to_numpy(zero_copy_only=False) if name in columns else None for name in (RATING, WEIGHT, HELD)
        )
        return Chunk(Coded.from_ids(columns[USER]), Coded.from_ids(columns[ITEM]), ratings, weights, held)

    def row(self, part: int, number: int) -> dict[str, Any]:
        """Return the chunk as a row of ``CHUNKS``, with numbers in float32.

        Args:
            part, number: the number of the rdd_partition, and that of the chunk in it.
        """
        cells: dict[str, Any] = {"part": part, "number": number}
        cells |= {"user_ids": _packed(self.users.ids), "item_ids": _packed(self.items.ids)}
        arrays: dict[str, tuple[Array | None, Any]] = {
            USER: (self.users.codes, np.int32),
            ITEM: (self.items.codes, np.int32),
        }
        arrays |= {RATING: (self.ratings, np.float32), WEIGHT: (self.weights, np.float32), HELD: (self.held, np.uint8)}
        return cells | {name: None if a is None else a.astype(t).tobytes() for name, (a, t) in arrays.items()}

    @staticmethod
    def from_row(row: Mapping[str, Any]) -> Chunk:
        def read(name: str, dtype: Any) -> Any:
            return None if row[name] is None else np.frombuffer(row[name], dtype)

        users, items = (Coded(_unpacked(row[f"{name}_ids"]), read(name, np.int32)) for name in (USER, ITEM))
        return Chunk(users, items, read(RATING, np.float32), read(WEIGHT, np.float32), read(HELD, np.bool_))


def tables(batches: Iterable[pa.RecordBatch], rows: int = CHUNK_ROWS) -> Iterator[pa.Table]:
    """Join batches into tables of about ``rows`` rows."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield pa.Table.from_batches(held)
            held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _packed(ids: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([ids], ["id"])
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _unpacked(data: Any) -> pa.Array:
    return pa.ipc.open_stream(bytes(data)).read_all().column(0).combine_chunks()
