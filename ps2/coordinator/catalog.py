"""The catalog of a fleet's matrices and rows. Makes no I/O: the master sends the changes to the servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ps2.errors import ConfigError, LimitError, NotFoundError, UsageError
from ps2.matrix.partition import MAX_ROWS, MatrixSpec, Partition, assign_owners, partition_bounds
from ps2.matrix.route import Route
from ps2.protocol.messages import RequestId
from ps2.storage.manifest import SavedMatrix

# Maximum number of names that an error lists.
MAX_NAMES = 50
# Maximum number of rows that one call allocates: the coordinator and the client store a record of each row.
MAX_GRANT = 10_000_000


@dataclass(frozen=True)
class Grant:
    """Rows that are about to be allocated; ``reused`` must be set to zero; the matrix then has ``total`` rows."""

    rows: Sequence[int]
    reused: tuple[int, ...]
    total: int


@dataclass(frozen=True)
class RowHolders:
    """The processes with handles to a row: attempts of one task of a Spark stage, or a session (``series`` "").

    Rows that one call has allocated share one object.
    """

    series: str
    stage: int
    holders: frozenset[str]


@dataclass
class Entry:
    """One matrix.

    Attributes:
        spec: the matrix's shape and settings, with the present number of rows.
        owners: for each partition, the index of its server. An index never changes, but the server's address may.
        fresh: the first row that was never in use.
        retired: freed rows, in the order in which they are used again.
        generations: generation of each row in use. A row that is freed and used again gets a higher generation.
        row_holders: holders of each row in use. Rows without an entry are freed only explicitly.
    """

    id: int
    spec: MatrixSpec
    route: Route
    owners: tuple[int, ...] = ()
    fresh: int = 0
    retired: list[int] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    generations: dict[int, int] = field(default_factory=dict)
    row_holders: dict[int, RowHolders] = field(default_factory=dict)

    def grant(self, count: int) -> Grant:
        """Choose ``count`` rows: freed, then reserved, then new rows. Adding rows doubles the size of the matrix."""
        reused = tuple(self.retired[:count])
        needed = self.fresh + count - len(reused)
        if needed > MAX_ROWS:
            raise LimitError(
                f"a matrix has at most {MAX_ROWS} rows: {count} cannot be added to {len(self.used)} in use"
            )
        _check_count(count)
        if needed > self.spec.rows and self.spec.layout == "column":
            raise UsageError(
                f"matrix {self.id:x} has layout 'column' and cannot grow beyond its {self.spec.rows} rows, of which "
                f"{len(self.used)} are in use: reserve all rows that you need when you create it"
            )
        rows = _joined(reused, range(self.fresh, needed))
        total = self.spec.rows if needed <= self.spec.rows else min(max(needed, 2 * self.spec.rows), MAX_ROWS)
        return Grant(rows, reused, total)

    def grant_reserved(self) -> Grant:
        """Choose all reserved rows that are not in use."""
        _check_count(len(self.retired) + self.spec.rows - self.fresh)
        reused = tuple(self.retired)
        return Grant(_joined(reused, range(self.fresh, self.spec.rows)), reused, self.spec.rows)

    def allocate(self, grant: Grant, generation: int) -> None:
        """Mark the rows as in use; ``generation`` is the generation of the first row."""
        del self.retired[: len(grant.reused)]
        self.fresh = max(self.fresh, max(grant.rows, default=-1) + 1)
        self.used.update(grant.rows)
        self.generations.update(zip(grant.rows, range(generation, generation + len(grant.rows)), strict=True))
        self.spec = replace(self.spec, rows=grant.total)

    def retire(self, rows: Sequence[int]) -> list[int]:
        """Mark rows as no longer in use; return the rows that were in use."""
        freed = sorted(self.used.intersection(rows))
        self.used.difference_update(freed)
        self.retired.extend(freed)
        for row in freed:
            del self.generations[row]
            self.row_holders.pop(row, None)
        return freed

    def add_holders(self, rows: Sequence[int], new_holders: RowHolders) -> None:
        """Record further holders of rows."""
        in_use = self.used.intersection(rows)
        with_holders = in_use.intersection(self.row_holders)
        self.row_holders.update(dict.fromkeys(in_use - with_holders, new_holders))
        for row in with_holders:
            row_holders = self.row_holders[row]
            self.row_holders[row] = replace(row_holders, holders=row_holders.holders | new_holders.holders)

    def remove_holder(self, rows: Sequence[int], holder: str) -> list[int]:
        """Record that a holder has no handles to rows any more; return the rows that have no holder now."""
        orphans = []
        remaining: dict[RowHolders, RowHolders] = {}
        for row in rows:
            row_holders = self.row_holders.get(row)
            if row_holders is None:
                continue
            if row_holders not in remaining:
                remaining[row_holders] = replace(row_holders, holders=row_holders.holders - {holder})
            self.row_holders[row] = remaining[row_holders]
            if not remaining[row_holders].holders:
                orphans.append(row)
        return orphans

    def partitions_of(self, index: int) -> list[Partition]:
        """Return the partitions whose owner is server ``index``."""
        owned = zip(self.route.partitions, self.owners, strict=True)
        return [partition for partition, owner in owned if owner == index]


@dataclass(frozen=True)
class MatrixState:
    """A matrix and the state of its servers, as a reply to a client.

    Attributes:
        lost: reasons why servers are lost and cannot be replaced.
        recovering: reasons why servers are being replaced.
        epoch: number of rollbacks of the fleet.
        step: the next step after the last rollback; None if there is none.
    """

    entry: Entry
    lost: tuple[str, ...]
    recovering: tuple[str, ...]
    epoch: int
    step: int | None


def _check_count(count: int) -> None:
    if count > MAX_GRANT:
        raise LimitError(
            f"a call allocates at most {MAX_GRANT:,} rows, got {count:,}: store many short vectors in a matrix with "
            "layout='column'"
        )


def _joined(reused: tuple[int, ...], fresh: range) -> Sequence[int]:
    return (*reused, *fresh) if reused else fresh


@dataclass(frozen=True)
class Caller:
    """The caller of an allocation: the call's id, and the session or task attempt (``holder``) that gets handles."""

    id: RequestId
    holder: str

    @property
    def row_holders(self) -> RowHolders:
        return RowHolders(self.id.series, self.id.stage, frozenset({self.holder}))


