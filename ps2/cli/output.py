"""The output of commands (tables on terminals, text in pipes, JSON and YAML for programs), and their exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Literal

import click

from ps2.errors import AuthError, ConfigError, DeadlineError, PS2Error, UnavailableError
from ps2.text_tables import Column, Table, console_for, print_to_console

Format = Literal["table", "json", "yaml"]

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 4
EXIT_UNAUTHENTICATED = 6
# The exit code that shells report for a command that Ctrl-C has ended.
EXIT_INTERRUPTED = 130

format_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Output format.",
)


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> bool:
    """Print a table, with colours only on terminals; return False if columns are hidden in a narrow terminal."""
    return print_to_console(console_for(sys.stdout.isatty()), Table(columns, [*rows]))


def print_data(value: object, form: Format) -> None:
    if form == "yaml":
        import yaml

        click.echo(yaml.safe_dump(value, sort_keys=False), nl=False)
    else:
        click.echo(json.dumps(value, indent=2))


def exit_code(error: PS2Error) -> int:
    if isinstance(error, AuthError):
        return EXIT_UNAUTHENTICATED
    if isinstance(error, (UnavailableError, DeadlineError)):
        return EXIT_UNREACHABLE
    return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILURE
