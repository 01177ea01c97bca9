"""``ps2 dashboard``: the live page of a fleet's servers."""

from __future__ import annotations

import signal
import threading

import click

from ps2.cli.options import parse_listen
from ps2.cli.target import Which, ask_all, controlled, find_target, target_options
from ps2.config import new_token, split_listen

EPILOG = """\b
Examples:
  ps2 dashboard                  the fleet that 'ps2 launch' started here
  ps2 dashboard --fleet host1:7070,host2:7070 --token-file fleet.token

\b
The link admits one browser. Runs and trainings are on the page of the fleet's driver, ps.dashboardUrl.
docs/dashboard.md describes both pages.

\b
Exit codes: 0 ended by SIGTERM or Ctrl-C, 2 an option is wrong, 4 there is no such fleet,
6 the fleet has another token.
"""


@click.command(epilog=EPILOG)
@target_options
@click.option(
    "--listen",
    callback=parse_listen,
    metavar="HOST:PORT",
    default="127.0.0.1:4070-4169",
    show_default=True,
    help="Address to listen on; HOST:FIRST-LAST is the first free port.",
)
def dashboard(which: Which, listen: str) -> None:
    """Show the live page of a fleet's servers in a browser."""
    from ps2.dashboard.browser_sessions import BrowserSessions
    from ps2.dashboard.fleet_watcher import FleetWatcher
    from ps2.dashboard.page_server import PageServer

    target = find_target(which)
    ask_all(target, lambda control, address: control.hello(address), target.addresses)  # raises for a wrong token
    ended = threading.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, lambda *_: ended.set())
    with controlled(target.token, target.tls) as control:
        watcher = FleetWatcher(control, target.addresses)
        page = PageServer(
            watcher.snapshot, watcher.vectors, BrowserSessions(new_token()), split_listen(listen, "--listen")
        )
        try:
            click.echo(page.description)
            while not ended.wait(0.5):
                pass
        finally:
            page.stop()
