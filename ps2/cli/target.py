"""Which fleet a command is about: named on the command line, or launched here before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ps2.config import TOKEN_FILE_VARIABLE, read_token, split_address
from ps2.errors import AuthError, ConfigError, PS2Error, TransientError

if TYPE_CHECKING:
    from ps2.cli.state import LaunchedFleet
    from ps2.wire.control import ServerControl

T = TypeVar("T")


@dataclass(frozen=True)
class NamedFleet:
    """A fleet to talk to; ``launched`` is what is known of one that was launched here."""

    addresses: tuple[str, ...]
    token: str | None
    launched: LaunchedFleet | None = None


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which fleet is meant."""
    options = [
        click.option("--fleet", metavar="HOST:PORT,...", help="Addresses of the servers."),
        click.option(
            "--token-file",
            type=click.Path(),
            help=f"The fleet's token  [default: the launched fleet's; with --fleet ${TOKEN_FILE_VARIABLE}].",
        ),
        click.option("--name", metavar="NAME", help="A fleet that 'ps2 launch' started here  [default: default]."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def find_target(fleet: str | None, token_file: str | None, name: str | None) -> NamedFleet:
    """Return the fleet that the options name.

    Raises:
        ConfigError: both ways to name one, or addresses that are none.
        UnavailableError: nothing of that name was launched here.
        AuthError: the token cannot be read.
    """
    import os

    from ps2.cli.state import DEFAULT_NAME, find

    if fleet is not None and name is not None:
        raise ConfigError("give either --fleet or --name, not both")
    if fleet is None:
        launched = find(DEFAULT_NAME if name is None else name)
        token = read_token(token_file or launched.token_file)
        return NamedFleet(tuple(server.address for server in launched.servers), token, launched)
    addresses = tuple(dict.fromkeys(address.strip() for address in fleet.split(",") if address.strip()))
    if not addresses:
        raise ConfigError(f"--fleet: expected HOST:PORT,HOST:PORT..., got {fleet!r}")
    for address in addresses:
        split_address(address)
    file = token_file or os.environ.get(TOKEN_FILE_VARIABLE)
    return NamedFleet(addresses, read_token(file) if file else None)


@contextmanager
def controlled(token: str | None) -> Iterator[ServerControl]:
    """Open control calls to servers."""
    from ps2.wire.control import ServerControl
    from ps2.wire.transport import GrpcTransport

    transport = GrpcTransport(token)
    try:
        yield ServerControl(transport)
    finally:
        transport.close()


def ask_all(
    target: NamedFleet, ask: Callable[[ServerControl, str], T], addresses: Sequence[str]
) -> dict[str, T | TransientError]:
    """Ask servers at the same time; one that does not answer is in the result with its error.

    Raises:
        PS2Error: a server answered that it will not; the message starts with its address.
    """

    from ps2.wire.at_once import at_once

    def attempt(control: ServerControl, address: str) -> T | TransientError:
        try:
            return ask(control, address)
        except TransientError as error:
            return error
        except PS2Error as error:
            raise type(error)(f"{address}: {_hint(error, target)}") from error

    with controlled(target.token) as control:
        return dict(zip(addresses, at_once(addresses, lambda address: attempt(control, address)), strict=True))


def _hint(error: PS2Error, target: NamedFleet) -> str:
    if isinstance(error, AuthError) and target.token is None:
        return f"a token is needed; give --token-file, or set {TOKEN_FILE_VARIABLE}"
    return str(error)
