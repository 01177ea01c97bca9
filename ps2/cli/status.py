"""``ps2 status``: what the servers of a fleet hold and have done."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ps2.cli.exits import EXIT_UNREACHABLE
from ps2.cli.output import Column, Format, duration, format_option, print_data, print_table, size
from ps2.cli.target import Target, ask_all, find_target, target_options
from ps2.errors import TransientError

if TYPE_CHECKING:
    from ps2.wire.control import ServerStatus

EPILOG = """\b
Examples:
  ps2 status                     the fleet that 'ps2 launch' started here
  ps2 status --name ads -o json
  ps2 status --fleet host1:7070,host2:7070 --token-file fleet.token

\b
Exit codes: 0 all servers answer, 4 one does not, or there is no such fleet, 6 the token is not the fleet's.
"""
# Columns of a terminal that has room for everything.
WIDE = 105
SERVER_COLUMNS = (
    Column("server", folds=True),
    Column("state"),
    Column("up", right=True),
    Column("matrices", right=True, room=WIDE),
    Column("rows", right=True, room=WIDE),
    Column("memory", right=True),
    Column("limit", right=True),
    Column("requests", right=True),
    Column("failed", right=True),
    Column("in", right=True, room=WIDE),
    Column("out", right=True, room=WIDE),
)
MATRIX_COLUMNS = (
    Column("matrix"),
    Column("kind"),
    Column("dim", right=True),
    Column("dtype"),
    Column("rows", right=True),
    Column("bytes", right=True),
    Column("active keys", right=True),
)


@click.command(epilog=EPILOG)
@target_options
@format_option
def status(fleet: str | None, token_file: str | None, name: str | None, output: Format) -> None:
    """Show what the servers of a fleet hold and have done."""
    target = find_target(fleet, token_file, name)
    found = _ask(target)
    servers = [_server(address, answer) for address, answer in found.items()]
    matrices = _matrices([answer for answer in found.values() if not isinstance(answer, TransientError)])
    if output != "table":
        print_data({"servers": servers, "matrices": matrices}, output)
    else:
        print_table(SERVER_COLUMNS, [_server_row(server) for server in servers])
        if matrices:
            click.echo()
            print_table(MATRIX_COLUMNS, [_matrix_row(matrix) for matrix in matrices])
    missing = [f"{server['address']}: {_reason(server['error'])}" for server in servers if "error" in server]
    if missing:
        advice = "" if target.launched is None or target.launched.alive() else "; 'ps2 launch' starts a new fleet"
        text = f"{len(missing)} of {len(servers)} servers unreachable: {'; '.join(missing)}{advice}"
        click.echo(f"ps2: {text}", err=True)
        sys.exit(EXIT_UNREACHABLE)


def _ask(target: Target) -> Mapping[str, ServerStatus | TransientError]:
    """Ask every server, save those whose process is known to have ended: who listens there now is not to be trusted."""
    members = target.launched.servers if target.launched is not None else ()
    ended = {member.address for member in members if not member.alive()}
    answers = ask_all(
        target,
        lambda control, address: control.status(address),
        [address for address in target.addresses if address not in ended],
    )
    gone = TransientError("its process has ended")
    return {address: gone if address in ended else answers[address] for address in target.addresses}


def _server(address: str, answer: ServerStatus | TransientError) -> dict[str, Any]:
    if isinstance(answer, TransientError):
        return {"address": address, "state": "unreachable", "error": str(answer).removeprefix(f"{address}: ")}
    return {
        "address": address,
        "state": "running",
        "server_id": answer.server_id,
        "version": answer.version,
        "pid": answer.pid,
        "uptime_s": round(answer.uptime_s, 3),
        "matrices": len(answer.matrices),
        "rows": sum(matrix.rows for matrix in answer.matrices),
        "memory_bytes": answer.memory_bytes,
        "memory_limit_bytes": answer.memory_limit_bytes,
        "rss_bytes": answer.rss_bytes,
        "requests": answer.requests,
        "failed": answer.failed,
        "bytes_in": answer.bytes_in,
        "bytes_out": answer.bytes_out,
    }


def _matrices(answers: list[ServerStatus]) -> list[dict[str, Any]]:
    """Add up what each server holds of each matrix."""
    found: dict[int, dict[str, Any]] = {}
    for answer in answers:
        for held in answer.matrices:
            matrix = found.setdefault(
                held.matrix,
                {
                    "id": f"{held.matrix:x}",
                    "kind": held.spec.kind,
                    "dim": held.spec.dim,
                    "dtype": held.spec.dtype,
                    "rows": 0,
                    "bytes": 0,
                    "active_keys": 0 if held.spec.kind == "sparse" else None,
                    "servers": 0,
                },
            )
            matrix["rows"] = max(matrix["rows"], held.rows)
            matrix["bytes"] += held.bytes
            matrix["servers"] += 1
            if matrix["active_keys"] is not None:
                matrix["active_keys"] += held.active_keys
    return [matrix for _, matrix in sorted(found.items())]


def _server_row(server: Mapping[str, Any]) -> list[str]:
    if "error" in server:
        return [server["address"], server["state"], *["-"] * (len(SERVER_COLUMNS) - 2)]
    return [
        server["address"],
        server["state"],
        duration(server["uptime_s"]),
        f"{server['matrices']:,}",
        f"{server['rows']:,}",
        size(server["memory_bytes"]),
        size(server["memory_limit_bytes"]),
        f"{server['requests']:,}",
        f"{server['failed']:,}",
        size(server["bytes_in"]),
        size(server["bytes_out"]),
    ]


def _matrix_row(matrix: Mapping[str, Any]) -> list[str]:
    keys = matrix["active_keys"]
    return [
        matrix["id"],
        matrix["kind"],
        _dim(matrix["dim"]),
        matrix["dtype"],
        f"{matrix['rows']:,}",
        size(matrix["bytes"]),
        "-" if keys is None else f"{keys:,}",
    ]


def _dim(dim: int) -> str:
    """Write a number of columns; near a large power of two as that."""
    for distance in (0, 1):
        if dim >= 1 << 40 and (dim + distance).bit_count() == 1:
            return f"2^{(dim + distance).bit_length() - 1}" + ("" if distance == 0 else f"-{distance}")
    return f"{dim:,}"


def _reason(error: str) -> str:
    """Return the part of a failed call's message that people want: its end."""
    return error.rsplit(": ", 1)[-1].strip("]")
