"""``ps2 token``: make a fleet's token, and replace it while the fleet runs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import click

from ps2.cli.output import Format, format_option, print_data
from ps2.config import new_token, read_token, replace_token, write_token
from ps2.errors import ConfigError

EPILOG = """\b
Examples:
  ps2 token new fleet.token       make a token, for --token-file of servers and tokenFile of drivers
  ps2 token rotate fleet.token    add a new token: both are accepted; copy the file to all hosts
  ps2 token retire fleet.token    remove the old token; copy the file again
  ps2 token show fleet.token      the number of tokens, and their fingerprints, to compare hosts; never a token itself

\b
Servers read their file again within a second of a change. Drivers read it when they start, so retire the old token when
all drivers that started before the rotation have ended. docs/security.md has the details.

\b
Exit codes: 0 done, 2 the file cannot be used (it exists, has two tokens already, or others can read it), 6 the file has
no token.
"""
FINGERPRINT_CHARS = 12

file_argument = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


@click.group(epilog=EPILOG)
def token() -> None:
    """Make a fleet's token, and replace it while the fleet runs."""


@token.command(epilog=EPILOG)
@file_argument
@format_option
def new(file: Path, output: Format) -> None:
    """Write a new token to FILE, which only you can read."""
    try:
        write_token(file, new_token())
    except FileExistsError:
        raise ConfigError(f"{file} exists; 'ps2 token rotate {file}' adds a new token to it") from None
    _report(file, output, "made")


@token.command(epilog=EPILOG)
@file_argument
@format_option
def rotate(file: Path, output: Format) -> None:
    """Add a new token to FILE, before the present token. Both are accepted until 'ps2 token retire'."""
    tokens = read_token(file).split()
    if len(tokens) > 1:
        raise ConfigError(f"{file} has two tokens already; end that rotation first, by 'ps2 token retire {file}'")
    replace_token(file, f"{new_token()}\n{tokens[0]}")
    _report(file, output, "rotated")


@token.command(epilog=EPILOG)
@file_argument
@format_option
def retire(file: Path, output: Format) -> None:
    """Remove the old token from FILE. From then on, only the new token is accepted."""
    tokens = read_token(file).split()
    if len(tokens) > 1:
        replace_token(file, tokens[0])
    _report(file, output, "retired" if len(tokens) > 1 else "unchanged")


@token.command(epilog=EPILOG)
@file_argument
@format_option
def show(file: Path, output: Format) -> None:
    """Show how many tokens FILE has, and their fingerprints."""
    _report(file, output, "unchanged")


def _report(file: Path, output: Format, change: str) -> None:
    fingerprints = [hashlib.sha256(line.encode()).hexdigest()[:FINGERPRINT_CHARS] for line in read_token(file).split()]
    record: dict[str, Any] = {"file": str(file), "done": change, "fingerprints": fingerprints}
    if output != "table":
        print_data(record, output)
        return
    newest, *older = fingerprints
    click.echo(f"{file}: token {newest}" + (f", and the older {older[0]}: both are accepted" if older else ""))
    if change == "rotated":
        click.echo(f"copy it to all hosts; when all drivers that started before have ended: ps2 token retire {file}")
