"""``ps2 status``: matrices, memory and operations of a fleet's servers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ps2.cli.exits import EXIT_UNREACHABLE
from ps2.cli.output import Column, Format, duration, format_option, print_data, print_table, short_time, size
from ps2.cli.target import NamedFleet, Which, ask_all, find_target, target_options
from ps2.errors import TransientError

if TYPE_CHECKING:
    from ps2.rpc.server_status import ServerStatus

EPILOG = """\b
Examples:
  ps2 status                     the fleet that 'ps2 launch' started here
  ps2 status --name ads -o json
  ps2 status --fleet host1:7070,host2:7070 --token-file fleet.token

\b
Exit codes: 0 all servers answer, 4 one does not, or there is no such fleet, 6 the token is not the fleet's.
"""
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
class _Answer:
    """The status of one server.

    Attributes:
        catalog: that its driver has left with it; b"" if there is none.
    """

    status: ServerStatus
    catalog: bytes


@click.command(epilog=EPILOG)
@target_options
@format_option
def status(which: Which, output: Format) -> None:
    """Show matrices, memory and operations of a fleet's servers."""
    target = find_target(which)
    found = _ask(target)
    servers = [_server(address, answer) for address, answer in found.items()]
    answers = [answer for answer in found.values() if not isinstance(answer, TransientError)]
    statuses = [answer.status for answer in answers]
    matrices = _matrices(statuses, _names(answer.catalog for answer in answers))
    operations = _operations(statuses)
    if output != "table":
        print_data({"servers": servers, "matrices": matrices, "operations": operations}, output)
    else:
        places = PLACE_TABLE if any(server.get("container") for server in servers) else ()
        columns = (*SERVER_COLUMNS, *(column for column, _, _ in places))
        print_table(columns, [_server_row(server, (*SERVER_TABLE, *places)) for server in servers])
        for columns, rows in (
            (MATRIX_COLUMNS, [_matrix_row(matrix) for matrix in matrices]),
            (OPERATION_COLUMNS, [_operation_row(operation) for operation in operations]),
        ):
            if rows:
                click.echo()
                print_table(columns, rows)
    missing = [f"{server['address']}: {_reason(server['error'])}" for server in servers if "error" in server]
    if missing:
        advice = "" if target.launched is None or target.launched.alive() else "; 'ps2 launch' starts a new fleet"
        text = f"{len(missing)} of {len(servers)} servers unreachable: {'; '.join(missing)}{advice}"
        click.echo(f"ps2: {text}", err=True)
        sys.exit(EXIT_UNREACHABLE)


def _ask(target: NamedFleet) -> Mapping[str, _Answer | TransientError]:
    """Ask every server, except those whose process has ended: another process may listen at their address."""
    members = target.launched.servers if target.launched is not None else ()
    ended = {member.address for member in members if not member.alive()}
    answers = ask_all(
        target,
        lambda control, address: _Answer(control.status(address), control.hello(address).catalog),
        [address for address in target.addresses if address not in ended],
    )
    gone = TransientError("its process has ended")
    return {address: gone if address in ended else answers[address] for address in target.addresses}


def _server(address: str, found: _Answer | TransientError) -> dict[str, Any]:
    if isinstance(found, TransientError):
        return {"address": address, "state": "unreachable", "error": str(found).removeprefix(f"{address}: ")}
    return {"address": address, "state": "running", **found.status.as_data}


def _names(catalogs: Iterable[bytes]) -> Mapping[int, Sequence[str]]:
    """Return the names of each matrix's vectors by row, from the catalog that the driver has published."""
    from ps2.storage.manifest import matrices_from_json

    left = [json.loads(catalog) for catalog in catalogs if catalog]
    newest: Mapping[str, Any] = max(left, key=lambda catalog: catalog["number"], default={"matrices": []})
    matrices = matrices_from_json(newest["matrices"], "the driver's catalog")
    return {matrix.id: sorted(matrix.names, key=matrix.names.__getitem__) for matrix in matrices}


def _matrices(answers: list[ServerStatus], names: Mapping[int, Sequence[str]]) -> list[dict[str, Any]]:
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
                    "names": list(names.get(held.matrix, ())),
                },
            )
            matrix["rows"] = max(matrix["rows"], held.rows)
            matrix["bytes"] += held.bytes
            matrix["servers"] += 1
            if held.spec.kind == "sparse":
                for name, number in held.of_keys.items():
                    matrix[name] += number
    return [matrix for _, matrix in sorted(found.items())]


def _operations(answers: list[ServerStatus]) -> list[dict[str, Any]]:
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


def _reason(error: str) -> str:
    """Return the relevant part of a failed call's message: its end."""
    return error.rsplit(": ", 1)[-1].strip("]")
