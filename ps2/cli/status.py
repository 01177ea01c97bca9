"""``ps2 status``: what the servers of a fleet hold and have done."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ps2.cli.exits import EXIT_UNREACHABLE
from ps2.cli.output import Column, Format, duration, format_option, print_data, print_table, short_time, size
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
# Columns of a terminal that has room for what can be done without, large numbers included.
WIDE, WIDER, WIDEST = 96, 118, 134
SERVER_COLUMNS = (
    Column("server", folds=True),
    Column("state"),
    Column("up", right=True),
    Column("matrices", right=True, room=WIDEST),
    Column("rows", right=True, room=WIDEST),
    Column("memory", right=True),
    Column("limit", right=True, room=WIDE),
    Column("requests", right=True),
    Column("failed", right=True),
    Column("waiting", right=True, room=WIDE),
    Column("lock wait", right=True),
    Column("in", right=True, room=WIDER),
    Column("out", right=True, room=WIDER),
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
OPERATION_COLUMNS = (
    Column("operation"),
    Column("count", right=True),
    Column("failures", right=True),
    Column("time", right=True),
    Column("mean", right=True),
    Column("keys", right=True),
    Column("keys/s", right=True, room=WIDE),
)


@click.command(epilog=EPILOG)
@target_options
@format_option
def status(fleet: str | None, token_file: str | None, name: str | None, output: Format) -> None:
    """Show what the servers of a fleet hold and have done."""
    target = find_target(fleet, token_file, name)
    found = _ask(target)
    servers = [_server(address, answer) for address, answer in found.items()]
    answers = [answer for answer in found.values() if not isinstance(answer, TransientError)]
    matrices, operations = _matrices(answers), _operations(answers)
    if output != "table":
        print_data({"servers": servers, "matrices": matrices, "operations": operations}, output)
    else:
        print_table(SERVER_COLUMNS, [_server_row(server) for server in servers])
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
        "outcomes": dict(answer.outcomes),
        "in_progress": answer.in_progress,
        "waiting": answer.waiting,
        "lock_waits": answer.lock_waits,
        "lock_wait_s": answer.lock_wait_s,
        "bytes_in": answer.bytes_in,
        "bytes_out": answer.bytes_out,
        "key_cache_hits": answer.key_cache_hits,
        "key_cache_misses": answer.key_cache_misses,
        "key_cache_bytes": answer.key_cache_bytes,
        "connections": answer.connections,
        "route_version": answer.route_version,
        "backup": answer.backup or None,
        "copies_bytes": answer.copies_bytes,
        "behind": answer.behind,
        "applied_scopes": answer.applied_scopes,
        "mutations": answer.mutations,
        "operations": [asdict(operation) for operation in answer.operations],
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


def _operations(answers: list[ServerStatus]) -> list[dict[str, Any]]:
    """Add up what each server has done of each operation; the one that took most time comes first."""
    found: dict[str, dict[str, Any]] = {}
    for answer in answers:
        for done in answer.operations:
            sums = found.setdefault(
                done.name, {"name": done.name, "count": 0, "failures": 0, "seconds": 0.0, "keys": 0}
            )
            for field in ("count", "failures", "seconds", "keys"):
                sums[field] += getattr(done, field)
    return sorted(found.values(), key=lambda sums: (-sums["seconds"], sums["name"]))


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
        f"{server['waiting']:,}",
        short_time(server["lock_wait_s"]),
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
    """Write a number of columns; near a large power of two as that."""
    for distance in (0, 1):
        if dim >= 1 << 40 and (dim + distance).bit_count() == 1:
            return f"2^{(dim + distance).bit_length() - 1}" + ("" if distance == 0 else f"-{distance}")
    return f"{dim:,}"


def _reason(error: str) -> str:
    """Return the part of a failed call's message that people want: its end."""
    return error.rsplit(": ", 1)[-1].strip("]")
