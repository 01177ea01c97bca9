"""Snapshots of a fleet without its driver, for ``ps2 dashboard``. Asks the servers only while there are viewers."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence

from ps2.dashboard.event_log import MAX_EVENTS, EventLog
from ps2.dashboard.fleet_view import (
    CatalogMatrix,
    ServerHealth,
    ServerReports,
    fleet_view,
    operation_views,
    vectors_view,
)
from ps2.dashboard.snapshot import Snapshot, to_json
from ps2.errors import TransientError
from ps2.rpc.catalogs import names_by_matrix
from ps2.rpc.control import ServerControl
from ps2.transport.concurrent_calls import call_concurrently
from ps2.version import __version__

# Seconds between two requests for the names of vectors, which rarely change.
NAMES_INTERVAL_S = 10.0
NOTE = "runs, trainings and recoveries are on the page of the fleet's driver (ps.dashboardUrl)"


class FleetWatcher:
    """Asks the servers of one fleet for their state, and makes snapshots of it."""

    def __init__(self, control: ServerControl, addresses: Sequence[str]) -> None:
        self._control = control
        self._addresses = tuple(addresses)
        self._reports = ServerReports()
        self._events = EventLog()
        # By address: time of the last answer; error of the last call (None: it succeeded); server id.
        self._answer_s = dict.fromkeys(addresses, time.monotonic())
        self._faults: dict[str, str | None] = dict.fromkeys(addresses)
        self._ids: dict[str, str] = {}
        self._names: Mapping[int, Sequence[str]] = {}  # names of vectors by matrix
        self._names_read_s = -NAMES_INTERVAL_S

    def snapshot(self) -> bytes:
        """Ask all servers, and return the snapshot as JSON."""
        start_s = time.monotonic()
        call_concurrently(self._addresses, self._ask)
        if start_s - self._names_read_s >= NAMES_INTERVAL_S:
            self._names_read_s = start_s
            available = [address for address, fault in self._faults.items() if fault is None]
            names = vector_names(call_concurrently(available, self._catalog))
            self._names = {id: sorted(rows) for id, rows in names.items()}
        now_s, reports = time.monotonic(), self._reports.all()
        health = [
            ServerHealth(
                *(index, self._ids.get(address, ""), address, now_s - self._answer_s[address]),
                why=self._faults[address],
                is_recoverable=False,
            )
            for index, address in enumerate(self._addresses)
        ]
        operations, left_out = operation_views(reports.values())
        events, dropped = self._events.newest(MAX_EVENTS)
        return to_json(
            Snapshot(
                fleet_id=",".join(self._addresses[:3]),
                at_s=time.time(),
                version=__version__,
                where=f"{socket.gethostname()}, process {os.getpid()}",
                note=NOTE,
                fleet=fleet_view(health, reports, now_s),
                vectors=vectors_view(self._matrices(), len(self._addresses), reports),
                operations=operations,
                operations_left_out=left_out,
                events=events,
                dropped_events=dropped,
                took_s=round(now_s - start_s, 4),
            )
        )

    def vectors(self, begin: int, find: str) -> bytes:
        """Return a page of the table of matrices of the last snapshot as JSON; see ``vectors_view``."""
        return to_json(vectors_view(self._matrices(), len(self._addresses), self._reports.all(), begin, find))

    def _ask(self, address: str) -> None:
        index, previous_fault = self._addresses.index(address), self._faults[address]
        try:
            status = self._control.status(address)
        except TransientError as error:
            self._faults[address] = fault = str(error).removeprefix(f"{address}: ")
            if previous_fault is None:
                self._events.add("lost", f"server {index} ({address}) does not answer: {fault}")
            return
        if previous_fault is not None:
            self._events.add("recovery", f"server {index} ({address}) answers again")
        self._faults[address], self._answer_s[address], self._ids[address] = None, time.monotonic(), status.server_id
        self._reports.add(index, status)

    def _catalog(self, address: str) -> bytes:
        try:
            return self._control.hello(address).catalog
        except TransientError:
            return b""

    def _matrices(self) -> list[CatalogMatrix]:
        owners: dict[int, dict[int, int]] = {}
        matrices = {}
        for index, report in self._reports.all().items():
            for matrix in report.status.matrices:
                matrices[matrix.matrix] = matrix
                owners.setdefault(matrix.matrix, {}).update((partition.index, index) for partition in matrix.partitions)
        return [
            CatalogMatrix(
                *(id, matrix.spec, matrix.rows),
                owners=[owners[id][partition] for partition in sorted(owners[id])],
                names=self._names.get(id, ()),
            )
            for id, matrix in matrices.items()
        ]


def vector_names(catalogs: Iterable[bytes]) -> Mapping[int, Mapping[str, int]]:
    """Return the rows of named vectors (matrix -> name -> row) from the newest catalog that a driver has stored."""
    return names_by_matrix(catalogs)
