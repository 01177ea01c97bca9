"""The fleet that a command uses: its addresses are on the command line, or it was launched on this host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ps2.certificates import TlsFiles, tls_files
from ps2.cli.options import Command, Decorator, add_options, tls_arguments, tls_from_environment
from ps2.config import TOKEN_FILE_VARIABLE, WireConfig, read_token, split_address
from ps2.errors import AuthError, ConfigError, DeadlineError, PS2Error, TransientError

if TYPE_CHECKING:
    from ps2.launched_fleets import LaunchedFleet
    from ps2.rpc.control import ServerControl

T = TypeVar("T")


@dataclass(frozen=True)
class NamedFleet:
    """A fleet that a command connects to; ``launched`` is its record if it was launched on this host."""

    addresses: tuple[str, ...]
    token: str | None
    launched: LaunchedFleet | None = None
    tls: TlsFiles | None = None


@dataclass(frozen=True)
class Which:
    """The values of the options that name a fleet; None: the option is not set."""

    fleet: str | None
    token_file: str | None
    name: str | None
    tls_cert: str | None
    tls_key: str | None
    tls_ca: str | None
    tls_name: str | None


def target_options(command: Command) -> Command:
    """Add the options that name a fleet; the command gets one argument, ``which``."""

    @functools.wraps(command)
    def call(**arguments: Any) -> Any:
        which = Which(**{field.name: arguments.pop(field.name) for field in fields(Which)})
        return command(**arguments, which=which)

    options: list[Decorator] = [
        click.option("--fleet", metavar="HOST:PORT,...", help="Addresses of the servers."),
        click.option(
            "--token-file",
            type=click.Path(),
            help=f"The fleet's token  [default: the launched fleet's; with --fleet ${TOKEN_FILE_VARIABLE}].",
        ),
        click.option("--name", metavar="NAME", help="A fleet that 'ps2 launch' started here  [default: default]."),
        *tls_arguments(environment=False),
    ]
    return add_options(call, options)


def find_target(which: Which) -> NamedFleet:
    """Return the fleet that the options name.

    Raises:
        ConfigError: --fleet and --name are both set, or an address is malformed.
        UnavailableError: no fleet of that name was launched here.
        AuthError: the token cannot be read.
    """
    import os

    from ps2.launched_fleets import DEFAULT_NAME, find

    fleet, token_file, name = which.fleet, which.token_file, which.name
    tls = tls_files(which.tls_cert, which.tls_key, which.tls_ca, which.tls_name)
    if fleet is not None and name is not None:
        raise ConfigError("give either --fleet or --name, not both")
    if fleet is None:
        launched = find(DEFAULT_NAME if name is None else name)
        token = read_token(token_file or launched.token_file)
        addresses = tuple(server.address for server in launched.servers)
        return NamedFleet(addresses, token, launched, tls or launched.tls)
    addresses = tuple(dict.fromkeys(address.strip() for address in fleet.split(",") if address.strip()))
    if not addresses:
        raise ConfigError(f"--fleet: expected HOST:PORT,HOST:PORT..., got {fleet!r}")
    for address in addresses:
        if ":" not in address:
            raise ConfigError(f"--fleet: expected HOST:PORT,HOST:PORT..., got {fleet!r}; a name needs --name {address}")
        split_address(address, "--fleet")
    file = token_file or os.environ.get(TOKEN_FILE_VARIABLE)
    return NamedFleet(addresses, read_token(file) if file else None, tls=tls or tls_from_environment())


@contextmanager
def controlled(token: str | None, tls: TlsFiles | None) -> Iterator[ServerControl]:
    """Open connections for control calls to servers."""
    from ps2.client.network import FleetNetwork
    from ps2.rpc.control import ServerControl

    transport = FleetNetwork(token, WireConfig(tls=tls))
    try:
        yield ServerControl(transport)
    finally:
        transport.close()


def ask_all(
    target: NamedFleet, ask: Callable[[ServerControl, str], T], addresses: Collection[str]
) -> dict[str, T | TransientError]:
    """Call ``ask`` for all servers concurrently; return the results by address, or the TransientError of a call.

    Raises:
        PS2Error: a call raised another error; the message starts with the server's address.
    """
    from ps2.transport.concurrent_calls import call_concurrently

    def attempt(control: ServerControl, address: str) -> T | TransientError:
        try:
            return ask(control, address)
        except TransientError as error:
            return error
        except PS2Error as error:
            hint = _message(error, target)
            raise type(error)(hint if hint.startswith(address) else f"{address}: {hint}") from error

    with controlled(target.token, target.tls) as control:
        return dict(
            zip(addresses, call_concurrently(addresses, lambda address: attempt(control, address)), strict=True)
        )


def replaced_servers(fleet: LaunchedFleet, token: str | None, tls: TlsFiles | None) -> set[str]:
    """Return the addresses of servers that accept the fleet's token, but are not the launched processes.

    The result includes servers that accept connections but do not answer in time, such as paused processes, because
    they can belong to the fleet. It excludes servers of this host's other fleets, which can have the same token.
    """
    from ps2.launched_fleets import other_servers
    from ps2.transport.concurrent_calls import call_concurrently

    ended = [server.address for server in fleet.servers if not server.alive()]
    if not ended:
        return set()
    others = other_servers(fleet.name)
    pids = {server.process.pid for server in others}
    ended = [address for address in ended if address not in {server.address for server in others}]

    def is_replaced(address: str) -> bool:
        try:
            return control.status(address).pid not in pids
        except DeadlineError:
            return True
        except PS2Error:
            return False

    with controlled(token, tls) as control:
        answers = call_concurrently(ended, is_replaced)
    return {address for address, replaced in zip(ended, answers, strict=True) if replaced}


def _message(error: PS2Error, target: NamedFleet) -> str:
    if isinstance(error, AuthError) and target.token is None:
        return f"a token is needed; give --token-file, or set {TOKEN_FILE_VARIABLE}"
    return str(error)
