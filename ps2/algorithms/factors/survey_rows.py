"""The survey of the ratings of one task: distinct ids with counts, statistics, and faults. Does not need Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ps2.algorithms.factors.chunks import HELD, ITEM, RATING, USER, WEIGHT, Array, Chunk, EncodedIds, Mask
from ps2.algorithms.factors.settings import MAX_VALUE
from ps2.algorithms.frame.arrow_batches import from_bytes, to_bytes
from ps2.array_types import Float64s, Int64s
from ps2.data.ids import Ids

# The maximum length of a faulty row in a message.
SHOWN_CHARS = 200
NUMBER_FAULTS = ("null", "NaN", "infinite", "too large", "negative")
# The faults of rows, each with its column. The error names the first column in this order that has faults.
FAULTS = [
    (USER, "null"),
    (ITEM, "null"),
    *((name, fault) for name in (RATING, WEIGHT) for fault in NUMBER_FAULTS),
    (HELD, "null"),
]
# A task's survey as a row. part: the rdd_partition. sums: ``Sums.array``. faults: int64 counts by ``FAULTS``. example:
# a faulty row. users, items: Arrow tables of ``IdCounter``.
PARTS = pa.schema(
    [
        ("part", pa.int32()),
        ("rows", pa.int64()),
        ("sums", pa.binary()),
        ("faults", pa.binary()),
        ("example", pa.string()),
    ]
    + [(name, pa.binary()) for name in ("users", "items")]
)


@dataclass
class Sums:
    """The statistics of ratings; statistics of several sets of ratings can be combined.

    ``rows`` excludes held-out ones. ``squares`` is the weighted sum of squared deviations from the weighted ``mean``.
    """

    rows: int = 0
    held_out: int = 0
    weight: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, other: Sums) -> None:
        """Add other statistics (Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance")."""
        self.rows += other.rows
        self.held_out += other.held_out
        weight = self.weight + other.weight
        if weight > 0:
            difference = other.mean - self.mean
            self.squares += other.squares + difference * difference * self.weight * (other.weight / weight)
            self.mean += difference * (other.weight / weight)
        self.weight = weight

    @staticmethod
    def from_ratings(ratings: Float64s, weights: Float64s | None, held_out: int) -> Sums:
        if not len(ratings):
            return Sums(held_out=held_out)
        weight = float(len(ratings)) if weights is None else float(weights.sum())
        if weight == 0:
            return Sums(len(ratings), held_out)
        mean = float(np.average(ratings, weights=weights))
        deviations = (ratings - mean) ** 2
        squares = float(deviations.sum() if weights is None else deviations @ weights)
        return Sums(len(ratings), held_out, weight, mean, squares)

    def array(self) -> Float64s:
        return np.array([self.rows, self.held_out, self.weight, self.mean, self.squares], np.float64)

    @staticmethod
    def from_array(array: Float64s) -> Sums:
        return Sums(int(array[0]), int(array[1]), *map(float, array[2:]))


@dataclass
class IdCounter:
    """Tables of ids with their number of ratings, and n of the penalty (see ``FactorizationSettings``)."""

    tables: list[pa.Table] = field(default_factory=list)

    def add(self, ids: pa.Array, codes: Array, penalties: Float64s | None) -> None:
        """Count ratings, with indices ``codes`` of distinct ids, and add up their ``penalties``; None: all are 1."""
        counts = np.bincount(codes, minlength=len(ids))
        weights = np.bincount(codes, penalties, minlength=len(ids)).astype(np.float64)
        occurs = counts > 0
        if occurs.any():
            columns = {"id": ids.filter(pa.array(occurs)), "count": counts[occurs], "penalty": weights[occurs]}
            self.tables.append(pa.table(columns))

    def merged(self) -> pa.Table | None:
        """Return one table with each id once; None: there are no ids."""
        if len(self.tables) < 2:
            return self.tables[0] if self.tables else None
        table = pa.concat_tables(self.tables).combine_chunks()
        encoded = EncodedIds.from_ids(table.column("id").combine_chunks())
        counts = np.zeros(len(encoded.ids), np.int64)
        np.add.at(counts, encoded.codes, table.column("count").to_numpy())
        weights = np.bincount(encoded.codes, table.column("penalty").to_numpy(), minlength=len(encoded.ids))
        return pa.table({"id": encoded.ids, "count": counts, "penalty": weights})


class Surveyor:
    """Surveys the rows of one task."""

    def __init__(self, names: Mapping[str, str], refuses_negative: bool, counts_only_positive: bool) -> None:
        """``names``: columns by role; ``counts_only_positive``: whether only ratings above 0 add to the penalties."""
        self._names, self._refuses_negative, self._counts_only_positive = names, refuses_negative, counts_only_positive
        self.sums, self.users, self.items = Sums(), IdCounter(), IdCounter()
        self.rows = 0
        self._faults = np.zeros(len(FAULTS), np.int64)
        self._example = ""

    def add(self, table: pa.Table) -> Chunk | None:
        """Survey rows; return them as a chunk, or None if a row has a fault."""
        self.rows += table.num_rows
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        is_faulty = np.zeros(table.num_rows, np.bool_)
        for index, (name, fault) in enumerate(FAULTS):
            if name in columns:
                has_fault = self._fault_mask(columns[name], name, fault)
                self._faults[index] += int(has_fault.sum())
                is_faulty |= has_fault
        if is_faulty.any():
            if not self._example:
                row = table.slice(int(np.argmax(is_faulty)), 1).to_pylist()[0]
                self._example = ", ".join(f"{self._names[name]}={value!r}" for name, value in row.items())[:SHOWN_CHARS]
            return None  # the survey ends with an error, so the rows are not needed
        chunk = Chunk.from_columns(columns)
        self._count(chunk)
        return chunk

    def _count(self, chunk: Chunk) -> None:
        """Add the rows that are not held out to the statistics."""
        training: Any = slice(None) if chunk.held_out is None or not chunk.held_out.any() else ~chunk.held_out
        users, items = chunk.users.codes[training], chunk.items.codes[training]
        ratings = np.ones(len(users)) if chunk.ratings is None else chunk.ratings[training]
        weights = None if chunk.weights is None else chunk.weights[training]
        self.sums.add(Sums.from_ratings(ratings, weights, len(chunk.users.codes) - len(users)))
        penalties = weights
        if self._counts_only_positive:
            penalties = (ratings > 0) * (1.0 if weights is None else weights)
        self.users.add(chunk.users.ids, users, penalties)
        self.items.add(chunk.items.ids, items, penalties)

    def _fault_mask(self, column: pa.Array, name: str, fault: str) -> Mask:
        if fault == "null":
            return column.is_null().to_numpy(zero_copy_only=False)
        values = column.to_numpy(zero_copy_only=False)
        if fault == "NaN":
            return np.isnan(values) & column.is_valid().to_numpy(zero_copy_only=False)
        if fault == "infinite":
            return np.isinf(values)
        if fault == "too large":
            return np.isfinite(values) & (np.abs(values) > MAX_VALUE)
        if name == RATING and not self._refuses_negative:
            return np.zeros(len(values), np.bool_)
        return values < 0

    def to_row(self, part: int) -> dict[str, Any]:
        """Return the survey as a row of ``PARTS``; ``part`` is the task's rdd_partition."""
        merged = [counter.merged() for counter in (self.users, self.items)]
        ids = [None if table is None else to_bytes(table) for table in merged]
        cells = [part, self.rows, self.sums.array().tobytes(), self._faults.tobytes(), self._example, *ids]
        return dict(zip(PARTS.names, cells, strict=True))


# Ascending ids, the number of ratings of each id, and n of its vector in the penalty (see ``FactorizationSettings``).
IdCounts = tuple[Ids, Int64s, Float64s]


@dataclass(frozen=True, eq=False)
class SurveyResult:
    """The survey of all tasks.

    ``sums`` excludes held-out rows; ``faults`` are counts by ``FAULTS``; ``example`` is a faulty row, or "". ``users``
    and ``items`` are None if all rows have faults or are held out.
    """

    rows: int
    sums: Sums
    faults: Int64s
    example: str
    users: IdCounts | None
    items: IdCounts | None


def merge_parts(parts: Iterable[Any]) -> SurveyResult:
    """Return the survey of all tasks from rows of ``PARTS``, in any order."""
    sums, faults, example = Sums(), np.zeros(len(FAULTS), np.int64), ""
    counters, rows = (IdCounter(), IdCounter()), 0
    for part in sorted(parts, key=lambda part: part["part"]):
        rows += part["rows"]
        sums.add(Sums.from_array(np.frombuffer(part["sums"])))
        faults += np.frombuffer(part["faults"], np.int64)
        example = example or part["example"]
        for counter, name in zip(counters, ("users", "items"), strict=True):
            if part[name] is not None:
                counter.tables.append(from_bytes(part[name]))
    return SurveyResult(rows, sums, faults, example, *(_id_counts(counter.merged()) for counter in counters))


def _id_counts(table: pa.Table | None) -> IdCounts | None:
    """Sort the merged table of an ``IdCounter`` by id."""
    if table is None:
        return None
    table = table.combine_chunks()
    ids = table.column("id").combine_chunks()
    order = np.argsort(ids.to_numpy()) if pa.types.is_integer(ids.type) else pc.sort_indices(ids).to_numpy()
    sorted_table = table.take(pa.array(order))
    sorted_ids = Ids.from_values(sorted_table.column("id").combine_chunks())
    return sorted_ids, sorted_table.column("count").to_numpy(), sorted_table.column("penalty").to_numpy()