class Catalog:
    """The matrices of a fleet, by id. The first id is random: two drivers of one fleet use different ids.

    Attributes:
        names: (matrix, row) of each named vector, by name.
        next_generation: generation of the row that is allocated next: the number of all earlier allocations.
    """

    def __init__(self, first_id: int) -> None:
        self._next_id = first_id
        self._entries: dict[int, Entry] = {}
        self.names: dict[str, tuple[int, int]] = {}
        self.next_generation = 0

    def plan(self, spec: MatrixSpec, addresses: Sequence[str], route_version: int = 0) -> Entry:
        """Return a new matrix with partitions on all servers. It is not in the catalog yet."""
        bounds = partition_bounds(spec, len(addresses))
        owners = assign_owners(len(bounds) - 1, len(addresses))
        self._next_id += 1
        route = Route(route_version, bounds, tuple(addresses[owner] for owner in owners))
        return Entry(self._next_id, spec, route, owners)

    def update_routes(self, addresses: Sequence[str], route_version: int) -> None:
        """Write the servers' present addresses (in order of index) and the route version into all routes."""
        for entry in self._entries.values():
            owned = tuple(addresses[owner] for owner in entry.owners)
            entry.route = replace(entry.route, version=route_version, addresses=owned)

    def adopt(
        self, matrices: Sequence[SavedMatrix], addresses: Sequence[str], route_version: int, repartition: bool
    ) -> None:
        """Take over an earlier coordinator's matrices; ``repartition``: partition them for the present servers.

        Without ``repartition``, the servers still have the data. The earlier coordinator may have allocated rows
        without names after it stored the catalog. So rows that the catalog does not list count as used and freed: they
        are set to zero before they are used.
        """
        for saved in matrices:
            bounds = partition_bounds(saved.spec, len(addresses)) if repartition else saved.bounds
            owners = assign_owners(len(bounds) - 1, len(addresses))
            route = Route(route_version, bounds, tuple(addresses[owner] for owner in owners))
            generations = dict(saved.generations)
            fresh, retired = saved.fresh, list(saved.retired)
            if not repartition:
                fresh, retired = saved.spec.rows, [row for row in range(saved.spec.rows) if row not in generations]
            entry = Entry(saved.id, saved.spec, route, owners, fresh, retired, set(generations), generations)
            self._entries[saved.id] = entry
            self.names.update({name: (saved.id, row) for name, row in saved.names.items()})
            self.next_generation = max(
                self.next_generation, *(generation + 1 for generation in generations.values()), 0
            )

    def add(self, entry: Entry) -> None:
        self._entries[entry.id] = entry

    def remove(self, id: int) -> None:
        self._entries.pop(id, None)
        self.names = {name: vector for name, vector in self.names.items() if vector[0] != id}

    def check_name(self, name: str) -> None:
        """Raise ConfigError if a vector with this name exists."""
        if name in self.names:
            matrix, row = self.names[name]
            raise ConfigError(
                f"name {name!r} belongs to row {row} of matrix {matrix:x} already; free that vector first, or get it "
                f"by ps.vector({name!r})"
            )

    def find(self, name: str) -> tuple[int, int]:
        """Return (matrix, row) of a named vector. If it does not exist, raise NotFoundError with a list of names."""
        if name not in self.names:
            names = ", ".join(sorted(self.names)[:MAX_NAMES]) + ("" if len(self.names) <= MAX_NAMES else ", ...")
            raise NotFoundError(f"there is no vector {name!r}; expected one of {names or '(none)'}")
        return self.names[name]

    def allocate(self, entry: Entry, grant: Grant, name: str = "") -> None:
        """Mark rows as in use; give the first row a name, unless ``name`` is ""."""
        if name:
            self.check_name(name)
            self.names[name] = entry.id, grant.rows[0]
        entry.allocate(grant, self.next_generation)
        self.next_generation += len(grant.rows)

    def retire(self, entry: Entry, rows: Sequence[int]) -> list[int]:
        """Mark rows as no longer in use, and remove their names; return the rows that were in use."""
        freed = entry.retire(rows)
        freed_rows = set(freed)
        self.names = {
            name: (id, row) for name, (id, row) in self.names.items() if not (id == entry.id and row in freed_rows)
        }
        return freed

    def get(self, id: int) -> Entry:
        if id not in self._entries:
            raise NotFoundError(f"matrix {id:x} does not exist (any more)")
        return self._entries[id]

    def saved(self) -> list[SavedMatrix]:
        """Return the descriptions of all matrices for a checkpoint's manifest; their lists of files are empty."""
        return [
            SavedMatrix(
                id=entry.id,
                spec=entry.spec,
                bounds=entry.route.bounds,
                generations=dict(entry.generations),
                names={name: row for name, (matrix, row) in self.names.items() if matrix == entry.id},
                fresh=entry.fresh,
                retired=tuple(entry.retired),
                shards=(),
            )
            for entry in self._entries.values()
        ]

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def ids(self) -> list[int]:
        return list(self._entries)
