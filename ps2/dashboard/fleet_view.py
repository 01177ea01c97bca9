"""The page's tables of servers, operations and matrices, computed from the servers' reports and the catalog."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Any

from ps2.dashboard.snapshot import FleetView, MatrixView, OperationView, ServerView, VectorsView
from ps2.matrix.partition import DTYPES, MatrixSpec
from ps2.rpc.server_status import MatrixStatus, OperationStatus, ServerStatus

# The maximum numbers of rows of the page's tables, and of names of one matrix.
MAX_SERVERS = 128
MAX_OPERATIONS = 40
MAX_MATRICES = 100
MAX_NAMES = 6
# The maximum age of a report that is shown as the current state.
STALE_S = 5.0
# The fields of ``ServerView`` that are copied from ``ServerStatus``.
STATUS_FIELDS = (
    *("uptime_s", "memory_bytes", "memory_limit_bytes", "rss_bytes", "waiting", "failed", "connections"),
    *("copies_bytes", "backup", "behind", "node"),
)
# The fields of ``ServerView`` that are rates per second, and the counters in ``ServerStatus`` they are computed from.
RATES = {
    "requests_per_s": "requests",
    "bytes_in_per_s": "bytes_in",
    "bytes_out_per_s": "bytes_out",
    "lock_wait": "lock_wait_s",
}
# The fields of ``FleetView`` that are sums over its servers.
SUMS = ("memory_bytes", "memory_limit_bytes", *RATES, "copies_bytes")
# Servers send reports for so long after the last request.
REQUESTED_S = 5.0


@dataclass(frozen=True)
class ServerReport:
    """A server's status, the time of its arrival, and the previous status of the same process, for rates.

    ``arrived_s`` is in seconds of the monotonic clock. ``previous`` is None without a recent previous status.
    """

    status: ServerStatus
    arrived_s: float
    previous: ServerStatus | None = None

    @property
    def interval_s(self) -> float:
        """The seconds between the two statuses, measured by the server; 0 without a previous status."""
        return 0.0 if self.previous is None else self.status.uptime_s - self.previous.uptime_s


class ServerReports:
    """The last two reports of each server, by index. Servers send reports only on request. Thread-safe."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._reports: dict[int, ServerReport] = {}
        self._requested_until_s = 0.0

    def request(self) -> None:
        """Let the servers send reports with all heartbeats of the next ``REQUESTED_S`` seconds."""
        self._requested_until_s = self._now_s() + REQUESTED_S

    @property
    def are_requested(self) -> bool:
        return self._now_s() < self._requested_until_s

    def add(self, index: int, status: ServerStatus) -> None:
        """Add a report. Keep the last report for rates, unless it is old or came from another process."""
        now_s = self._now_s()
        with self._lock:
            last = self._reports.get(index)
            is_same = last is not None and last.status.server_id == status.server_id
            is_recent = last is not None and now_s - last.arrived_s < 2 * REQUESTED_S
            previous = last.status if last is not None and is_same and is_recent else None
            if previous is not None and status.uptime_s <= previous.uptime_s:
                return  # an older report that arrived late
            self._reports[index] = ServerReport(status, now_s, previous)

    def all(self) -> dict[int, ServerReport]:
        with self._lock:
            return dict(self._reports)


@dataclass(frozen=True)
class ServerHealth:
    """The state of a server.

    Attributes:
        silent_s: seconds since its last sign of life.
        why: the reason why the server is lost or being replaced; None: it is neither.
        is_recoverable: True if the coordinator replaces lost servers.
    """

    index: int
    server_id: str
    address: str
    silent_s: float
    why: str | None
    is_recoverable: bool = True


@dataclass(frozen=True)
class CatalogMatrix:
    """A matrix of the catalog.

    Attributes:
        rows: the number of rows in use.
        owners: the index of each partition's server.
        names: the names of its named vectors.
    """

    id: int
    spec: MatrixSpec
    rows: int
    owners: Sequence[int]
    names: Sequence[str]


def fleet_view(
    health: Sequence[ServerHealth], reports: Mapping[int, ServerReport], now_s: float, silent_after_s: float = STALE_S
) -> FleetView:
    """Return the servers and sums over them. A server is silent ``silent_after_s`` after its last heartbeat."""
    servers = [_server(server, reports.get(server.index), now_s, silent_after_s) for server in health]
    # Show servers that are not running first, if there are more servers than rows.
    by_state = sorted(servers, key=lambda server: (server.state == "running", server.index))
    return FleetView(
        servers=len(servers),
        running=sum(server.state == "running" for server in servers),
        **{name: sum(getattr(server, name) or 0 for server in servers) for name in SUMS},
        states=Counter(server.state for server in servers),
        shown=tuple(sorted(by_state[:MAX_SERVERS], key=lambda server: server.index)),
    )


