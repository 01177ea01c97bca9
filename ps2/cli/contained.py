"""``ps2 launch --on spark``: a fleet in containers of a cluster, for Spark applications to attach to."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from ps2.errors import LaunchError

if TYPE_CHECKING:
    from ps2.cli.state import LaunchedFleet
    from ps2.coordinator.launchers.spark import ContainedServers, SparkLauncher

POLL_S = 0.2
# Log of a fleet in the background, in its folder.
LOG = "launcher.log"
# For 'ps2 stop' to end all servers, one by one.
STOP_TOGETHER_S = 10.0
# Between two attempts to start a server.
PAUSE_S = 2.0


class Wish(Protocol):
    """Whether the user has asked for the end."""

    came: bool
    interrupted: bool

    def check(self) -> None: ...


def run(
    wanted: ContainedServers,
    arguments: Sequence[str],
    name: str,
    token_file: Path | None,
    timeout_s: float,
    wish: Wish,
    all_is_well: Callable[[Path], None] | None = None,
) -> None:
    """Run a fleet until the user or 'ps2 stop' ends it.

    Args:
        arguments: of spark-submit.
        token_file: that the token was read from; None: it is a new one.
        timeout_s: longest time for all servers to start.
        all_is_well: called when they run, with a file for all that is printed later; None: this command is in the
            foreground.

    Raises:
        LaunchError: a fleet of that name runs, or servers do not start.
        KeyboardInterrupt: it was Ctrl-C.
    """
    from ps2.cli.state import LaunchedServer, claim, remove
    from ps2.config import write_token
    from ps2.processes import ProcessId

    with contextlib.ExitStack() as undo:
        fleet = claim(
            name, ProcessId.of(os.getpid()), token_file.absolute() if token_file is not None else None, wanted.tls
        )
        undo.callback(remove, fleet)
        if token_file is None:
            write_token(fleet.token_file, wanted.token)
        started = ContainedFleet(wanted, arguments, name)
        undo.callback(started.launcher.stop)
        addresses = started.start(timeout_s, wish)
        # The servers end with this process, on any host.
        members = tuple(LaunchedServer(address, fleet.launcher) for _, address in sorted(addresses.items()))
        fleet = fleet.with_servers(members)
        click.echo(description(fleet, started.launcher, detached=all_is_well is not None))
        if all_is_well is not None:
            all_is_well(fleet.folder / LOG)
        started.watch(wish, fleet)
    if wish.interrupted:
        raise KeyboardInterrupt


class ContainedFleet:
    """Servers in containers, until the user or ``ps2 stop`` ends them. Dead servers are started again."""

    def __init__(self, wanted: ContainedServers, arguments: Sequence[str], name: str) -> None:
        """``arguments``: of spark-submit."""
        from ps2.coordinator.launchers.containers.submission import Submission
        from ps2.coordinator.launchers.spark import SparkLauncher

        self.launcher: SparkLauncher = SparkLauncher(
            wanted, Submission(arguments=tuple(arguments), name=f"ps2 fleet {name}")
        )
        self._tried_s: dict[int, float] = {}

    def start(self, timeout_s: float, wish: Wish) -> dict[int, str]:
        """Start all servers, and wait until they listen; return where.

        Raises:
            LaunchError: a server does not start, or all take too long; names the cluster's reason.
            KeyboardInterrupt: the user has asked for the end.
        """
        for index in range(self.launcher.servers):
            self.launcher.start(index, "")
        deadline_s = time.monotonic() + timeout_s
        while len(addresses := self.launcher.addresses()) < self.launcher.servers:
            for index, why in self.launcher.poll().items():
                raise LaunchError(f"server {index} did not start: {why}")
            wish.check()
            if time.monotonic() > deadline_s:
                missing = [index for index in range(self.launcher.servers) if index not in addresses]
                raise LaunchError(
                    f"servers {missing} do not listen after {timeout_s:.0f} s: {self.launcher.status_text()}"
                )
            time.sleep(POLL_S)
        return addresses

    def watch(self, wish: Wish, fleet: LaunchedFleet) -> None:
        """Restart dead servers until the user asks for the end, or 'ps2 stop' was called."""
        known, stopping_s = self.launcher.addresses(), 0.0
        while not wish.came:
            ended = self.launcher.poll()
            stopped = [index for index, code in self.launcher.exit_codes().items() if code == 0]
            if len(stopped) == self.launcher.servers:
                click.echo("the fleet was stopped")
                return
            # After the first stopped server, wait: 'ps2 stop' is stopping the others.
            stopping_s = (stopping_s or time.monotonic()) if stopped else 0.0
            if not stopping_s or time.monotonic() - stopping_s > STOP_TOGETHER_S:
                self._again(ended)
            known = self._tell_moves(known, fleet)
            time.sleep(POLL_S)

    def _again(self, ended: Mapping[int, str | None]) -> None:
        now_s = time.monotonic()
        for index, why in ended.items():
            if now_s - self._tried_s.get(index, -PAUSE_S) >= PAUSE_S:
                self._tried_s[index] = now_s
                click.echo(f"server {index} is started again: {why}", err=True)
                self.launcher.start(index, "")

    def _tell_moves(self, known: dict[int, str], fleet: LaunchedFleet) -> dict[int, str]:
        """Note new addresses, for ``ps2 status`` and for drivers that attach."""
        from ps2.cli.state import LaunchedServer

        now = {**known, **self.launcher.addresses()}
        if now != known:
            for index in sorted(index for index in now if now[index] != known.get(index)):
                click.echo(f"server {index} is at {now[index]}: drivers must attach again, with this address", err=True)
            fleet.with_servers(tuple(LaunchedServer(address, fleet.launcher) for _, address in sorted(now.items())))
        return now


def description(fleet: LaunchedFleet, launcher: SparkLauncher, detached: bool) -> str:
    """Describe the running fleet."""
    from ps2.cli.state import attaching, command

    locations = launcher.locations()
    count = f"{len(fleet.servers)} server{'' if len(fleet.servers) == 1 else 's'}"
    end = f"until '{command('stop', fleet.name)}'" if detached else "until Ctrl-C"
    return "\n".join(
        [
            f"fleet {fleet.name!r}: {count} in containers, {end}",
            *(f"  {server.address}  {locations.get(index, '')}" for index, server in enumerate(fleet.servers)),
            "",
            f"attach  {attaching(fleet)}",
            f"look    {command('status', fleet.name)}",
            f"stop    {command('stop', fleet.name)}",
            *([f"log     {fleet.folder / LOG}"] if detached else []),
            "",
            "Drivers on other hosts need a copy of the token file that only you can read.",
        ]
    )
