"""``ps2 server``: run one server in the foreground."""

from __future__ import annotations

import logging
from pathlib import Path

import click

from ps2.certificates import TlsFiles
from ps2.cli.options import (
    FiniteRange,
    ops_option,
    parse_address,
    parse_bytes,
    parse_host,
    parse_listen,
    parse_ports,
    tls_options,
)
from ps2.config import DEFAULT_PORT, MAX_PORT, TOKEN_FILE_VARIABLE, ServerConfig, join_address
from ps2.errors import ConfigError
from ps2.logs import TEXT, log_format

EPILOG = """\b
Examples:
  ps2 server --listen 127.0.0.1:7070 --token-file fleet.token
  ps2 server --listen [::]:7070 --advertise host1 --token-file /run/secrets/ps2
  ps2 server --listen [::]:7070 --token-file fleet.token --tls-cert cert.pem --tls-key key.pem --tls-ca ca.pem
  ps2 server --master driver-host:40123 --index 0 --token-file fleet.token
"""


@click.command(epilog=EPILOG)
@click.option(
    "--listen",
    callback=parse_listen,
    metavar="HOST:PORT",
    help="Address to listen on; [::]:7070 is all addresses of this host, HOST:FIRST-LAST is the first free port  "
    f"[default: 127.0.0.1:{DEFAULT_PORT}; with --master a free port on 127.0.0.1].",
)
@click.option(
    "--data-port",
    "data_ports",
    callback=parse_ports,
    default="0",
    metavar="PORT",
    show_default=True,
    help="Port for data connections, on the host of --listen; FIRST-LAST is the first free port, 0 is any free port. "
    "The server tells clients the port over gRPC.",
)
@click.option(
    "--advertise",
    metavar="HOST",
    callback=parse_host,
    help="Host by which clients reach this server  [default: that of --listen; for 0.0.0.0 and :: this host's name, or "
    "one of its addresses].",
)
@click.option(
    "--master",
    metavar="HOST:PORT",
    callback=parse_address,
    help="Register with this coordinator, and end when it has ended.",
)
@click.option(
    "--index",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Index of the server in its fleet (with --master).",
)
@click.option(
    "--token-file", type=click.Path(), envvar=TOKEN_FILE_VARIABLE, show_envvar=True, help="File with the fleet's token."
)
@tls_options
@click.option("--insecure", is_flag=True, help="Serve without a token; on loopback only, and without users' functions.")
@click.option("--no-udf", is_flag=True, help="Do not run users' functions (mapPartitions).")
@click.option(
    "--memory-limit", type=parse_bytes, metavar="BYTES", help="Memory limit of arrays  [default: 80% of the memory]."
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    default=ServerConfig.threads,
    show_default=True,
    help="Number of gRPC requests served at the same time.",
)
@click.option("--cores", type=click.IntRange(1), metavar="N", help="Cores that kernels may use  [default: all].")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, MAX_PORT),
    metavar="PORT",
    help="Port for Prometheus, on the host of --listen and without a token; 0 is a free port, which is logged  "
    "[default: no metrics].",
)
@click.option(
    "--drain",
    type=FiniteRange(0, 86_400),
    default=ServerConfig.drain_s,
    show_default=True,
    metavar="SECONDS",
    help="After SIGTERM, wait at most this time until the driver has made a checkpoint, or has copies of the data. A "
    "second SIGTERM ends the server at once. Not with --master.",
)
@ops_option
@click.option("--exit-with-parent", type=int, metavar="PID", hidden=True)
@click.option("--scratch", type=click.Path(path_type=Path), hidden=True)
@click.option("--announce", type=int, hidden=True)
def server(
    listen: str | None,
    data_ports: range,
    advertise: str | None,
    master: str | None,
    index: int,
    token_file: str | None,
    insecure: bool,
    no_udf: bool,
    memory_limit: int | None,
    threads: int,
    cores: int | None,
    metrics_port: int | None,
    drain: float,
    ops: tuple[str, ...],
    exit_with_parent: int | None,
    scratch: Path | None,
    announce: int | None,
    tls: TlsFiles | None,
) -> None:
    """Run one server in the foreground, until it is stopped."""
    from ps2.client.network import FleetNetwork
    from ps2.listening import loopback_host
    from ps2.processes import ProcessId
    from ps2.server.memory import available_bytes
    from ps2.server.process import Home, Parent, serve
    from ps2.server.tokens import watch_token_file

    if token_file is None and not insecure:
        raise ConfigError(
            "give --token-file (or PS2_TOKEN_FILE), as 'ps2 token new FILE' makes one, or --insecure on loopback"
        )
    if token_file is not None and insecure:
        raise ConfigError("give either --token-file or --insecure, not both")
    if drain and master is not None:
        raise ConfigError("--drain: expected no --master, whose coordinator ends and replaces the server")
    if log_format() == TEXT:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = ServerConfig(
        listen=listen or join_address(loopback_host(), 0 if master else DEFAULT_PORT),
        data_ports=data_ports,
        advertise=advertise,
        memory_limit_bytes=memory_limit or int(available_bytes() * 0.8),
        threads=threads,
        cores=cores,
        allow_udf=not no_udf,
        metrics_port=metrics_port,
        ops=ops,
        announce=announce,
        drain_s=drain,
        # Read certificates from pipes now, because a pipe can be read only once.
        tls=tls if tls is None or tls.are_regular else tls.current(),
    )
    token = None if token_file is None else watch_token_file(token_file)
    serve(
        config,
        token,
        Home(master, index) if master else None,
        Parent(ProcessId.from_pid(exit_with_parent), scratch) if exit_with_parent is not None else None,
        lambda wire: FleetNetwork(token, wire),
    )
