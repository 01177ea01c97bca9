"""The state of a fleet: servers, matrices and operations, as records and as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ps2.errors import TransientError
from ps2.formats import duration, short_time, size
from ps2.rpc.server_status import ServerStatus
from ps2.text_tables import Column, Table, to_html
from ps2.transport.at_once import at_once

if TYPE_CHECKING:
    from ps2.coordinator.master import Master
    from ps2.rpc.control import ServerControl

# Columns per server: title, name in the record, format.
SERVER_TABLE: tuple[tuple[Column, str, Callable[[Any], str]], ...] = (
    (Column("up", right=True), "uptime_s", duration),
    (Column("matrices", right=True), "matrices", "{:,}".format),
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
# Columns of servers in containers of a cluster.
PLACE_TABLE: tuple[tuple[Column, str, Callable[[Any], str]], ...] = (
    (Column("container"), "container", lambda name: name or "-"),
    (Column("node"), "node", lambda name: name or "-"),
)
MATRIX_COLUMNS = (
    Column("matrix"),
    Column("kind"),
    Column("layout"),
    Column("dim", right=True),
    Column("dtype"),
    Column("rows", right=True),
    Column("bytes", right=True),
    Column("active keys", right=True),
    Column("waiting", right=True),
    Column("gone", right=True),
    Column("names", folds=True),
)
OPERATION_COLUMNS = (
    Column("operation"),
    Column("count", right=True),
    Column("failures", right=True),
    Column("time", right=True),
    Column("mean", right=True),
    Column("keys", right=True),
    Column("keys/s", right=True),
)


@dataclass(frozen=True)
class FleetStatus:
    """The state of a fleet. ``print`` shows its tables, as ``ps2 status`` does.

    Attributes:
        servers: one record per server: "address", "state" ("running" or "unreachable", with an "error"), and its
            numbers: "memory_bytes", "memory_limit_bytes", "requests", "lock_wait_s" ...
        matrices: one record per matrix, summed over the servers: "id", "kind", "layout", "dim", "dtype", "rows",
            "bytes", "names" of vectors by row, and numbers of keys.
        operations: one record per operation, summed likewise, the longest in total first: "name", "count",
            "failures", "seconds", "keys".
    """

    servers: list[dict[str, Any]]
    matrices: list[dict[str, Any]]
    operations: list[dict[str, Any]]

    @property
    def tables(self) -> list[Table]:
        """The tables that people see; only the one of servers may have no rows."""
        places = PLACE_TABLE if any(server.get("container") for server in self.servers) else ()
        columns = (*SERVER_COLUMNS, *(column for column, _, _ in places))
        found = [
            Table(columns, [_server_row(server, (*SERVER_TABLE, *places)) for server in self.servers]),
            Table(MATRIX_COLUMNS, [_matrix_row(matrix) for matrix in self.matrices]),
            Table(OPERATION_COLUMNS, [_operation_row(operation) for operation in self.operations]),
        ]
        return [found[0], *(table for table in found[1:] if table.rows)]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return to_html("FleetStatus", *self.tables)


class VectorInfo(NamedTuple):
    """A named vector.

    Attributes:
        name: ``ps.vector(name)`` returns it.
        kind: "dense" or "sparse".
        layout: "row" or "column".
        dim: number of columns.
        dtype: of its values.
        matrix: the matrix that the vector is a row of, as ``ps2 status`` shows it.
        row: its number in the matrix.
        bytes: memory of its values on the servers; its share of the matrix.
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
    """Return the state of a fleet.

    Args:
        answers: of each server, by address.
        names: of vectors with their rows, by matrix.
    """
    statuses = [answer for answer in answers.values() if isinstance(answer, ServerStatus)]
    servers = [_server(address, answer) for address, answer in answers.items()]
    return FleetStatus(servers, _matrices(statuses, names), _operations(statuses))


def ask_status(master: Master, control: ServerControl) -> FleetStatus:
    """Ask all servers of a fleet for their state, at the same time."""
    return fleet_status(_ask(master, control), _rows_by_name(master))


