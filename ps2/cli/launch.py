"""``ps2 launch``: start a fleet on this host, for Spark applications to attach to."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ps2.certificates import TlsFiles
from ps2.cli.contained import LOG_FILE, StopRequest
from ps2.cli.options import FiniteRange, ops_option, parse_bytes, parse_host, parse_ports, tls_options
from ps2.cli.target import controlled, replaced_servers
from ps2.config import (
    ANY_PORT,
    DEFAULT_PORT,
    MAX_PORT,
    TOKEN_FILE_VARIABLE,
    Binding,
    FleetConfig,
    is_loopback,
    is_wildcard,
    join_address,
    new_token,
    read_host,
    read_token,
    split_address,
    tls_warning,
    write_token,
)
from ps2.errors import AuthError, ConfigError, LaunchError, PS2Error, UnavailableError

if TYPE_CHECKING:
    from ps2.cli.processes import ServerProcesses
    from ps2.launched_fleets import LaunchedFleet


EPILOG = """\b
Examples:
  ps2 launch --servers 2                                  two servers on 127.0.0.1:7070 and :7071, until Ctrl-C
  ps2 launch --servers 4 --detach --memory-limit 8g       in the background, until 'ps2 stop'
  ps2 launch --servers 2 --detach --name ads --port 7170  a second fleet on this host
  ps2 launch --servers 1 --host :: --token-file fleet.token --tls-cert cert.pem --tls-key key.pem --tls-ca ca.pem
  ps2 launch --on spark --servers 8 --memory 4g -- --master yarn --queue servers --archives env.tar.gz#environment