def operation_views(reports: Iterable[ServerReport]) -> tuple[tuple[OperationView, ...], int]:
    """Sum the operations over all servers; return the slowest ones in total, and the number of omitted ones."""
    sums: dict[str, list[float]] = {}
    for report in reports:
        previous = (
            {} if report.previous is None else {operation.name: operation for operation in report.previous.operations}
        )
        interval_s = report.interval_s or math.inf
        for operation in report.status.operations:
            earlier = previous.get(operation.name, OperationStatus(operation.name, 0, 0, 0.0, 0))
            rates = (operation.count - earlier.count) / interval_s, (operation.seconds - earlier.seconds) / interval_s
            values = (operation.count, operation.failures, operation.seconds, operation.keys, *rates)
            totals = sums.get(operation.name, [0.0] * 6)
            sums[operation.name] = [total + value for total, value in zip(totals, values, strict=True)]
    views = [
        OperationView(name, int(count), int(failures), seconds, seconds / count if count else 0.0, int(keys), *rates)
        for name, (count, failures, seconds, keys, *rates) in sums.items()
    ]
    views.sort(key=lambda view: (-view.seconds, view.name))
    return tuple(views[:MAX_OPERATIONS]), max(0, len(views) - MAX_OPERATIONS)


def vectors_view(
    matrices: Sequence[CatalogMatrix], servers: int, reports: Mapping[int, ServerReport], begin: int = 0, find: str = ""
) -> VectorsView:
    """Return a page of the table of matrices, in descending order of size.

    ``find``: text that a vector's name or the matrix's id must contain; "": all matrices. ``begin``: index of the first
    matrix on the page.
    """
    statuses: dict[int, list[MatrixStatus]] = {}
    for report in reports.values():
        for matrix_status in report.status.matrices:
            statuses.setdefault(matrix_status.matrix, []).append(matrix_status)
    sizes = {matrix.id: _bytes(matrix, statuses.get(matrix.id, ())) for matrix in matrices}
    text = find.casefold()
    matching = [
        matrix
        for matrix in matrices
        if not text or text in f"{matrix.id:x}" or any(text in name.casefold() for name in matrix.names)
    ]
    begin = min(max(0, begin), max(0, len(matching) - 1)) // MAX_MATRICES * MAX_MATRICES
    largest = nlargest(begin + MAX_MATRICES, matching, key=lambda matrix: (sizes[matrix.id] or 0, -matrix.id))
    return VectorsView(
        servers=servers,
        matrices=len(matrices),
        rows=sum(matrix.rows for matrix in matrices),
        bytes=sum(size or 0 for size in sizes.values()),
        found=len(matching),
        begin=begin,
        shown=tuple(
            _matrix(matrix, sizes[matrix.id], statuses.get(matrix.id, ()), servers) for matrix in largest[begin:]
        ),
    )


def _server(health: ServerHealth, report: ServerReport | None, now_s: float, silent_after_s: float) -> ServerView:
    if health.why is not None:
        state = "recovering" if health.is_recoverable else "lost"
    else:
        state = "silent" if health.silent_s > silent_after_s else "running"
    view = ServerView(health.index, health.address, state, health.why or "", health.silent_s)
    if report is None or report.status.server_id != health.server_id or now_s - report.arrived_s > STALE_S:
        return view
    status, previous = report.status, report.previous
    copied = {name: getattr(status, name) for name in STATUS_FIELDS}
    rates: dict[str, Any] = dict.fromkeys(RATES)
    if previous is not None:
        differences = [(name, getattr(status, field) - getattr(previous, field)) for name, field in RATES.items()]
        rates |= {name: difference / report.interval_s for name, difference in differences}
    return replace(view, **copied, **rates)


def _bytes(matrix: CatalogMatrix, statuses: Sequence[MatrixStatus]) -> int | None:
    """Return the size in bytes: from the servers' reports, else from a dense matrix's shape, else None."""
    if len(statuses) == len(set(matrix.owners)):
        return sum(status.bytes for status in statuses)
    spec = matrix.spec
    return None if spec.kind == "sparse" else spec.rows * spec.dim * DTYPES[spec.dtype].itemsize


def _matrix(matrix: CatalogMatrix, size: int | None, statuses: Sequence[MatrixStatus], servers: int) -> MatrixView:
    partitions = [0] * servers
    for owner in matrix.owners:
        partitions[owner] += 1
    return MatrixView(
        id=f"{matrix.id:x}",
        names=tuple(matrix.names[:MAX_NAMES]),
        named=len(matrix.names),
        kind=matrix.spec.kind,
        layout=matrix.spec.layout,
        dtype=matrix.spec.dtype,
        dim=matrix.spec.dim,
        rows=matrix.rows,
        reserved=matrix.spec.rows,
        bytes=size,
        keys=sum(status.active_keys for status in statuses) if matrix.spec.kind == "sparse" and statuses else None,
        partitions=tuple(partitions[:MAX_SERVERS]),
    )
