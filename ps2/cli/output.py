"""Output of commands: tables on terminals, plain text in pipes, JSON and YAML for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from rich.table import Table

Format = Literal["table", "json", "yaml"]
# Pipes have no width: lines are neither wrapped nor cut.
PIPE_COLUMNS = 10_000
# Between two columns.
GAP = 2
# Minimum width of a folding column, if its text is that long.
FOLDED = 24
SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

format_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="Output format.",
)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        folds: a terminal may break its text into lines.
        widest: characters at which a terminal does so; None leaves it to the space there is.
        room: columns that a terminal must have for this one to be shown.
    """

    title: str
    right: bool = False
    folds: bool = False
    widest: int | None = None
    room: int = 0


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> bool:
    """Print a table, coloured on terminals only; return whether all columns fit.

    What a terminal is too narrow for comes below, in further tables with the first column again.
    """
    from rich.console import Console

    person = sys.stdout.isatty()
    console = Console(
        force_terminal=person, width=None if person else PIPE_COLUMNS, highlight=False, markup=False, emoji=False
    )
    shown = [column.room <= console.width for column in columns]
    kept = [*compress(columns, shown)]
    cells = [[*compress(row, shown)] for row in rows]
    widths = [_least_width(column, [row[at] for row in cells]) for at, column in enumerate(kept)]
    for number, part in enumerate(split(widths, console.width)):
        if number:
            console.print()
        console.print(_table([kept[at] for at in part], [[row[at] for at in part] for row in cells], person))
    return all(shown)


def split(widths: Sequence[int], room: int) -> list[list[int]]:
    """Split columns into tables that fit the width. The first column is in each table."""
    parts: list[list[int]] = [[0]]
    used = widths[0]
    for at, width in enumerate(widths[1:], 1):
        if used + GAP + width > room and len(parts[-1]) > 1:
            parts.append([0])
            used = widths[0]
        parts[-1].append(at)
        used += GAP + width
    return parts


def _least_width(column: Column, cells: Sequence[str]) -> int:
    """Return the width that a column needs. A folding column may take more."""
    whole = max(len(text) for text in (column.title, *cells))
    return min(whole, max(len(column.title), column.widest or FOLDED)) if column.folds else whole


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], person: bool) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        header_style="bold",
        box=box.SIMPLE_HEAD if person else None,
        show_edge=False,
        pad_edge=False,
        padding=(0, 0, 0, 1 if person else GAP),
    )
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.folds,
            overflow="fold",
            max_width=column.widest if person else None,
        )
    for row in rows:
        table.add_row(*row)
    return table


def print_data(value: object, form: Format) -> None:
    """Print a value as JSON or YAML."""
    if form == "yaml":
        import yaml

        click.echo(yaml.safe_dump(value, sort_keys=False), nl=False)
    else:
        click.echo(json.dumps(value, indent=2))


def size(count: float) -> str:
    """Format a number of bytes: 1536 is "1.5 KiB"."""
    power = 0
    while count >= 1023.95 and power < len(SIZE_UNITS) - 1:
        count /= 1024
        power += 1
    return f"{count:.0f} B" if power == 0 else f"{count:.1f} {SIZE_UNITS[power]}"


def duration(time_s: float) -> str:
    """Format a duration in its two largest units: "42s", "3m 5s", "2h 0m", "4d 7h"."""
    seconds = int(time_s)
    parts = [("d", seconds // 86400), ("h", seconds // 3600 % 24), ("m", seconds // 60 % 60), ("s", seconds % 60)]
    first = next((i for i, (_, value) in enumerate(parts) if value), len(parts) - 1)
    return " ".join(f"{value}{unit}" for unit, value in parts[first : first + 2])


def short_time(time_s: float) -> str:
    """Format a time in three digits: "12.3 us", "4.56 ms", "7.89 s"; from a minute on as a duration."""
    if time_s >= 59.95:
        return duration(time_s)
    unit, factor = next(((u, f) for u, f in (("s", 1.0), ("ms", 1e3)) if time_s * f >= 0.9995), ("us", 1e6))
    return f"{float(f'{time_s * factor:.3g}'):g} {unit}" if time_s else "0"


def plain(value: Any) -> str:
    """Format a scalar without needless digits."""
    return f"{value:g}" if isinstance(value, float) else str(value)