\b
Exit codes: 0 the servers run (--detach) or were stopped, 1 a server did not start, or died again and again (with
--no-restart: died once), 130 Ctrl-C.
"""
MAX_SERVERS = 256
# The fraction of the machine's memory for all servers together. The rest is for Spark.
MEMORY_FRACTION = 0.8
START_POLL_S = 0.05


@click.command(epilog=EPILOG)
@click.option(
    "--on",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="Where the servers run: on this host, or in containers of a cluster, as a Spark application submitted with "
    "the options after '--'.",
)
@click.option("--servers", type=click.IntRange(1, MAX_SERVERS), default=2, show_default=True, help="Number of servers.")
@click.option("--detach", is_flag=True, help="Return once the servers run; 'ps2 stop' ends them.")
@click.option(
    "--restart/--no-restart",
    default=True,
    show_default=True,
    help="Start dead servers anew, at their addresses. In containers (--on spark) they always are.",
)
@click.option(
    "--host",
    help="Host where the servers listen; with --on spark, where this process listens for the containers  [default: "
    "127.0.0.1; with --on spark this host's name].",
)
@click.option(
    "--advertise",
    metavar="HOST",
    callback=parse_host,
    help="Host by which drivers reach the servers, or containers this process  [default: --host; for 0.0.0.0 and :: "
    "this host's name, or one of its addresses].",
)
@click.option(
    "--port",
    type=click.IntRange(1, MAX_PORT),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port of the first server; each further server has the next port.",
)
@click.option(
    "--data-port",
    type=click.IntRange(1, MAX_PORT),
    metavar="BASE",
    help="Port of the first server for data connections; each further server has the next port  [default: any free "
    "ports].",
)
@click.option(
    "--ports",
    callback=parse_ports,
    default="0",
    metavar="FIRST-LAST",
    help="With --on spark: this process listens on the first free port of this range  [default: any].",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    envvar=TOKEN_FILE_VARIABLE,
    show_envvar=True,
    help="Existing file with a token  [default: a new token].",
)
@tls_options
@click.option(
    "--memory-limit",
    "--memory",
    "memory_limit",
    type=parse_bytes,
    metavar="BYTES",
    help="Memory limit of each server's arrays  [default: an equal share of 80% of the memory; with --on spark 1g].",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, MAX_PORT),
    metavar="BASE",
    help="Port of the first server for Prometheus; each further server has the next port  [default: no metrics].",
)
@ops_option
@click.option("--name", default="default", show_default=True, help="Name of the fleet.")
@click.option(
    "--start-timeout",
    type=FiniteRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="With --on spark: maximum time for the cluster to start all containers.",
)
@click.argument("submit", nargs=-1, type=click.UNPROCESSED, metavar="[-- SPARK-SUBMIT-OPTIONS]")
def launch(
    on: str,
    servers: int,
    detach: bool,
    restart: bool,
    host: str | None,
    advertise: str | None,
    port: int,
    data_port: int | None,
    ports: range,
    token_file: Path | None,
    memory_limit: int | None,
    metrics_port: int | None,
    ops: tuple[str, ...],
    name: str,
    start_timeout: float,
    submit: tuple[str, ...],
    tls: TlsFiles | None,
) -> None:
    """Start servers, on this host or in containers of a cluster, for Spark applications to attach to."""
    from ps2.cli.processes import ServerProcesses
    from ps2.cli.supervisor import Supervisor, lock, open_log, supervise
    from ps2.launched_fleets import ServerOptions, claim, remove
    from ps2.listening import loopback_host, reachable_host
    from ps2.processes import ProcessId
    from ps2.server.memory import available_bytes
    from ps2.transport.tls import check_serving

    host = None if host is None else read_host(host, "--host")
    if on == "spark":
        for option, value in (("--metrics-port", metrics_port), ("--data-port", data_port)):
            if value is not None:
                raise ConfigError(f"{option}: servers in containers choose their ports when they start")
        # This forks, so no thread may have been started before.
        report_ready = go_to_background() if detach else None
        from ps2.cli.contained import run
        from ps2.coordinator.launchers.containers.submission import DEFAULT_MEMORY_BYTES
        from ps2.coordinator.launchers.spark import ContainedServers

        token = new_token() if token_file is None else read_token(token_file)
        memory = memory_limit or DEFAULT_MEMORY_BYTES
        host = host or reachable_host()
        binding = Binding(host, advertise or (reachable_host() if is_wildcard(host) else host), ports)
        if tls is not None:
            check_serving(tls, binding.advertised)
        containers = ContainedServers(servers, token, binding, memory, ops, keep_addresses=True, tls=tls)
        run(containers, submit, name, token_file, start_timeout, StopRequest(), report_ready)
        return
    if submit:
        raise ConfigError(f"{' '.join(submit)}: options of spark-submit need --on spark")
    if ports != ANY_PORT:
        raise ConfigError("--ports needs --on spark: --port and --data-port set the ports of servers on this host")
    host = host or loopback_host()
    _check_ports(servers, {"--port": port, "--data-port": data_port, "--metrics-port": metrics_port})
    if token_file is not None:
        token_file = token_file.absolute()
        read_token(token_file)
    limit = memory_limit or int(available_bytes() * MEMORY_FRACTION) // servers
    listen = tuple(join_address(host, port + index) for index in range(servers))
    advertised = advertise or (reachable_host() if is_wildcard(host) else host)
    options = ServerOptions(
        *(listen, limit, advertised, data_port, metrics_port, ops), exit_with_parent=not detach, restart=restart
    )
    if tls is not None:
        check_serving(tls, advertised)
    # This forks, so no thread may have been started before.
    report_ready = go_to_background() if detach and restart else None
    _check_not_replaced(name)
    stop_request = StopRequest()
    with contextlib.ExitStack() as undo:
        fleet = claim(name, ProcessId.from_pid(os.getpid()), token_file, tls, options)
        undo.callback(remove, fleet)
        if report_ready is not None:
            lock(fleet)
        if token_file is None:
            write_token(fleet.token_file, new_token())
        processes = ServerProcesses(fleet, options)
        undo.callback(processes.stop)
        for index in range(servers):
            processes.start(index)
        _wait_answering(processes, stop_request)
        click.echo(_description(processes.fleet, detach, metrics_port))
        if not detach:
            open_log()
            supervisor = Supervisor(processes, options)
            supervisor.watch(stop_request)
            click.echo("the fleet was stopped" if supervisor.stopped else f"\nstopping {processes.fleet.count_text}")
            if stop_request.interrupted:
                raise KeyboardInterrupt
            return
        undo.pop_all()
    if report_ready is not None:
        report_ready(fleet.folder / LOG_FILE)
        open_log()
        supervise(processes, options)
    else:
        processes.leave()


def _check_not_replaced(name: str) -> None:
    """Raise LaunchError if other processes, started by another launcher, have replaced the fleet's servers."""
    from ps2.launched_fleets import command, find

    try:
        fleet = find(name)
        addresses = replaced_servers(fleet, read_token(fleet.token_file), fleet.tls)
    except (UnavailableError, AuthError):  # there is no such fleet, or it cannot be reached
        return
    if addresses:
        raise LaunchError(
            f"fleet {name!r} is running at {', '.join(sorted(addresses))}; end it with '{command('stop', name)}', or "
            "choose another --name"
        )


