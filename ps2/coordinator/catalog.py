"""The matrices of a fleet and their rows: pure bookkeeping; what servers must do is returned, not done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ps2.errors import ConfigError, LimitError, NotFoundError, UsageError
from ps2.matrix.partition import MAX_ROWS, MatrixSpec, Partition, partition_bounds, place
from ps2.matrix.route import Route
from ps2.storage.manifest import SavedMatrix


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
class Taken:
    """Who has been handed a row.

    Attributes:
        series, stage: of the task that took it; "" for a session.
        holders: the session, or those attempts of the task that were handed it and have not let it go.
    """

    series: str
    stage: int
    holders: set[str] = field(default_factory=set)


@dataclass
class Entry:
    """One matrix.

    Attributes:
        spec: with the number of rows that it has now.
        fresh: the first row that was never handed out.
        retired: rows that were freed, to be handed out again.
        used: rows that are handed out.
        owners: index of the server that holds each partition; it never changes, the server's address may.
        born: generation of each of those; a row that is freed and handed out again has a later one.
        taken: who took those of them whose handles are counted.
    """

    id: int
    spec: MatrixSpec
    route: Route
    owners: tuple[int, ...] = ()
    fresh: int = 0
    retired: list[int] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    born: dict[int, int] = field(default_factory=dict)
    taken: dict[int, Taken] = field(default_factory=dict)

    def grant(self, count: int) -> Grant:
        """Choose ``count`` rows: freed ones first, then reserved ones, then new ones (twice as many as there are)."""
        reused = tuple(self.retired[:count])
        needed = self.fresh + count - len(reused)
        if needed > MAX_ROWS:
            raise LimitError(f"a matrix has at most {MAX_ROWS} rows, got a call for {count} beside {len(self.used)}")
        if needed > self.spec.rows and self.spec.layout == "column":
            raise UsageError(
                f"matrix {self.id:x} has layout 'column' and keeps its {self.spec.rows} rows, of which "
                f"{len(self.used)} are in use: reserve as many as there will be when it is made"
            )
        rows = (*reused, *range(self.fresh, needed))
        total = self.spec.rows if needed <= self.spec.rows else min(max(needed, 2 * self.spec.rows), MAX_ROWS)
        return Grant(rows, reused, total)

    def grant_reserved(self) -> Grant:
        """Choose all rows that exist and are not in use."""
        rows = (*self.retired, *range(self.fresh, self.spec.rows))
        return Grant(rows, tuple(self.retired), self.spec.rows)

    def hand_out(self, grant: Grant, first_born: int) -> None:
        """Note that the rows are in use; ``first_born`` is the generation of the first of them."""
        self.retired = [row for row in self.retired if row not in grant.reused]
        self.fresh = max(self.fresh, *(row + 1 for row in grant.rows), 0)
        self.used.update(grant.rows)
        self.born.update(zip(grant.rows, range(first_born, first_born + len(grant.rows)), strict=True))
        self.spec = replace(self.spec, rows=grant.total)

    def retire(self, rows: Sequence[int]) -> list[int]:
        """Note that rows are no longer in use; return those that were."""
        freed = sorted(self.used.intersection(rows))
        self.used.difference_update(freed)
        self.retired.extend(freed)
        for row in freed:
            del self.born[row]
            self.taken.pop(row, None)
        return freed

    def hold(self, rows: Sequence[int], taken: Taken) -> None:
        """Note that rows have been handed to one more holder."""
        for row in self.used.intersection(rows):
            self.taken.setdefault(row, Taken(taken.series, taken.stage)).holders.update(taken.holders)

    def let_go(self, rows: Sequence[int], holder: str) -> list[int]:
        """Note that a holder's handles to rows are gone; return the rows that nobody holds any more."""
        orphans = []
        for row in rows:
            taken = self.taken.get(row)
            if taken is None:
                continue
            taken.holders.discard(holder)  # it may be gone already, from a call that then failed
            if not taken.holders:
                orphans.append(row)
        return orphans

    def partitions_of(self, index: int) -> list[Partition]:
        """Return the partitions that a server holds."""
        owned = zip(self.route.partitions, self.owners, strict=True)
        return [partition for partition, owner in owned if owner == index]


