"""``ps2 status``: matrices, memory and operations of a fleet's servers, and the processes of a launched fleet."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import click

from ps2.cli.output import EXIT_UNREACHABLE, Format, format_option, print_data, print_table
from ps2.cli.target import NamedFleet, Which, ask_all, find_target, replaced_servers, target_options
from ps2.errors import TransientError
from ps2.processes import ProcessId, is_suspended
from ps2.text_tables import Column, Table

if TYPE_CHECKING:
    from ps2.launched_fleets import LaunchedFleet, LaunchedServer
    from ps2.rpc.server_status import ServerStatus

EPILOG = """\b
Examples:
  ps2 status                     the fleet that 'ps2 launch' started here
  ps2 status --name ads -o json
  ps2 status --fleet host1:7070,host2:7070 --token-file fleet.token

\b
Exit codes: 0 all servers answer, 4 a server does not, or there is no such fleet, 6 the fleet has another token.
"""
PROCESS_COLUMNS = (
    *(Column("process"), Column("pid", right=True), Column("state"), Column("restarts", right=True)),
    Column("last end", folds=True),
)


class ProcessError(TransientError):
    """The state of a launched server's process, which does not answer."""


# The status of a server, and the encoded catalog that a driver has published to it (b"": none).
Answer = tuple["ServerStatus", bytes]


@click.command(epilog=EPILOG)
@target_options
@format_option
def status(which: Which, output: Format) -> None:
    """Show matrices, memory and operations of a fleet's servers."""
    target = find_target(which)
    # After ``find_target``, because this imports numba, which takes half a second.
    from ps2.coordinator.fleet_status import fleet_status
    from ps2.dashboard.fleet_watcher import vector_names

    answers = _ask(target)
    catalogs = [answer[1] for answer in answers.values() if isinstance(answer, tuple)]
    statuses = {address: answer[0] if isinstance(answer, tuple) else answer for address, answer in answers.items()}
    report = fleet_status(statuses, vector_names(catalogs))
    errors = {address: error for address, error in statuses.items() if isinstance(error, TransientError)}
    launched = target.launched
    processes = [] if launched is None or not launched.supervised else _processes(launched, errors)
    if output != "table":
        print_data({**report.as_data, "processes": processes} if processes else report.as_data, output)
    else:
        rows = [["-" if value is None else str(value) for value in process.values()] for process in processes]
        for number, table in enumerate([*report.tables, *([Table(PROCESS_COLUMNS, rows)] if rows else [])]):
            if number:
                click.echo()
            print_table(table.columns, table.rows)
    if errors:
        # The relevant reason is the end of a failed call's message.
        reasons = [
            f"{address}: {error if isinstance(error, ProcessError) else str(error).rsplit(': ', 1)[-1].strip(']')}"
            for address, error in errors.items()
        ]
        has_ended = launched is not None and not launched.alive()
        is_over = has_ended and all(isinstance(answer, ProcessError) for answer in answers.values())
        advice = "; 'ps2 launch' starts a new fleet" if is_over else ""
        text = f"{len(reasons)} of {len(answers)} servers unreachable: {'; '.join(reasons)}{advice}"
        click.echo(f"ps2: {text}", err=True)
        sys.exit(EXIT_UNREACHABLE)


def _ask(target: NamedFleet) -> Mapping[str, Answer | TransientError]:
    """Ask all servers, except those whose processes have ended and were not replaced."""
    ended: dict[str, ProcessError] = {}
    if target.launched is not None:
        fleet, replaced = target.launched, replaced_servers(target.launched, target.token, target.tls)
        servers = [server for server in fleet.servers if not server.alive() and server.address not in replaced]
        ended = {server.address: ProcessError(_ended_text(fleet, server)) for server in servers}
    answers: dict[str, Answer | TransientError] = ask_all(
        target,
        lambda control, address: (control.status(address), control.hello(address).catalog),
        [address for address in target.addresses if address not in ended],
    )
    if target.launched is not None:
        for server in target.launched.servers:
            if isinstance(answers.get(server.address), TransientError) and server.alive():
                suspended = ", which is suspended" if is_suspended(server.process.pid) else ""
                answers[server.address] = ProcessError(f"no answer from process {server.process.pid}{suspended}")
    return {address: ended.get(address) or answers[address] for address in target.addresses}


def _ended_text(fleet: LaunchedFleet, server: LaunchedServer) -> str:
    if server.failed:
        return f"failed: {server.ending}"
    return "its process has ended" + (", and is started anew" if _is_restarting(fleet) else "")


def _is_restarting(fleet: LaunchedFleet) -> bool:
    supervisors = [fleet.launcher, *filter(None, [fleet.guard])]
    return fleet.supervised and any(process.alive() for process in supervisors)


def _processes(fleet: LaunchedFleet, errors: Collection[str]) -> list[dict[str, Any]]:
    """Return the processes of a supervised fleet as JSON data; ``errors``: the addresses of servers without answer."""
    supervisors = {"supervisor": fleet.launcher, **({"guard": fleet.guard} if fleet.guard is not None else {})}
    rows: list[dict[str, Any]] = [
        {"process": name, "pid": process.pid, "state": _process_state(process), "restarts": None, "last_end": None}
        for name, process in supervisors.items()
    ]
    for server in fleet.servers:
        state, last_end = _server_state(fleet, server, errors), server.ending or None
        row = {"process": server.address, "pid": server.process.pid, "state": state}
        rows.append({**row, "restarts": server.restarts, "last_end": last_end})
    return rows


def _server_state(fleet: LaunchedFleet, server: LaunchedServer, errors: Collection[str]) -> str:
    if server.address not in errors:
        return "running"
    if server.alive():
        return "no answer"
    if server.failed:
        return "failed"
    return "restarting" if _is_restarting(fleet) else "ended"


def _process_state(process: ProcessId) -> str:
    if not process.alive():
        return "ended"
    return "suspended" if is_suspended(process.pid) else "running"
