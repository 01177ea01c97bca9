"""Options for the certificates of a command."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import click

from ps2.certificates import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE, NAME_VARIABLE, TlsFiles, tls_files

Command = Callable[..., Any]
# Environment variable, value and help by the end of the option's name.
OPTIONS = {
    "cert": (CERT_VARIABLE, "FILE", "Certificate of this process, and intermediate ones (PEM)."),
    "key": (KEY_VARIABLE, "FILE", "Its private key (PEM), readable by the owner only."),
    "ca": (CA_VARIABLE, "FILE", "Trusted authority (PEM); servers then require client certificates."),
    "name": (NAME_VARIABLE, "HOST", "Name in the fleet's certificates  [default: the host of each process]."),
}


def tls_options(command: Command) -> Command:
    """Add the options; the command gets one argument, ``tls``: TlsFiles, or None."""

    @functools.wraps(command)
    def call(**arguments: Any) -> Any:
        tls = tls_files(*(arguments.pop(f"tls_{name}") for name in OPTIONS))
        return command(**arguments, tls=tls)

    return add_tls_options(call, environment=True)


def add_tls_options(command: Command, environment: bool) -> Command:
    """Add the options as separate arguments: ``tls_cert``, ``tls_key``, ``tls_ca``, ``tls_name``.

    Args:
        environment: True if each option has a variable as its default.
    """
    for name, (variable, metavar, text) in reversed(OPTIONS.items()):
        kind = click.Path() if metavar == "FILE" else str
        option = (
            click.option(f"--tls-{name}", type=kind, metavar=metavar, help=text, envvar=variable, show_envvar=True)
            if environment
            else click.option(f"--tls-{name}", type=kind, metavar=metavar, help=text)
        )
        command = option(command)
    return command


def tls_from_environment() -> TlsFiles | None:
    """Return the files that environment variables name; None if they name none."""
    return tls_files(*(os.environ.get(variable) for variable, _, _ in OPTIONS.values()))
