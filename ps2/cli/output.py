"""Output of commands: tables on terminals, plain text in pipes, JSON and YAML for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Literal

import click

from ps2.text_tables import Column, Table, console_for, print_to_console

Format = Literal["table", "json", "yaml"]

format_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Output format.",
)


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> bool:
    """Print a table, coloured on terminals only; return whether all columns fit."""
    return print_to_console(console_for(sys.stdout.isatty()), Table(columns, [*rows]))


def print_data(value: object, form: Format) -> None:
    """Print a value as JSON or YAML."""
    if form == "yaml":
        import yaml

        click.echo(yaml.safe_dump(value, sort_keys=False), nl=False)
    else:
        click.echo(json.dumps(value, indent=2))