class Catalog:
    """Matrices by id. Ids start at a random number, so that those of two drivers on one fleet differ.

    Attributes:
        names: matrix and row by the name that it was given.
        born: how many rows have ever been handed out: the generation of the next one.
    """

    def __init__(self, first_id: int) -> None:
        self._next_id = first_id
        self._entries: dict[int, Entry] = {}
        self.names: dict[str, tuple[int, int]] = {}
        self.born = 0

    def plan(self, spec: MatrixSpec, addresses: Sequence[str], route_version: int = 0) -> Entry:
        """Return a new matrix, not yet in the catalog, spread over the servers."""
        bounds = partition_bounds(spec, len(addresses))
        owners = place(len(bounds) - 1, len(addresses))
        self._next_id += 1
        route = Route(route_version, bounds, tuple(addresses[owner] for owner in owners))
        return Entry(self._next_id, spec, route, owners)

    def rehome(self, addresses: Sequence[str], route_version: int) -> None:
        """Note where servers are now, by index."""
        for entry in self._entries.values():
            owned = tuple(addresses[owner] for owner in entry.owners)
            entry.route = replace(entry.route, version=route_version, addresses=owned)

    def adopt(
        self, matrices: Sequence[SavedMatrix], addresses: Sequence[str], route_version: int, cut_anew: bool
    ) -> None:
        """Take matrices of an earlier coordinator, cut anew by the number of servers or as they are.

        What servers hold as they are may be newer than what is known of it: rows without names were handed out, and
        nobody was told. So every row that is not known to be in use has to be made zero before it is.
        """
        for saved in matrices:
            bounds = partition_bounds(saved.spec, len(addresses)) if cut_anew else saved.bounds
            owners = place(len(bounds) - 1, len(addresses))
            route = Route(route_version, bounds, tuple(addresses[owner] for owner in owners))
            born = dict(saved.born)
            fresh, retired = saved.fresh, list(saved.retired)
            if not cut_anew:
                fresh, retired = saved.spec.rows, [row for row in range(saved.spec.rows) if row not in born]
            entry = Entry(saved.id, saved.spec, route, owners, fresh, retired, set(born), born)
            self._entries[saved.id] = entry
            self.names.update({name: (saved.id, row) for name, row in saved.names.items()})
            self.born = max(self.born, *(generation + 1 for generation in born.values()), 0)

    def add(self, entry: Entry) -> None:
        self._entries[entry.id] = entry

    def remove(self, id: int) -> None:
        self._entries.pop(id, None)
        self.names = {name: place for name, place in self.names.items() if place[0] != id}

    def has_name(self, id: int) -> bool:
        """Tell whether a row of a matrix has a name."""
        return any(matrix == id for matrix, _ in self.names.values())

    def check_name(self, name: str) -> None:
        """Raise ConfigError if a vector has this name already."""
        if name in self.names:
            matrix, row = self.names[name]
            raise ConfigError(
                f"name {name!r} is that of row {row} of matrix {matrix:x} already; free it first, or take it "
                f"by ps.vector({name!r})"
            )

    def hand_out(self, entry: Entry, grant: Grant, name: str = "") -> None:
        """Note that rows are in use, the first of them under a name if one is given."""
        if name:
            self.check_name(name)
            self.names[name] = entry.id, grant.rows[0]
        entry.hand_out(grant, self.born)
        self.born += len(grant.rows)

    def retire(self, entry: Entry, rows: Sequence[int]) -> list[int]:
        """Note that rows are no longer in use, and their names free; return those that were."""
        freed = entry.retire(rows)
        gone = {(entry.id, row) for row in freed}
        self.names = {name: place for name, place in self.names.items() if place not in gone}
        return freed

    def get(self, id: int) -> Entry:
        if id not in self._entries:
            raise NotFoundError(f"matrix {id:x} does not exist (any more)")
        return self._entries[id]

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def ids(self) -> list[int]:
        return list(self._entries)
