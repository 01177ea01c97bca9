"""``ps2 status``: matrices, memory and operations of a fleet's servers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ps2.cli.exits import EXIT_UNREACHABLE
from ps2.cli.output import Format, format_option, print_data, print_table
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
    # It imports numba, which takes half a second: to say that there is no fleet, nobody needs it.
    from ps2.coordinator.fleet_status import fleet_status

    answers = _ask(target)
    catalogs = [answer.catalog for answer in answers.values() if isinstance(answer, _Answer)]
    found = fleet_status(
        {address: answer.status if isinstance(answer, _Answer) else answer for address, answer in answers.items()},
        _names(catalogs),
    )
    if output != "table":
        print_data(found.as_data, output)
    else:
        for number, table in enumerate(found.tables):
            if number:
                click.echo()
            print_table(table.columns, table.rows)
    missing = [f"{server.address}: {_reason(server.error)}" for server in found.servers if server.error]
    if missing:
        has_ended = all(server.error == str(ENDED) for server in found.servers)
        is_gone = has_ended and target.launched is not None and not target.launched.alive()
        advice = "; 'ps2 launch' starts a new fleet" if is_gone else ""
        text = f"{len(missing)} of {len(found.servers)} servers unreachable: {'; '.join(missing)}{advice}"
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


def _names(catalogs: Iterable[bytes]) -> Mapping[int, Mapping[str, int]]:
    """Return the rows of each matrix's vectors by name, from the catalog that the driver has published."""
    from ps2.storage.manifest import matrices_from_json

    left = [json.loads(catalog) for catalog in catalogs if catalog]
    newest: Mapping[str, Any] = max(left, key=lambda catalog: catalog["number"], default={"matrices": []})
    matrices = matrices_from_json(newest["matrices"], "the driver's catalog")
    return {matrix.id: matrix.names for matrix in matrices}


def _reason(error: str) -> str:
    """Return the relevant part of a failed call's message: its end."""
    return error.rsplit(": ", 1)[-1].strip("]")
