"""The master: the coordinator's knowledge of matrices and rows, and of when the fleet goes back."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ps2.config import FleetConfig
from ps2.coordinator.catalog import Catalog, Entry, Grant, Taken
from ps2.coordinator.ledger import LateRow, LateRows, Ledger
from ps2.coordinator.recovery import backup_of
from ps2.coordinator.releases import Releases
from ps2.coordinator.roster import Roster
from ps2.errors import (
    BusyError,
    LimitError,
    ProtocolError,
    PS2Error,
    RecoveringError,
    StoppedError,
)
from ps2.matrix.partition import MatrixSpec
from ps2.matrix.route import Route
from ps2.protocol.messages import RequestId
from ps2.rpc.control import ServerControl
from ps2.server.applied import EndedStages
from ps2.storage.manifest import SavedMatrix

log = logging.getLogger(__name__)

CHANGING_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Located:
    """A matrix; why servers of it are lost for good, or are being replaced; and what the fleet last went back to."""

    entry: Entry
    lost: tuple[str, ...]
    recovering: tuple[str, ...]
    epoch: int
    step: int | None


@dataclass(frozen=True)
class Caller:
    """Who asks for rows.

    Attributes:
        id: of the call: equal in every attempt.
        holder: who gets the handles: a session, or one attempt of a task.
    """

    id: RequestId
    holder: str

    @property
    def taken(self) -> Taken:
        return Taken(self.id.series, self.id.stage, {self.holder})


class Master:
    """Hands out matrices and rows. Safe for threads."""

    def __init__(self, servers: ServerControl, config: FleetConfig, id: str = "", replicas: int = 0) -> None:
        """Args:
        id: of the fleet that it is the coordinator of.
        replicas: 1 if shards have copies on the next server.
        """
        self._replicas = replicas
        # Called when what a later coordinator has to know has changed.
        self.publish: Callable[[], None] = lambda: None
        # Called when the whole fleet is about to go back to a checkpoint; with epoch and checkpoint when it has.
        self.on_going_back: Callable[[], None] = lambda: None
        self.on_roll_back: Callable[[int, str], None] = lambda epoch, checkpoint: None
        self.id = id
        self.config = config
        # What a fleet goes back to as a whole: how often it has, and the step that it went back to last.
        self.epoch = 0
        self.step: int | None = None
        # The same, once all servers have.
        self.gone_back: tuple[int, int | None] = (0, None)
        self._servers = servers
        self._lock = threading.RLock()  # of what is known here; never held while a server is asked
        self._changing = threading.Lock()  # one change of rows at a time; taken before the other
        self.roster = Roster(config.lost_after_s)
        self._catalog = Catalog(secrets.randbits(30) << 32)
        self._ledger = Ledger()
        self._ended = EndedStages()
        self._late = LateRows()
        self._due: dict[int, dict[int, int]] = {}  # rows of stages that are over, by matrix; with their generations
        self.releases = Releases(servers, self.roster.members)

    # -- recovery --------------------------------------------------------------------------------------------------

    @contextmanager
    def unchanging(self) -> Iterator[None]:
        """Let nobody change matrices or rows meanwhile; wait for those that are at it."""
        with self._changing:
            yield

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Let nobody else change matrices or rows meanwhile.

        Raises:
            RecoveringError: somebody else does, for long; calls must not take all threads from the signs of life.
        """
        if not self._changing.acquire(timeout=CHANGING_TIMEOUT_S):
            raise RecoveringError("a server is being brought back, or a checkpoint made; no matrix changes meanwhile")
        try:
            yield
        finally:
            self._changing.release()

    def rehome(self) -> None:
        """Raise the route version, and note where servers are now."""
        with self._lock:
            self._servers.route_version += 1
            self._catalog.rehome(self.roster.addresses(), self._servers.route_version)

    def roll_back(self, step: int | None) -> None:
        """Note that the whole fleet is about to go back to a checkpoint.

        The route version is another one from here on: who has a route to what the servers will hold also knows that it
        has gone back, and who does not know that cannot reach it.
        """
        with self._lock:
            # First, so that no worker who knows already does what counts.
            self.on_going_back()
            self.epoch += 1
            self.step = step
            self.rehome()

    def rolled_back(self, checkpoint: str) -> None:
        """Note that all servers have gone back to a checkpoint: who has not been told yet gets RolledBack."""
        with self._lock:
            self.gone_back = self.epoch, self.step
        self.on_roll_back(self.epoch, checkpoint)

    def where(self, entry: Entry) -> tuple[Route, int]:
        """Return the route of a matrix, and how often the fleet had gone back when it was made."""
        with self._lock:
            return entry.route, self.epoch

    def stages_over(self) -> list[tuple[str, int, list[int]]]:
        """Return which stages are over: series, the number below which they are, and the live ones."""
        with self._lock:
            return self._ended.all()

    def entries(self) -> list[Entry]:
        with self._lock:
            return self._catalog.entries()

    def names(self) -> dict[str, tuple[int, int]]:
        """Return matrix and row of each vector that has a name."""
        with self._lock:
            return dict(self._catalog.names)

    def adopt(self, matrices: Sequence[SavedMatrix], cut_anew: bool) -> None:
        """Take matrices of an earlier coordinator as one's own.

        Args:
            cut_anew: into as many partitions as there are servers now; else they are where they are.
        """
        with self._lock:
            self._catalog.adopt(matrices, self.roster.addresses(), self._servers.route_version, cut_anew)

    # -- matrices --------------------------------------------------------------------------------------------------

    def new_matrix(self, spec: MatrixSpec, name: str = "", caller: Caller | None = None) -> Entry:
        """Allocate a matrix on all servers, or on none, and hand out its row 0.

        Args:
            name: of row 0; may be empty.
            caller: the same call again, by its id, gets the same matrix.
        """
        if caller is None:
            return self._new_matrix(spec, name)
        entry = self._ledger.once(caller.id, lambda: self._new_matrix(spec, name))
        with self._lock:
            entry.hold([0], caller.taken)
        return entry

    def _new_matrix(self, spec: MatrixSpec, name: str) -> Entry:
        with self.changing():
            with self._lock:
                self._catalog.check_name(name)
                self.roster.check_all_there()
                entry = self._catalog.plan(spec, self.roster.addresses(), self._servers.route_version)
            try:
                with self.roster.explaining():
                    self._allocate(entry)
                with self._lock:
                    self._catalog.hand_out(entry, entry.grant(1), name)
                    self._catalog.add(entry)
            except PS2Error:
                self._drop(entry)
                raise
            if name:
                self.publish()
        return entry

    def _allocate(self, entry: Entry) -> None:
        addresses = self.roster.addresses()
        for index, address in enumerate(addresses):
            if partitions := entry.partitions_of(index):
                if self._replicas:  # copies first: what reaches the shard is forwarded at once
                    backup = addresses[backup_of(index, len(addresses))]
                    self._servers.create_matrix(backup, entry.id, entry.spec, partitions, copies=True)
                self._servers.create_matrix(address, entry.id, entry.spec, partitions)

    def _holders(self, entry: Entry) -> list[int]:
        """Return the index of each server that has shards of a matrix, or copies of them."""
        owners = set(entry.owners)
        if self._replicas:
            owners |= {backup_of(owner, len(self.roster.addresses())) for owner in entry.owners}
        return sorted(owners)

    def matrix(self, id: int) -> Located:
        with self._lock:
            entry = self._catalog.get(id)
            lost, recovering = self.roster.gone(entry.owners, entry.route.servers)
            return Located(entry, lost, recovering, self.epoch, self.step)

    def take_rows(self, id: int, count: int = 0, name: str = "", caller: Caller | None = None) -> Sequence[int]:
        """Hand out rows as zeros.

        Args:
            count: how many; 0 is all that are reserved and not in use.
            name: of the row, with a count of 1; may be empty.
            caller: the same call again, by its id, gets the same rows.
        """
        if caller is None:
            return self._take_rows(id, count, name)
        rows = self._ledger.once(caller.id, lambda: self._take_rows(id, count, name))
        with self._lock:
            if id in self._catalog.ids():
                self._catalog.get(id).hold(rows, caller.taken)
        return rows

    def _take_rows(self, id: int, count: int, name: str) -> Sequence[int]:
        if name and count != 1:
            raise ProtocolError(f"name {name!r} goes with one row, not with {count or 'all reserved ones'}")
        with self.changing():
            with self._lock:
                self._catalog.check_name(name)
                entry = self._catalog.get(id)
                grant = entry.grant(count) if count else entry.grant_reserved()
                before = entry.spec.rows
            if grant.total > entry.spec.rows:
                grant = self._grow(entry, grant)
            if grant.reused:
                self._update_rows(entry, reused=grant.reused)
            with self._lock:
                self._catalog.hand_out(entry, grant, name)
            # Of a matrix without names, nobody who comes later could ask for these rows.
            if name or grant.total > before or self._catalog.has_name(id):
                self.publish()
            return grant.rows

    def free_rows(self, id: int, rows: Sequence[int], call: RequestId | None = None) -> None:
        """Take rows back; drop the matrix with its last one. Rows that are not in use are left alone.

        Args:
            call: the same call again, by its id, does nothing. Of a task: the rows are taken back when its stage is
                over, as another attempt of it writes to them again.
        """
        if call is None:
            self._free_rows(id, rows)
        elif not call.series:
            self._ledger.once(call, lambda: self._free_rows(id, rows))
        else:
            with self._lock:
                if self._ended.has(call.series, call.stage):
                    raise StoppedError(f"stage {call.stage} of {call.series} is over: it frees nothing any more")
                born = self._catalog.get(id).born if id in self._catalog.ids() else {}
                for row in set(rows).intersection(born):
                    self._late.add(call.series, call.stage, LateRow(id, row, born[row], orphan=False))

    def drop_rows(self, id: int, rows: Sequence[int], holder: str, call: RequestId | None = None) -> None:
        """Note that a holder's handles to rows are gone; take back those that nobody was handed besides.

        What a task took is taken back when its stage is over: until then another attempt may be handed it.

        Args:
            call: the same call again, by its id, does nothing: the holder may have been handed the rows again.
        """
        if call is None:
            self._drop_rows(id, rows, holder)
        else:
            self._ledger.once(call, lambda: self._drop_rows(id, rows, holder))

    def _drop_rows(self, id: int, rows: Sequence[int], holder: str) -> None:
        now: dict[int, int] = {}
        with self._lock:
            if id not in self._catalog.ids():
                return
            entry = self._catalog.get(id)
            for row in entry.let_go(rows, holder):
                taken = entry.taken[row]
                if not taken.series or self._ended.has(taken.series, taken.stage):
                    now[row] = entry.born[row]
                else:
                    self._late.add(taken.series, taken.stage, LateRow(id, row, entry.born[row], orphan=True))
        if now:
            self._free_rows(id, list(now), now)

    def end_stages(self, series: str, below: int, live: Sequence[int]) -> None:
        """Forget the calls of stages below a number, save the live ones, and take back what they freed."""
        with self._lock:
            self._ended.add(series, below, live)
            due = self._late.take(self._ended)
        self._ledger.end(self._ended)
        with self._lock:
            for late in due:
                if not (late.orphan and self._is_held(late)):  # another attempt may have been handed it since
                    self._due.setdefault(late.matrix, {})[late.row] = late.born
        if due:
            with suppress(RecoveringError), self.changing():  # else they are taken back later
                self._take_due()

    def catch_up(self) -> None:
        """Take back, and let servers free, what could not be when it was time; do nothing if rows just change."""
        if not (self._due or len(self.releases)) or not self._changing.acquire(blocking=False):
            return
        try:
            self._take_due()
            with self._lock:
                free = {entry.id: list(entry.retired) for entry in self._catalog.entries()}
            self.releases.catch_up(free)
        finally:
            self._changing.release()

    def _take_due(self) -> None:
        with self._lock:
            due, self._due = self._due, {}
        for matrix, born in due.items():
            self._free_now(matrix, list(born), born)

    def _is_held(self, late: LateRow) -> bool:
        taken = self._catalog.get(late.matrix).taken.get(late.row) if late.matrix in self._catalog.ids() else None
        return taken is not None and bool(taken.holders)

    def _free_rows(self, id: int, rows: Sequence[int], born: Mapping[int, int] | None = None) -> None:
        """Take rows back; with ``born``, those that are of these generations still."""
        with self.changing():
            self._free_now(id, rows, born)

    def _free_now(self, id: int, rows: Sequence[int], born: Mapping[int, int] | None = None) -> None:
        with self._lock:
            if id not in self._catalog.ids():
                return
            entry = self._catalog.get(id)
            if born is not None:
                rows = [row for row in rows if entry.born.get(row) == born[row]]
            names = len(self._catalog.names)
            freed = self._catalog.retire(entry, rows)
            if not entry.used:
                self._catalog.remove(id)
            renamed = len(self._catalog.names) < names
        if not entry.used:
            self._drop(entry)
        elif freed:
            self.releases.retire(entry.id, freed, self._holders(entry))
        if renamed:
            self.publish()

    def free_all(self) -> None:
        """Drop every matrix (of a fleet that lives on without us)."""
        with self.changing():
            with self._lock:
                entries = [self._catalog.get(id) for id in self._catalog.ids()]
                for entry in entries:
                    self._catalog.remove(entry.id)
            for entry in entries:
                self._drop(entry)

    def _grow(self, entry: Entry, grant: Grant) -> Grant:
        """Grow a matrix generously, or just as far as needed where memory is short."""
        try:
            self._update_rows(entry, rows=grant.total)
            return grant
        except (LimitError, BusyError):
            needed = max(grant.rows) + 1
            if needed == grant.total:
                raise
            self._update_rows(entry, rows=needed)
            return Grant(grant.rows, grant.reused, needed)

    def _update_rows(self, entry: Entry, rows: int = 0, reused: Sequence[int] = ()) -> None:
        with self.roster.explaining():
            addresses = self.roster.addresses()
            for index in self._holders(entry):
                self._servers.update_rows(addresses[index], entry.id, rows, (), reused)

    def _drop(self, entry: Entry) -> None:
        self.releases.free_matrix(entry.id, self._holders(entry))
