"""The state of a fleet (servers, matrices and operations) as dataclasses and as tables of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ps2.config import DEFAULT_NAMESPACE
from ps2.errors import TransientError
from ps2.formats import duration, short_time, size
from ps2.rpc.server_status import KEY_COUNTS, MatrixStatus, OperationStatus, ServerStatus
from ps2.text_tables import Column, Table, to_html
from ps2.transport.concurrent_calls import call_concurrently

if TYPE_CHECKING:
    from ps2.coordinator.master import Master
    from ps2.rpc.control import ServerControl

# Columns of the table of servers: column, attribute of ``ServerStatus``, function that formats the attribute.
SERVER_TABLE: tuple[tuple[Column, str, Callable[[Any], str]], ...] = (
    (Column("up", right=True), "uptime_s", duration),
    (Column("matrices", right=True), "matrices", lambda matrices: f"{len(matrices):,}"),
    (Column("rows", right=True), "rows", "{:,}".format),
    (Column("memory", right=True), "memory_bytes", size),
    (Column("limit", right=True), "memory_limit_bytes", size),
    (Column("requests", right=True), "requests", "{:,}".format),
    (Column("failed", right=True), "failed", "{:,}".format),
    (Column("waiting", right=True), "waiting", "{:,}".format),
    (Column("lock wait", right=True), "lock_wait_s", short_time),
    (Column("in", right=True), "bytes_in", size),
    (Column("out", right=True), "bytes_out", size),
)
SERVER_COLUMNS = (Column("server"), Column("state"), *(column for column, _, _ in SERVER_TABLE))
# Further columns if servers run in containers of a cluster.
CONTAINER_TABLE: tuple[tuple[Column, str, Callable[[Any], str]], ...] = (
    (Column("container"), "container", lambda name: name or "-"),
    (Column("node"), "node", lambda name: name or "-"),
)
MATRIX_COLUMNS = (
    *(Column("matrix"), Column("kind"), Column("layout"), Column("dim", right=True), Column("dtype")),
    *(Column(title, right=True) for title in ("rows", "bytes", "active keys", "waiting", "gone")),
    Column("names", folds=True),
)
# Further columns if matrices are not all of the namespace "default".
OWNER_COLUMNS = (Column("namespace"), Column("coordinator"))
OPERATION_COLUMNS = (
    Column("operation"),
    *(Column(title, right=True) for title in ("count", "failures", "time", "mean", "keys", "keys/s")),
)


@dataclass(frozen=True)
class FleetServer:
    """One server of a fleet.

    Attributes:
        address: ``host:port``.
        status: the server's report: ``memory_bytes``, ``memory_limit_bytes``, ``requests``, ``lock_wait_s`` ...; None
            if the server does not answer.
        error: why the server does not answer; "" if it answers.
    """

    address: str
    status: ServerStatus | None
    error: str = ""

    @property
    def state(self) -> str:
        """ "running" or "unreachable"."""
        return "unreachable" if self.status is None else "running"

    @property
    def as_data(self) -> dict[str, Any]:
        """The server as JSON data for programs."""
        details = {"error": self.error} if self.status is None else self.status.as_data
        return {"address": self.address, "state": self.state, **details}


@dataclass(frozen=True)
class FleetMatrix:
    """One matrix of a fleet, summed over its servers. Counts of keys and slots are None for a dense matrix.

    Attributes:
        id: the matrix's number in hexadecimal, as log and error messages show it.
        kind: "dense" or "sparse".
        layout: "row" or "column".
        dim: number of columns.
        rows: number of rows.
        bytes: memory of the values and, in a sparse matrix, of the keys.
        active_keys, slots: number of keys with a slot, and number of allocated slots.
        waiting_keys, admitted_keys, expired_keys, evicted_keys: counts of managed keys, as in ``DCV.keyStatus``.
        servers: number of servers that hold shards of the matrix.
        names: names of the matrix's vectors, by row.
        namespace: the application that the matrix belongs to.
        coordinator: id of the driver of this namespace, as in log messages; "" if it has none.
    """

    id: str
    kind: str
    layout: str
    dim: int
    dtype: str
    rows: int
    bytes: int
    active_keys: int | None
    slots: int | None
    waiting_keys: int | None
    admitted_keys: int | None
    expired_keys: int | None
    evicted_keys: int | None
    servers: int
    names: list[str]
    namespace: str = DEFAULT_NAMESPACE
    coordinator: str = ""

    @classmethod
    def summed(cls, reports: Sequence[MatrixStatus], rows: Mapping[str, int]) -> FleetMatrix:
        """Sum one matrix over its servers' reports.

        ``rows``: the row of each named vector. If it is empty, the names are those that the servers know.
        """
        spec = reports[0].spec
        rows = rows or {name: row for report in reports for name, row in report.names.items()}
        key_counts: dict[str, Any] = dict.fromkeys(KEY_COUNTS)
        if spec.kind == "sparse":
            key_counts = {name: sum(getattr(report, name) for report in reports) for name in KEY_COUNTS}
        return cls(
            *(f"{reports[0].matrix:x}", spec.kind, spec.layout, spec.dim, spec.dtype),
            rows=max(report.rows for report in reports),
            bytes=sum(report.bytes for report in reports),
            servers=len(reports),
            names=sorted(rows, key=rows.__getitem__),
            namespace=reports[0].namespace,
            coordinator=reports[0].coordinator,
            **key_counts,
        )


@dataclass(frozen=True)
class FleetStatus:
    """The state of a fleet. ``print`` shows its tables, as ``ps2 status`` does.

    Attributes:
        servers: the servers, by index.
        matrices: the matrices, by id.
        operations: operations summed over the servers, in descending order of their total time.
    """

    servers: list[FleetServer]
    matrices: list[FleetMatrix]
    operations: list[OperationStatus]

    @property
    def as_data(self) -> dict[str, list[dict[str, Any]]]:
        """The state as JSON data for programs."""
        return {
            "servers": [server.as_data for server in self.servers],
            "matrices": [asdict(matrix) for matrix in self.matrices],
            "operations": [operation.as_data for operation in self.operations],
        }

    @property
    def tables(self) -> list[Table]:
        """The tables to print. Empty tables of matrices or operations are left out."""
        container_columns = (
            CONTAINER_TABLE if any(server.status and server.status.container for server in self.servers) else ()
        )
        columns = (*SERVER_COLUMNS, *(column for column, _, _ in container_columns))
        owner_columns = OWNER_COLUMNS if any(m.namespace != DEFAULT_NAMESPACE for m in self.matrices) else ()
        tables = [
            Table(columns, [_server_row(server, (*SERVER_TABLE, *container_columns)) for server in self.servers]),
            Table(
                (*MATRIX_COLUMNS[:-1], *owner_columns, MATRIX_COLUMNS[-1]),
                [_matrix_row(matrix, bool(owner_columns)) for matrix in self.matrices],
            ),
            Table(OPERATION_COLUMNS, [_operation_row(operation) for operation in self.operations]),
        ]
        return [tables[0], *(table for table in tables[1:] if table.rows)]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return to_html("FleetStatus", *self.tables)


class VectorInfo(NamedTuple):
    """A named vector.

    Attributes:
        name: ``ps.vector(name)`` returns the vector.
        kind: "dense" or "sparse".
        layout: "row" or "column".
        dim: number of columns.
        dtype: dtype of the values.
        matrix: number of the vector's matrix in hexadecimal, as ``ps2 status`` shows it.
        row: the vector's row in the matrix.
        bytes: memory of the vector on the servers: the matrix's memory divided by its number of rows.
    """

    name: str
    kind: str
    layout: str
    dim: int
    dtype: str
    matrix: str
    row: int
    bytes: int


def fleet_status(
    answers: Mapping[str, ServerStatus | TransientError], names: Mapping[int, Mapping[str, int]]
) -> FleetStatus:
    """Return the state of a fleet from its servers' answers. ``names``: matrix -> name -> row of each named vector."""
    statuses = [answer for answer in answers.values() if isinstance(answer, ServerStatus)]
    servers = [
        FleetServer(address, answer)
        if isinstance(answer, ServerStatus)
        else FleetServer(address, None, str(answer).removeprefix(f"{address}: "))
        for address, answer in answers.items()
    ]
    return FleetStatus(servers, _matrices(statuses, names), _operations(statuses))


