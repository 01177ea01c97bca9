"""Options that several commands have, and the types of their values."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import click

from ps2.certificates import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE, NAME_VARIABLE, TlsFiles, tls_files
from ps2.config import MAX_BYTES, is_wildcard, read_host, read_ports, split_address, split_listen
from ps2.errors import ConfigError

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
# The suffix of the option's name -> the environment variable, metavar and help.
TLS_OPTIONS = {
    "cert": (CERT_VARIABLE, "FILE", "Certificate of this process, and intermediate certificates (PEM)."),
    "key": (KEY_VARIABLE, "FILE", "Its private key (PEM), readable by the owner only."),
    "ca": (CA_VARIABLE, "FILE", "Trusted authority (PEM); servers then require client certificates."),
    "name": (NAME_VARIABLE, "HOST", "Name in the fleet's certificates  [default: the host of each process]."),
}


def add_options(command: Command, options: Sequence[Decorator]) -> Command:
    """Add options to a command; the help shows them in this order."""
    for option in reversed(options):
        command = option(command)
    return command


class FiniteRange(click.FloatRange):
    """A range of finite numbers. click accepts NaN, because NaN is neither below nor above a bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def parse_bytes(text: str) -> int:
    """Parse a number of bytes: 1500000000, 1500m, 8g."""
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    digits = number.rstrip("kmgt")
    unit = number[len(digits) :]
    if unit not in UNITS or not digits.isdecimal() or not digits.strip("0"):
        raise click.BadParameter(f"expected a positive number of bytes such as 8g or 500m, got {text!r}")
    # Check the length first, because Python parses very long numbers slowly.
    if len(digits) > len(str(MAX_BYTES)) or int(digits) * UNITS[unit] > MAX_BYTES:
        raise click.BadParameter(f"expected at most {MAX_BYTES:,} bytes, got {text!r:.100}")
    return int(digits) * UNITS[unit]


def parse_ports(context: click.Context, option: click.Parameter, text: str) -> range:
    """Parse a port, or a range FIRST-LAST."""
    return read_ports(text, option.opts[0])


def parse_listen(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Check an address to listen on; return it unchanged."""
    if text is not None:
        split_listen(text, option.opts[0])
    return text


def parse_address(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Check an address to connect to; return it unchanged."""
    if text is not None:
        split_address(text, option.opts[0])
    return text


def parse_host(context: click.Context, option: click.Parameter, text: str | None) -> str | None:
    """Parse the advertised host, which is no wildcard; an IPv6 address can have brackets."""
    host = None if text is None else read_host(text, option.opts[0])
    if host is not None and is_wildcard(host):
        raise ConfigError(f"{option.opts[0]}: expected a name or address that reaches this host, got {text}")
    return host


ops_option = click.option(
    "--ops",
    multiple=True,
    metavar="MODULE",
    help="Load a module that declares operations (docs/kernels.md); may be repeated. Modules of installed packages are "
    "always loaded.",
)


def tls_arguments(environment: bool) -> list[Decorator]:
    """Return the options --tls-cert, --tls-key, --tls-ca and --tls-name.

    ``environment``: True if environment variables are the options' defaults.
    """
    options: list[Decorator] = []
    for name, (variable, metavar, text) in TLS_OPTIONS.items():
        kind = click.Path() if metavar == "FILE" else str
        defaults: dict[str, Any] = {"envvar": variable, "show_envvar": True} if environment else {}
        options.append(click.option(f"--tls-{name}", type=kind, metavar=metavar, help=text, **defaults))
    return options


def tls_options(command: Command) -> Command:
    """Add the options of certificates; the command gets them as one argument, ``tls``: TlsFiles or None."""

    @functools.wraps(command)
    def call(**arguments: Any) -> Any:
        tls = tls_files(*(arguments.pop(f"tls_{name}") for name in TLS_OPTIONS))
        return command(**arguments, tls=tls)

    return add_options(call, tls_arguments(environment=True))


def tls_from_environment() -> TlsFiles | None:
    """Return the certificate files that environment variables name; None: no variable is set."""
    return tls_files(*(os.environ.get(variable) for variable, _, _ in TLS_OPTIONS.values()))
