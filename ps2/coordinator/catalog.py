"""The matrices of a fleet and their rows: pure bookkeeping; what servers must do is returned, not done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ps2.errors import LimitError, NotFoundError
from ps2.partition import MAX_ROWS, MatrixSpec, Partition, partition_bounds, place
from ps2.route import Route


@dataclass(frozen=True)
class Grant:
    """Rows that are about to be handed out.

    Attributes:
        rows: their numbers.
        reused: those of them that were in use before and have to be made zero.
        total: rows that the matrix must have; more than it has now if it has to grow.
    """

    rows: tuple[int, ...]
    reused: tuple[int, ...]
    total: int


@dataclass
class Entry:
    """One matrix.

    Attributes:
        spec: with the number of rows that it has now.
        fresh: the first row that was never handed out.
        retired: rows that were freed, to be handed out again.
        used: rows that are handed out.
    """

    id: int
    spec: MatrixSpec
    route: Route
    fresh: int = 0
    retired: list[int] = field(default_factory=list)
    used: set[int] = field(default_factory=set)

    def grant(self, count: int) -> Grant:
        """Choose ``count`` rows: freed ones first, then reserved ones, then new ones (twice as many as there are)."""
        reused = tuple(self.retired[:count])
        needed = self.fresh + count - len(reused)
        if needed > MAX_ROWS:
            raise LimitError(f"a matrix has at most {MAX_ROWS} rows, got a call for {count} beside {len(self.used)}")
        rows = (*reused, *range(self.fresh, needed))
        total = self.spec.rows if needed <= self.spec.rows else min(max(needed, 2 * self.spec.rows), MAX_ROWS)
        return Grant(rows, reused, total)

    def grant_reserved(self) -> Grant:
        """Choose all rows that exist and are not in use."""
        rows = (*self.retired, *range(self.fresh, self.spec.rows))
        return Grant(rows, tuple(self.retired), self.spec.rows)

    def hand_out(self, grant: Grant) -> None:
        """Note that the rows are in use."""
        self.retired = [row for row in self.retired if row not in grant.reused]
        self.fresh = max(self.fresh, *(row + 1 for row in grant.rows), 0)
        self.used.update(grant.rows)
        self.spec = replace(self.spec, rows=grant.total)

    def retire(self, rows: Sequence[int]) -> list[int]:
        """Note that rows are no longer in use; return those that were."""
        freed = sorted(self.used.intersection(rows))
        self.used.difference_update(freed)
        self.retired.extend(freed)
        return freed

    def partitions_on(self, address: str) -> list[Partition]:
        owners = zip(self.route.partitions, self.route.addresses, strict=True)
        return [partition for partition, owner in owners if owner == address]


class Catalog:
    """Matrices by id. Ids start at a random number, so that those of two drivers on one fleet differ."""

    def __init__(self, first_id: int) -> None:
        self._next_id = first_id
        self._entries: dict[int, Entry] = {}

    def plan(self, spec: MatrixSpec, addresses: Sequence[str]) -> Entry:
        """Return a new matrix, not yet in the catalog, spread over the servers."""
        bounds = partition_bounds(spec, len(addresses))
        owners = place(len(bounds) - 1, len(addresses))
        self._next_id += 1
        return Entry(self._next_id, spec, Route(1, bounds, tuple(addresses[owner] for owner in owners)))

    def add(self, entry: Entry) -> None:
        self._entries[entry.id] = entry

    def remove(self, id: int) -> None:
        self._entries.pop(id, None)

    def get(self, id: int) -> Entry:
        if id not in self._entries:
            raise NotFoundError(f"matrix {id:x} does not exist (any more)")
        return self._entries[id]

    def ids(self) -> list[int]:
        return list(self._entries)