def ask_status(master: Master, control: ServerControl) -> FleetStatus:
    """Ask all servers of a fleet for their state, concurrently."""
    return fleet_status(_ask(master, control), master.rows_by_name())


def ask_vectors(master: Master, control: ServerControl) -> list[VectorInfo]:
    """Return the named vectors of a fleet, sorted by name."""
    rows = master.rows_by_name()
    status = fleet_status(_ask(master, control), rows)
    matrices = {matrix.id: matrix for matrix in status.matrices}
    named = [(matrices.get(f"{number:x}"), names) for number, names in rows.items()]
    return sorted(
        VectorInfo(
            *(name, matrix.kind, matrix.layout, matrix.dim, matrix.dtype, matrix.id, row),
            bytes=matrix.bytes // max(matrix.rows, 1),
        )
        for matrix, names in named
        if matrix is not None  # None: the matrix was freed just now
        for name, row in names.items()
    )


def _ask(master: Master, control: ServerControl) -> dict[str, ServerStatus | TransientError]:
    def attempt(address: str) -> ServerStatus | TransientError:
        try:
            return control.status(address)
        except TransientError as error:
            return error

    addresses = master.registry.addresses()
    return dict(zip(addresses, call_concurrently(addresses, attempt), strict=True))


def _matrices(answers: Sequence[ServerStatus], names: Mapping[int, Mapping[str, int]]) -> list[FleetMatrix]:
    """Sum the matrices over all servers."""
    reports: dict[int, list[MatrixStatus]] = {}
    for answer in answers:
        for report in answer.matrices:
            reports.setdefault(report.matrix, []).append(report)
    return [
        FleetMatrix.summed(matrix_reports, names.get(matrix, {})) for matrix, matrix_reports in sorted(reports.items())
    ]


