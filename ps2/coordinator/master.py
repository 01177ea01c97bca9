"""The master: the coordinator's knowledge of servers and matrices, and its gRPC face."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ps2.config import FleetConfig, WireConfig
from ps2.coordinator.catalog import Catalog, Entry, Grant
from ps2.coordinator.membership import Membership
from ps2.errors import LimitError, ProtocolError, PS2Error, UnavailableError
from ps2.partition import MatrixSpec
from ps2.wire.control import ServerControl
from ps2.wire.convert import route_to_pb, spec_from_pb, spec_to_pb
from ps2.wire.messages import PROTOCOL_VERSION
from ps2.wire.pb import master_pb2 as pb
from ps2.wire.serving import RpcServer

log = logging.getLogger(__name__)

THREADS = 16
# The context looks after the processes more often than that.
VERDICT_TIMEOUT_S = 1.0


class Master:
    """Hands out matrices and rows; knows which servers are there. Safe for threads."""

    def __init__(self, servers: ServerControl, config: FleetConfig) -> None:
        self.config = config
        self._servers = servers
        self._lock = threading.RLock()  # of what is known here; never held while a server is asked
        self._changing = threading.Lock()  # one change of rows at a time; taken before the other
        self._changed = threading.Condition(self._lock)
        self._membership = Membership(config.lost_after_s)
        self._catalog = Catalog(secrets.randbits(30) << 32)

    # -- servers ---------------------------------------------------------------------------------------------------

    def register(self, index: int, server_id: str, address: str) -> None:
        with self._changed:
            self._membership.register(index, server_id, address, time.monotonic())
            self._changed.notify_all()
        log.info("server %d is at %s", index, address)

    def heartbeat(self, index: int, server_id: str) -> None:
        with self._lock:
            self._membership.heartbeat(index, server_id, time.monotonic())

    def alive(self, index: int) -> None:
        """Note that a server was found alive by asking it."""
        with self._lock:
            member = self._membership.members[index]
            if not member.ended:
                self._membership.heartbeat(index, member.server_id, time.monotonic())

    def ended(self, index: int, reason: str) -> None:
        with self._changed:
            self._membership.ended(index, reason)
            self._changed.notify_all()

    def tick(self) -> None:
        with self._lock:
            for index in self._membership.tick(time.monotonic()):
                log.warning("server %d is lost: %s", index, self._membership.members[index].gone)

    def wait_registered(self, count: int, timeout_s: float) -> bool:
        """Wait until ``count`` servers have registered; tell whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._membership.members) >= count, timeout_s)

    def registered(self, index: int) -> bool:
        with self._lock:
            return index in self._membership.members

    def addresses(self) -> list[str]:
        """Return the address of each server, by index."""
        with self._lock:
            return [member.address for _, member in sorted(self._membership.members.items())]

    # -- matrices --------------------------------------------------------------------------------------------------

    def new_matrix(self, spec: MatrixSpec) -> Entry:
        """Allocate a matrix on all servers, or on none, and hand out its row 0."""
        with self._lock:
            lost = self._membership.lost()
            if lost:
                raise UnavailableError("; ".join(lost.values()))
            entry = self._catalog.plan(spec, self.addresses())
        try:
            with self._explaining():
                for address in entry.route.servers:
                    self._servers.create_matrix(address, entry.id, spec, entry.partitions_on(address))
        except PS2Error:
            self._drop(entry)
            raise
        with self._lock:
            entry.hand_out(entry.grant(1))
            self._catalog.add(entry)
        return entry

    def matrix(self, id: int) -> tuple[Entry, list[str]]:
        """Return a matrix, and why servers of it are lost."""
        with self._lock:
            entry, lost = self._catalog.get(id), self._membership.lost()
            return entry, [lost[address] for address in entry.route.servers if address in lost]

    def take_rows(self, id: int, count: int, reserved: bool) -> Sequence[int]:
        """Hand out rows as zeros: ``count`` of them, or all that are reserved and not in use."""
        with self._changing:
            with self._lock:
                entry = self._catalog.get(id)
                grant = entry.grant_reserved() if reserved else entry.grant(count)
            if grant.total > entry.spec.rows:
                grant = self._grow(entry, grant)
            if grant.reused:
                self._update_rows(entry, reused=grant.reused)
            with self._lock:
                entry.hand_out(grant)
            return grant.rows

    def free_rows(self, id: int, rows: Sequence[int]) -> None:
        """Take rows back; drop the matrix with its last one. Rows that are not in use are left alone."""
        with self._changing:
            with self._lock:
                if id not in self._catalog.ids():
                    return
                entry = self._catalog.get(id)
                freed = entry.retire(rows)
                if not entry.used:
                    self._catalog.remove(id)
            if not entry.used:
                self._drop(entry)
            elif freed:
                self._update_rows(entry, freed=freed)

    def free_all(self) -> None:
        """Drop every matrix (of a fleet that lives on without us)."""
        with self._changing:
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
        except LimitError:
            needed = max(grant.rows) + 1
            if needed == grant.total:
                raise
            self._update_rows(entry, rows=needed)
            return Grant(grant.rows, grant.reused, needed)

    def _update_rows(self, entry: Entry, rows: int = 0, freed: Sequence[int] = (), reused: Sequence[int] = ()) -> None:
        with self._explaining():
            for address in entry.route.servers:
                self._servers.update_rows(address, entry.id, rows, freed, reused)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Tell why a server cannot be reached, if that is known in a moment: its process may just have ended."""
        try:
            yield
        except UnavailableError as error:
            with self._changed:
                lost = self._changed.wait_for(self._membership.lost, VERDICT_TIMEOUT_S)
            if not lost:
                raise
            raise UnavailableError("; ".join(lost.values())) from error

    def _drop(self, entry: Entry) -> None:
        for address in entry.route.servers:
            try:
                self._servers.free_matrix(address, entry.id)
            except PS2Error as error:
                # A server that is gone holds nothing of the matrix any more.
                log.warning("freeing matrix %x on %s: %s", entry.id, address, error)


class MasterServicer:
    """Method by method what ``service Master`` of the contract says."""

    def __init__(self, master: Master) -> None:
        self._master = master

    def Register(self, request: pb.RegisterRequest) -> pb.RegisterReply:
        if request.protocol != PROTOCOL_VERSION:
            raise ProtocolError(f"this master speaks protocol {PROTOCOL_VERSION}, the server {request.protocol}")
        self._master.register(request.index, request.server_id, request.address)
        return pb.RegisterReply(heartbeat_interval_s=self._master.config.heartbeat_s)

    def Heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatReply:
        self._master.heartbeat(request.index, request.server_id)
        return pb.HeartbeatReply()

    def NewMatrix(self, request: pb.NewMatrixRequest) -> pb.Matrix:
        return _matrix_to_pb(self._master.new_matrix(spec_from_pb(request.spec)), [])

    def GetMatrix(self, request: pb.GetMatrixRequest) -> pb.Matrix:
        return _matrix_to_pb(*self._master.matrix(request.matrix))

    def TakeRows(self, request: pb.TakeRowsRequest) -> pb.TakeRowsReply:
        return pb.TakeRowsReply(rows=self._master.take_rows(request.matrix, request.count, request.reserved))

    def FreeRows(self, request: pb.FreeRowsRequest) -> pb.FreeRowsReply:
        self._master.free_rows(request.matrix, request.rows)
        return pb.FreeRowsReply()


def listen(master: Master, bind: str, token: str | None) -> RpcServer:
    """Start the master's gRPC face."""
    service = pb.DESCRIPTOR.services_by_name["Master"]
    return RpcServer(service, MasterServicer(master), bind, token, THREADS, WireConfig())


def _matrix_to_pb(entry: Entry, lost: list[str]) -> pb.Matrix:
    return pb.Matrix(id=entry.id, spec=spec_to_pb(entry.spec), route=route_to_pb(entry.route), lost=lost)