def ask_vectors(master: Master, control: ServerControl) -> list[VectorInfo]:
    """Return the named vectors of a fleet, by name."""
    rows = _rows_by_name(master)
    found = fleet_status(_ask(master, control), rows)
    matrices = {matrix["id"]: matrix for matrix in found.matrices}
    found_rows = [(matrices.get(f"{number:x}"), names) for number, names in rows.items()]
    return sorted(
        VectorInfo(name=name, row=row, matrix=of["id"], bytes=of["bytes"] // max(of["rows"], 1), **_shape(of))
        for of, names in found_rows
        if of is not None  # else it was freed just now
        for name, row in names.items()
    )


def _shape(matrix: Mapping[str, Any]) -> dict[str, Any]:
    return {field: matrix[field] for field in ("kind", "layout", "dim", "dtype")}


def _ask(master: Master, control: ServerControl) -> dict[str, ServerStatus | TransientError]:
    def attempt(address: str) -> ServerStatus | TransientError:
        try:
            return control.status(address)
        except TransientError as error:
            return error

    addresses = master.registry.addresses()
    return dict(zip(addresses, at_once(addresses, attempt), strict=True))


def _rows_by_name(master: Master) -> dict[int, dict[str, int]]:
    """Return the row of each named vector, by matrix and name."""
    rows: dict[int, dict[str, int]] = {}
    for name, (matrix, row) in master.names().items():
        rows.setdefault(matrix, {})[name] = row
    return rows


def _server(address: str, found: ServerStatus | TransientError) -> dict[str, Any]:
    if isinstance(found, TransientError):
        return {"address": address, "state": "unreachable", "error": str(found).removeprefix(f"{address}: ")}
    return {"address": address, "state": "running", **found.as_data}


def _matrices(answers: Sequence[ServerStatus], names: Mapping[int, Mapping[str, int]]) -> list[dict[str, Any]]:
    """Sum the matrices over all servers."""
    found: dict[int, dict[str, Any]] = {}
    for answer in answers:
        for held in answer.matrices:
            matrix = found.setdefault(
                held.matrix,
                {
                    "id": f"{held.matrix:x}",
                    "kind": held.spec.kind,
                    "layout": held.spec.layout,
                    "dim": held.spec.dim,
                    "dtype": held.spec.dtype,
                    "rows": 0,
                    "bytes": 0,
                    **dict.fromkeys(held.of_keys, 0 if held.spec.kind == "sparse" else None),
                    "servers": 0,
                    "names": sorted(rows := names.get(held.matrix, {}), key=rows.__getitem__),
                },
            )
            matrix["rows"] = max(matrix["rows"], held.rows)
            matrix["bytes"] += held.bytes
            matrix["servers"] += 1
            if held.spec.kind == "sparse":
                for name, number in held.of_keys.items():
                    matrix[name] += number
    return [matrix for _, matrix in sorted(found.items())]


def _operations(answers: Sequence[ServerStatus]) -> list[dict[str, Any]]:
    """Sum the operations over all servers; the slowest one in total comes first."""
    found: dict[str, dict[str, Any]] = {}
    for answer in answers:
        for done in answer.operations:
            of_server = done.as_data
            sums = found.setdefault(done.name, {**of_server, "count": 0, "failures": 0, "seconds": 0.0, "keys": 0})
            for field in ("count", "failures", "seconds", "keys"):
                sums[field] += of_server[field]
    return sorted(found.values(), key=lambda sums: (-sums["seconds"], sums["name"]))


def _server_row(server: Mapping[str, Any], table: Sequence[tuple[Column, str, Callable[[Any], str]]]) -> list[str]:
    if "error" in server:
        return [server["address"], server["state"], *["-"] * len(table)]
    return [server["address"], server["state"], *(write(server[name]) for _, name, write in table)]


def _matrix_row(matrix: Mapping[str, Any]) -> list[str]:
    keys, waiting = matrix["active_keys"], matrix["waiting_keys"]
    gone = None if keys is None else matrix["expired_keys"] + matrix["evicted_keys"]
    return [
        matrix["id"],
        matrix["kind"],
        matrix["layout"],
        _dim(matrix["dim"]),
        matrix["dtype"],
        f"{matrix['rows']:,}",
        size(matrix["bytes"]),
        *("-" if number is None else f"{number:,}" for number in (keys, waiting, gone)),
        ", ".join(matrix["names"]) or "-",
    ]


def _operation_row(done: Mapping[str, Any]) -> list[str]:
    keys, spent_s = done["keys"], done["seconds"]
    return [
        done["name"],
        f"{done['count']:,}",
        f"{done['failures']:,}",
        short_time(spent_s),
        short_time(spent_s / done["count"]),
        f"{keys:,}" if keys else "-",
        f"{keys / spent_s:,.0f}" if keys and spent_s else "-",
    ]


def _dim(dim: int) -> str:
    """Format a number of columns; near a large power of two, as that power."""
    for distance in (0, 1):
        if dim >= 1 << 40 and (dim + distance).bit_count() == 1:
            return f"2^{(dim + distance).bit_length() - 1}" + ("" if distance == 0 else f"-{distance}")
    return f"{dim:,}"
