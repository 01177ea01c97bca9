"""``ps2 launch --on spark``: a fleet in containers of a cluster, for Spark applications to attach to."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from ps2.errors import LaunchError

if TYPE_CHECKING:
    from ps2.coordinator.launchers.spark import ContainedServers, SparkLauncher
    from ps2.launched_fleets import LaunchedFleet

POLL_S = 0.2
# The file for the log of a fleet in the background, in the fleet's folder.
LOG_FILE = "launcher.log"
# The time in which 'ps2 stop' ends all servers after the first server.
STOP_TOGETHER_S = 10.0
# The minimum time between two attempts to start a server.
PAUSE_S = 2.0


class StopRequest:
    """Records the user's request to stop (Ctrl-C, SIGTERM, a closed terminal) without raising an exception.

    Attributes:
        received: True after any of these signals.
        interrupted: True after Ctrl-C.
    """

    def __init__(self) -> None:
        self.received = self.interrupted = False
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup ignores SIGHUP, so that the command continues when the terminal is closed.
            if signal_number != signal.SIGHUP or signal.getsignal(signal_number) != signal.SIG_IGN:
                signal.signal(signal_number, self._record)

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal was received."""
        if self.received:
            raise KeyboardInterrupt

    def _record(self, signal_number: int, frame: FrameType | None) -> None:
        self.received = True
        self.interrupted = self.interrupted or signal_number == signal.SIGINT


def run(
    servers: ContainedServers,
    arguments: Sequence[str],
    name: str,
    token_file: Path | None,
    timeout_s: float,
    stop_request: StopRequest,
    report_ready: Callable[[Path], None] | None = None,
) -> None:
    """Run a fleet until the user or 'ps2 stop' ends it.

    Args:
        arguments: options of spark-submit.
        token_file: the file with the token; None: write a new token to a file.
        timeout_s: the maximum time for all servers to start.
        report_ready: called with the file for all later output when the servers run; None: the command runs in the
            foreground.

    Raises:
        LaunchError: a fleet of that name is running, or servers do not start.
        KeyboardInterrupt: the user pressed Ctrl-C.
    """
    from ps2.config import write_token
    from ps2.launched_fleets import COPY_ADVICE, LaunchedServer, claim, description, remove
    from ps2.processes import ProcessId

    with contextlib.ExitStack() as undo:
        file = None if token_file is None else token_file.absolute()
        fleet = claim(name, ProcessId.from_pid(os.getpid()), file, servers.tls)
        undo.callback(remove, fleet)
        if token_file is None:
            write_token(fleet.token_file, servers.token)
        container_fleet = ContainerFleet(servers, arguments, name)
        undo.callback(container_fleet.launcher.stop)
        addresses = container_fleet.start(timeout_s, stop_request)
        # The servers are on other hosts and end with the launcher, so its process is recorded as theirs.
        members = tuple(LaunchedServer(address, fleet.launcher) for _, address in sorted(addresses.items()))
        fleet = fleet.with_servers(members)
        locations = container_fleet.launcher.hosts.locations()
        server_texts = [locations.get(index, "") for index in range(len(members))]
        lines = description(fleet, "in containers", server_texts, detached=report_ready is not None)
        lines += [f"log     {fleet.folder / LOG_FILE}"] if report_ready is not None else []
        click.echo("\n".join([*lines, "", COPY_ADVICE]))
        if report_ready is not None:
            report_ready(fleet.folder / LOG_FILE)
        container_fleet.watch(stop_request, fleet)
    if stop_request.interrupted:
        raise KeyboardInterrupt


class ContainerFleet:
    """A fleet of servers in containers. Dead servers are restarted until the user or ``ps2 stop`` ends the fleet."""

    def __init__(self, servers: ContainedServers, arguments: Sequence[str], name: str) -> None:
        """``arguments``: options of spark-submit."""
        from ps2.coordinator.launchers.containers.submission import Submission
        from ps2.coordinator.launchers.spark import SparkLauncher

        self.launcher: SparkLauncher = SparkLauncher(
            servers, Submission(arguments=tuple(arguments), name=f"ps2 fleet {name}")
        )
        self._start_attempts_s: dict[int, float] = {}  # server index -> the time of its last restart

    def start(self, timeout_s: float, stop_request: StopRequest) -> dict[int, str]:
        """Start all servers, and wait until they listen; return their addresses by index.

        Raises:
            LaunchError: servers do not start, or not in time; the message contains the cluster's reason.
            KeyboardInterrupt: the user has requested to stop.
        """
        for index in range(self.launcher.servers):
            self.launcher.start(index, "")
        deadline_s = time.monotonic() + timeout_s
        while len(addresses := self.launcher.hosts.addresses()) < self.launcher.servers:
            for index, reason in self.launcher.poll().items():
                raise LaunchError(f"server {index} did not start: {reason}")
            stop_request.check()
            if time.monotonic() > deadline_s:
                missing = [index for index in range(self.launcher.servers) if index not in addresses]
                raise LaunchError(
                    f"servers {missing} do not listen after {timeout_s:.0f} s: {self.launcher.status_text()}"
                )
            time.sleep(POLL_S)
        return addresses

    def watch(self, stop_request: StopRequest, fleet: LaunchedFleet) -> None:
        """Restart dead servers until the user requests to stop, or 'ps2 stop' has ended all servers."""
        addresses, first_stop_s = self.launcher.hosts.addresses(), 0.0
        while not stop_request.received:
            ended = self.launcher.poll()
            stopped = [index for index, code in self.launcher.hosts.exit_codes().items() if code == 0]
            if len(stopped) == self.launcher.servers:
                click.echo("the fleet was stopped")
                return
            # 'ps2 stop' may be ending all servers: restart none for a while.
            first_stop_s = (first_stop_s or time.monotonic()) if stopped else 0.0
            if not first_stop_s or time.monotonic() - first_stop_s > STOP_TOGETHER_S:
                self._restart(ended)
            addresses = self._record_addresses(addresses, fleet)
            time.sleep(POLL_S)

    def _restart(self, ended: Mapping[int, str | None]) -> None:
        now_s = time.monotonic()
        for index, reason in ended.items():
            if now_s - self._start_attempts_s.get(index, -PAUSE_S) >= PAUSE_S:
                self._start_attempts_s[index] = now_s
                click.echo(f"server {index} is restarted: {reason}", err=True)
                self.launcher.start(index, "")

    def _record_addresses(self, addresses: dict[int, str], fleet: LaunchedFleet) -> dict[int, str]:
        """Record new addresses, for ``ps2 status`` and for drivers that attach."""
        from ps2.launched_fleets import LaunchedServer

        current = {**addresses, **self.launcher.hosts.addresses()}
        if current != addresses:
            for index in sorted(index for index in current if current[index] != addresses.get(index)):
                click.echo(
                    f"server {index} is at {current[index]}: drivers must attach again, with this address", err=True
                )
            fleet.with_servers(tuple(LaunchedServer(address, fleet.launcher) for _, address in sorted(current.items())))
        return current