def _operations(answers: Sequence[ServerStatus]) -> list[OperationStatus]:
    """Sum the operations over all servers, in descending order of their total time."""
    sums_by_name: dict[str, OperationStatus] = {}
    for operation in (operation for answer in answers for operation in answer.operations):
        sums = sums_by_name.get(operation.name, OperationStatus(operation.name, 0, 0, 0.0, 0))
        sums_by_name[operation.name] = OperationStatus(
            *(operation.name, sums.count + operation.count, sums.failures + operation.failures),
            *(sums.seconds + operation.seconds, sums.keys + operation.keys),
        )
    return sorted(sums_by_name.values(), key=lambda sums: (-sums.seconds, sums.name))


def _server_row(server: FleetServer, table: Sequence[tuple[Column, str, Callable[[Any], str]]]) -> list[str]:
    if server.status is None:
        return [server.address, server.state, *["-"] * len(table)]
    return [server.address, server.state, *(to_text(getattr(server.status, name)) for _, name, to_text in table)]


def _matrix_row(matrix: FleetMatrix, shows_owner: bool) -> list[str]:
    removed = None
    if matrix.expired_keys is not None and matrix.evicted_keys is not None:
        removed = matrix.expired_keys + matrix.evicted_keys
    return [
        *(matrix.id, matrix.kind, matrix.layout, _dim(matrix.dim), matrix.dtype, f"{matrix.rows:,}"),
        size(matrix.bytes),
        *("-" if count is None else f"{count:,}" for count in (matrix.active_keys, matrix.waiting_keys, removed)),
        *((matrix.namespace, matrix.coordinator or "-") if shows_owner else ()),
        ", ".join(matrix.names) or "-",
    ]


def _operation_row(operation: OperationStatus) -> list[str]:
    keys, total_s = operation.keys, operation.seconds
    return [
        *(operation.name, f"{operation.count:,}", f"{operation.failures:,}"),
        *(short_time(total_s), short_time(total_s / operation.count)),
        f"{keys:,}" if keys else "-",
        f"{keys / total_s:,.0f}" if keys and total_s else "-",
    ]


def _dim(dim: int) -> str:
    """Format a number of columns; 2**n and 2**n - 1 from 2**40 on as "2^n" and "2^n-1"."""
    for difference in (0, 1):
        if dim >= 1 << 40 and (dim + difference).bit_count() == 1:
            return f"2^{(dim + difference).bit_length() - 1}" + ("" if difference == 0 else f"-{difference}")
    return f"{dim:,}"
