"""``ps2 status``: matrices, memory and operations of a fleet's servers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from ps2.cli.output import EXIT_UNREACHABLE, Format, format_option, print_data, print_table
from ps2.cli.target import NamedFleet, Which, ask_all, find_target, replaced_servers, target_options
from ps2.errors import TransientError

if TYPE_CHECKING:
    from ps2.rpc.server_status import ServerStatus

EPILOG = """\b
Examples:
  ps2 status                     the fleet that 'ps2 launch' started here
  ps2 status --name ads -o json
  ps2 status --fleet host1:7070,host2:7070 --token-file fleet.token

\b
Exit codes: 0 all servers answer, 4 a server does not, or there is no such fleet, 6 the fleet has another token.
"""
ENDED = TransientError("its process has ended")


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
    if output != "table":
        print_data(report.as_data, output)
    else:
        for number, table in enumerate(report.tables):
            if number:
                click.echo()
            print_table(table.columns, table.rows)
    unreachable = [server for server in report.servers if server.error]
    if unreachable:
        # The relevant reason is the end of a failed call's message.
        reasons = [f"{server.address}: {server.error.rsplit(': ', 1)[-1].strip(']')}" for server in unreachable]
        has_ended = all(server.error == str(ENDED) for server in report.servers)
        is_over = has_ended and target.launched is not None and not target.launched.alive()
        advice = "; 'ps2 launch' starts a new fleet" if is_over else ""
        text = f"{len(reasons)} of {len(report.servers)} servers unreachable: {'; '.join(reasons)}{advice}"
        click.echo(f"ps2: {text}", err=True)
        sys.exit(EXIT_UNREACHABLE)


def _ask(target: NamedFleet) -> Mapping[str, Answer | TransientError]:
    """Ask all servers, except those whose processes have ended and were not replaced."""
    ended: set[str] = set()
    if target.launched is not None:
        ended = {server.address for server in target.launched.servers if not server.alive()}
        ended -= replaced_servers(target.launched, target.token, target.tls)
    answers = ask_all(
        target,
        lambda control, address: (control.status(address), control.hello(address).catalog),
        [address for address in target.addresses if address not in ended],
    )
    return {address: ENDED if address in ended else answers[address] for address in target.addresses}