def _check_ports(servers: int, requested: Mapping[str, int | None]) -> None:
    """Raise ConfigError if ports overlap or exceed ``MAX_PORT``. ``requested``: option -> the first server's port."""
    first_ports = {option: port for option, port in requested.items() if port is not None}
    for option, port in first_ports.items():
        if port + servers - 1 > MAX_PORT:
            raise ConfigError(f"{option}: {servers} servers from {port} on need ports up to {port + servers - 1}")
    for (option, port), (other, other_port) in combinations(first_ports.items(), 2):
        if abs(port - other_port) < servers:
            raise ConfigError(f"{other}: {servers} ports from {other_port} on overlap those from {option} {port} on")


def _wait_answering(processes: ServerProcesses, stop_request: StopRequest) -> None:
    """Wait until each server answers with the pid of its process; raise LaunchError if one ends, or takes too long."""
    fleet, timeout_s = processes.fleet, FleetConfig().start_timeout_s
    deadline_s = time.monotonic() + timeout_s
    pending = dict(enumerate(fleet.servers))
    with controlled(read_token(fleet.token_file), fleet.tls) as control:
        while pending:
            for index, server in list(pending.items()):
                if processes.exit_code(index) is not None:
                    raise LaunchError(f"server {index} ({server.address}) did not start: {processes.ending(index)}")
                with contextlib.suppress(PS2Error):  # the server does not answer yet
                    if control.status(server.address).pid == server.process.pid:
                        del pending[index]
            stop_request.check()
            if time.monotonic() > deadline_s:
                addresses = ", ".join(server.address for server in pending.values())
                raise LaunchError(f"no answer from {addresses} within {timeout_s:.0f} s")
            time.sleep(START_POLL_S)


def _description(fleet: LaunchedFleet, detach: bool, metrics_port: int | None) -> str:
    from ps2.launched_fleets import COPY_ADVICE, description

    texts = [
        f"pid {server.process.pid}" + ("" if metrics_port is None else f"  metrics on port {metrics_port + index}")
        for index, server in enumerate(fleet.servers)
    ]
    lines = [*description(fleet, "running", texts, detach), f"logs    {fleet.folder}"]
    if (warning := tls_warning(fleet.tls, *(server.address for server in fleet.servers))) is not None:
        lines += ["", f"warning: {warning}"]
    if not all(is_loopback(split_address(server.address)[0]) for server in fleet.servers):
        lines += ["", COPY_ADVICE]
    return "\n".join(lines)


def go_to_background() -> Callable[[Path], None]:
    """Fork; the parent waits, and the child returns. The process must have only one thread.

    Returns:
        The function that ends the parent's wait when the fleet runs; its argument is the file for all later output. The
        parent then exits with 0. If the child ends before that, the parent exits with the child's exit code. The parent
        passes signals on to the child.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, _: os.kill(pid, number))
        is_ready = os.read(reader, 1) != b""
        sys.exit(0 if is_ready else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os.close(reader)

    def report_ready(log: Path) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        # Leave the terminal's session, and replace its files.
        os.setsid()
        with open(os.devnull) as null, open(log, "a") as file:
            os.dup2(null.fileno(), 0)
            for fd in (1, 2):
                os.dup2(file.fileno(), fd)
        os.write(writer, b"+")
        os.close(writer)

    return report_ready
