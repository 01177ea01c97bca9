"""``ps2 status``: matrices, memory and operations of a fleet's servers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
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
Exit codes: 0 all servers answer, 4 one does not, or there is no such fleet, 6 the token is not the fleet's.
"""
ENDED = TransientError("its process has ended")


@dataclass(frozen=True)
class _Answer:
    """The status of one server, and the catalog that its driver has published (b"" if none)."""

    status: ServerStatus
    catalog: bytes


@click.command(epilog=EPILOG)
@target_options
@format_option
def status(which: Which, output: Format) -> None:
    """Show matrices, memory and operations of a fleet's servers."""
    target = find_target(which)
    # This imports numba, which takes half a second, so it comes after the check that there is a fleet.
    from ps2.coordinator.fleet_status import fleet_status
    from ps2.dashboard.fleet_watcher import vector_names

    answers = _ask(target)
    catalogs = [answer.catalog for answer in answers.values() if isinstance(answer, _Answer)]
    fleet_status_now = fleet_status(
        {address: answer.status if isinstance(answer, _Answer) else answer for address, answer in answers.items()},
        vector_names(catalogs),
    )
    if output != "table":
        print_data(fleet_status_now.as_data, output)
    else:
        for number, table in enumerate(fleet_status_now.tables):
            if number:
                click.echo()
            print_table(table.columns, table.rows)
    failed = [server for server in fleet_status_now.servers if server.error]
    if failed:
        # The end of a failed call's message is the relevant part.
        missing = [f"{server.address}: {server.error.rsplit(': ', 1)[-1].strip(']')}" for server in failed]
        has_ended = all(server.error == str(ENDED) for server in fleet_status_now.servers)
        is_over = has_ended and target.launched is not None and not target.launched.alive()
        advice = "; 'ps2 launch' starts a new fleet" if is_over else ""
        text = f"{len(missing)} of {len(fleet_status_now.servers)} servers unreachable: {'; '.join(missing)}{advice}"
        click.echo(f"ps2: {text}", err=True)
        sys.exit(EXIT_UNREACHABLE)


def _ask(target: NamedFleet) -> Mapping[str, _Answer | TransientError]:
    """Ask every server, except those whose process has ended, unless another one of the fleet is in its place."""
    ended: set[str] = set()
    if target.launched is not None:
        ended = {server.address for server in target.launched.servers if not server.alive()}
        ended -= replaced_servers(target.launched, target.token, target.tls)
    answers = ask_all(
        target,
        lambda control, address: _Answer(control.status(address), control.hello(address).catalog),
        [address for address in target.addresses if address not in ended],
    )
    return {address: ENDED if address in ended else answers[address] for address in target.addresses}
