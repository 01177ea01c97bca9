"""Servers, operations and matrices as the page shows them: pure functions of what the coordinator knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest

from ps2.dashboard.server_reports import ServerReport
from ps2.dashboard.snapshot import FleetView, MatrixView, OperationView, ServerView, VectorsView
from ps2.matrix.partition import DTYPES, MatrixSpec
from ps2.rpc.server_status import MatrixStatus, OperationStatus

# The longest tables; the page says how much they leave out.
MAX_SERVERS = 128
MAX_OPERATIONS = 40
MAX_MATRICES = 100
MAX_NAMES = 6
# A report that is older does not say how things are now.
STALE_S = 5.0


@dataclass(frozen=True)
class ServerHealth:
    """What the coordinator knows of a server: ``why`` it is lost or being replaced, None if it is neither."""

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
        rows: in use.
        owners: index of the server of each partition.
        names: of its vectors.
    """

    id: int
    spec: MatrixSpec
    rows: int
    owners: Sequence[int]
    names: Sequence[str]


def fleet_of(
    health: Sequence[ServerHealth], reports: Mapping[int, ServerReport], now_s: float, silent_after_s: float = STALE_S
) -> FleetView:
    """Return all servers.

    Args:
        now_s: on the clock of the reports.
        silent_after_s: a server without a sign of life for so long is silent.
    """
    servers = [_server(one, reports.get(one.index), now_s, silent_after_s) for one in health]
    worst_first = sorted(servers, key=lambda server: (server.state == "running", server.index))
    return FleetView(
        servers=len(servers),
        running=sum(server.state == "running" for server in servers),
        memory_bytes=sum(server.memory_bytes or 0 for server in servers),
        memory_limit_bytes=sum(server.memory_limit_bytes or 0 for server in servers),
        requests_per_s=sum(server.requests_per_s or 0.0 for server in servers),
        bytes_in_per_s=sum(server.bytes_in_per_s or 0.0 for server in servers),
        bytes_out_per_s=sum(server.bytes_out_per_s or 0.0 for server in servers),
        lock_wait=sum(server.lock_wait or 0.0 for server in servers),
        copies_bytes=sum(server.copies_bytes or 0 for server in servers),
        states=Counter(server.state for server in servers),
        shown=tuple(sorted(worst_first[:MAX_SERVERS], key=lambda server: server.index)),
    )


def operations_of(reports: Iterable[ServerReport]) -> tuple[tuple[OperationView, ...], int]:
    """Sum the operations over all servers; return the slowest in total, and how many are left out."""
    sums: dict[str, list[float]] = {}
    for report in reports:
        before = {} if report.before is None else {done.name: done for done in report.before.operations}
        for done in report.status.operations:
            earlier = before.get(done.name, OperationStatus(done.name, 0, 0, 0.0, 0))
            interval_s = report.interval_s
            per_s, busy = (
                ((done.count - earlier.count) / interval_s, (done.seconds - earlier.seconds) / interval_s)
                if interval_s
                else (0.0, 0.0)
            )
            found = sums.setdefault(done.name, [0.0] * 6)
            for place, number in enumerate((done.count, done.failures, done.seconds, done.keys, per_s, busy)):
                found[place] += number
    views = [
        OperationView(name, int(count), int(failures), seconds, seconds / count if count else 0.0, int(keys), *rates)
        for name, (count, failures, seconds, keys, *rates) in sums.items()
    ]
    views.sort(key=lambda view: (-view.seconds, view.name))
    return tuple(views[:MAX_OPERATIONS]), max(0, len(views) - MAX_OPERATIONS)


def vectors_of(
    held: Sequence[CatalogMatrix], servers: int, reports: Mapping[int, ServerReport], begin: int = 0, find: str = ""
) -> VectorsView:
    """Return a page of the matrices, those with the most bytes first.

    Args:
        begin: number of the first one on the page.
        find: only matrices with this text in a vector's name, or in their id.
    """
    on_servers: dict[int, list[MatrixStatus]] = {}
    for report in reports.values():
        for status in report.status.matrices:
            on_servers.setdefault(status.matrix, []).append(status)
    sizes = {one.id: _bytes(one, on_servers.get(one.id, ())) for one in held}
    text = find.casefold()
    found = [one for one in held if not text or text in f"{one.id:x}" or any(text in n.casefold() for n in one.names)]
    begin = min(max(0, begin), max(0, len(found) - 1)) // MAX_MATRICES * MAX_MATRICES
    largest = nlargest(begin + MAX_MATRICES, found, key=lambda one: (sizes[one.id] or 0, -one.id))
    return VectorsView(
        servers=servers,
        matrices=len(held),
        rows=sum(one.rows for one in held),
        bytes=sum(size or 0 for size in sizes.values()),
        found=len(found),
        begin=begin,
        shown=tuple(_matrix(one, sizes[one.id], on_servers.get(one.id, ()), servers) for one in largest[begin:]),
    )


def _server(health: ServerHealth, report: ServerReport | None, now_s: float, silent_after_s: float) -> ServerView:
    if health.why is not None:
        state = "recovering" if health.is_recoverable else "lost"
    else:
        state = "silent" if health.silent_s > silent_after_s else "running"
    plain = ServerView(health.index, health.address, state, health.why or "", health.silent_s)
    if report is None or report.status.server_id != health.server_id or now_s - report.at_s > STALE_S:
        return plain
    status, before, interval_s = report.status, report.before, report.interval_s

    def rate(name: str) -> float | None:
        return None if before is None else (getattr(status, name) - getattr(before, name)) / interval_s

    return ServerView(
        *(health.index, health.address, state, health.why or "", health.silent_s),
        uptime_s=status.uptime_s,
        memory_bytes=status.memory_bytes,
        memory_limit_bytes=status.memory_limit_bytes,
        rss_bytes=status.rss_bytes,
        requests_per_s=rate("requests"),
        bytes_in_per_s=rate("bytes_in"),
        bytes_out_per_s=rate("bytes_out"),
        lock_wait=rate("lock_wait_s"),
        waiting=status.waiting,
        failed=status.failed,
        connections=status.connections,
        copies_bytes=status.copies_bytes,
        backup=status.backup,
        behind=status.behind,
        node=status.node,
    )


def _bytes(held: CatalogMatrix, found: Sequence[MatrixStatus]) -> int | None:
    """Return the size of a matrix: what its servers say, or of a dense one what follows from its shape."""
    if len(found) == len(set(held.owners)):
        return sum(status.bytes for status in found)
    spec = held.spec
    return None if spec.kind == "sparse" else spec.rows * spec.dim * DTYPES[spec.dtype].itemsize


def _matrix(held: CatalogMatrix, size: int | None, found: Sequence[MatrixStatus], servers: int) -> MatrixView:
    partitions = [0] * servers
    for owner in held.owners:
        partitions[owner] += 1
    return MatrixView(
        id=f"{held.id:x}",
        names=tuple(held.names[:MAX_NAMES]),
        named=len(held.names),
        kind=held.spec.kind,
        layout=held.spec.layout,
        dtype=held.spec.dtype,
        dim=held.spec.dim,
        rows=held.rows,
        reserved=held.spec.rows,
        bytes=size,
        keys=sum(status.active_keys for status in found) if held.spec.kind == "sparse" and found else None,
        partitions=tuple(partitions[:MAX_SERVERS]),
    )
