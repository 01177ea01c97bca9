"""``ps2 stop``: end the servers of a fleet."""

from __future__ import annotations

import contextlib
import fcntl
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ps2.cli.target import NamedFleet, Which, ask_all, find_target, replaced_servers, target_options
from ps2.errors import PS2Error, TransientError, UnavailableError

if TYPE_CHECKING:
    from ps2.launched_fleets import LaunchedFleet
    from ps2.processes import ProcessId
    from ps2.rpc.control import ServerControl

EPILOG = """\b
Examples:
  ps2 stop                       the fleet that 'ps2 launch' started here
  ps2 stop --name ads
  ps2 stop --fleet host1:7070,host2:7070 --token-file fleet.token

\b
Exit codes: 0 all servers have ended, 1 a server has not, 4 a server cannot be reached, or there is no such fleet, 6 the
fleet has another token.
"""
# The time in which servers end; in which killed processes end; and in which the launcher ends after its servers.
END_TIMEOUT_S = 10.0
KILL_TIMEOUT_S = 2.0
LAUNCHER_TIMEOUT_S = 3.0
POLL_S = 0.05


@click.command(epilog=EPILOG)
@target_options
def stop(which: Which) -> None:
    """End the servers of a fleet. Their data are lost."""
    target = find_target(which)
    if target.launched is not None:
        _stop_launched(target, target.launched)
    else:
        _stop_by_address(target)


def _stop_launched(target: NamedFleet, fleet: LaunchedFleet) -> None:
    """End supervision, the launched servers and their replacements. A server that does not answer gets SIGTERM."""
    from ps2.launched_fleets import remove

    was_alive = fleet.alive()
    silent: set[str] = set()
    if was_alive:
        # This also checks the token, before anything is ended.
        hellos = ask_all(target, lambda control, address: control.hello(address), _running(fleet))
        silent = {address for address, hello in hellos.items() if isinstance(hello, TransientError)}
        fleet = _end_supervision(fleet)
    replaced = replaced_servers(fleet, target.token, target.tls)
    if replaced:
        try:
            _stop_by_address(replace(target, addresses=tuple(sorted(replaced))))
        except UnavailableError as error:
            raise UnavailableError(f"{error}; the fleet's token stays in {fleet.folder}") from error
    elif not was_alive:
        remove(fleet)
        click.echo(f"fleet {fleet.name!r} had ended already; removed its folder")
        return
    running = _running(fleet)
    answering = [address for address in running if address not in silent]
    answers = ask_all(target, lambda control, address: control.stop(address), answering)
    silent |= {address for address, answer in answers.items() if isinstance(answer, TransientError)}
    for address in silent & running.keys():
        running[address].send(signal.SIGTERM)
    alive = _wait_for_end(list(running.values()), END_TIMEOUT_S)
    # A launcher in the foreground ends when its servers have ended.
    if _wait_for_end([fleet.launcher], LAUNCHER_TIMEOUT_S if running else 0):
        fleet.launcher.send(signal.SIGTERM)
    alive += _wait_for_end([fleet.launcher], END_TIMEOUT_S)
    for process in alive:
        click.echo(f"process {process.pid} did not end within {END_TIMEOUT_S:.0f} s: killed", err=True)
        process.send(signal.SIGKILL)
    still_alive = _wait_for_end(alive, KILL_TIMEOUT_S)
    if still_alive:
        raise PS2Error(f"these processes do not end: {', '.join(str(process.pid) for process in still_alive)}")
    remove(fleet)
    if running or not replaced:
        click.echo(f"stopped fleet {fleet.name!r}: {', '.join(running) or 'no server was running'}")


def _running(fleet: LaunchedFleet) -> dict[str, ProcessId]:
    return {server.address: server.process for server in fleet.servers if server.alive()}


def _end_supervision(fleet: LaunchedFleet) -> LaunchedFleet:
    """Make sure that no server is started anew from now on; return the fleet with the servers that run then."""
    from ps2.launched_fleets import read

    fleet.stop_file.touch()
    if fleet.guard is None:  # the launcher, if any, reads the file
        return fleet
    with open(fleet.lock_file, "a") as lock:
        deadline_s = time.monotonic() + KILL_TIMEOUT_S
        while True:
            # A guard that becomes the supervisor now reads the file and ends.
            for process in filter(None, [fleet.launcher, fleet.guard]):
                process.send(signal.SIGKILL)
            fleet = read(fleet.name) or fleet
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return read(fleet.name) or fleet
            if time.monotonic() > deadline_s:
                raise PS2Error(f"fleet {fleet.name!r}: its supervisor (process {fleet.launcher.pid}) does not end")
            time.sleep(POLL_S)


def _stop_by_address(target: NamedFleet) -> None:
    """End servers that are known only by their addresses."""
    answers = ask_all(target, _stop_and_wait, target.addresses)
    ended = [address for address, answer in answers.items() if answer is True]
    running = [address for address, answer in answers.items() if answer is False]
    errors = [str(answer) for answer in answers.values() if isinstance(answer, TransientError)]
    if ended:
        click.echo(f"stopped {', '.join(ended)}")
    if running:
        raise PS2Error(f"these servers still run after {END_TIMEOUT_S:.0f} s: {', '.join(running)}")
    if errors:
        raise UnavailableError(f"{len(errors)} of {len(answers)} servers unreachable: {'; '.join(errors)}")


def _stop_and_wait(control: ServerControl, address: str) -> bool:
    """Stop one server; return whether it has ended in time (or was replaced)."""
    server_id = control.hello(address).server_id
    control.stop(address)
    deadline_s = time.monotonic() + END_TIMEOUT_S
    while time.monotonic() < deadline_s:
        try:
            if control.hello(address).server_id != server_id:
                return True
        except PS2Error:
            return True
        time.sleep(POLL_S)
    return False


def _wait_for_end(processes: list[ProcessId], timeout_s: float) -> list[ProcessId]:
    """Wait for processes to end; return those that are still alive."""
    deadline_s = time.monotonic() + timeout_s
    while (alive := [process for process in processes if process.alive()]) and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    return alive
