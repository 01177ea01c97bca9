"""Tables of text for terminals, pipes and notebooks, and for ``print``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import compress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.table
    from rich.console import Console

# The assumed width of a pipe: lines are neither wrapped nor cut.
PIPE_COLUMNS = 10_000
# The number of blanks between two columns.
GAP = 2
# The minimum width of a folding column whose text is at least as long.
MIN_FOLDED_WIDTH = 24
# The maximum number of rows in a notebook, where long tables are slow.
MAX_HTML_ROWS = 200


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        right: True if the text is aligned to the right.
        folds: True if a terminal may break the text into several lines.
        max_width: the maximum width of the column in a terminal; None: the terminal's width.
        min_width: the column is hidden in a terminal that is narrower.
    """

    title: str
    right: bool = False
    folds: bool = False
    max_width: int | None = None
    min_width: int = 0


@dataclass(frozen=True)
class Table:
    """A table whose cells are text."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        console = console_for(is_terminal=False)
        with console.capture() as captured:
            print_to_console(console, self)
        return captured.get().rstrip("\n")

    def html(self) -> str:
        """Return the table as HTML with escaped cells. It has no colours: they would depend on the page's theme."""
        num_hidden = len(self.rows) - MAX_HTML_ROWS
        footer = f'<tr><td colspan="{len(self.columns)}">and {num_hidden:,} more</td></tr>' if num_hidden > 0 else ""
        titles = [column.title for column in self.columns]
        head = self._html_row("th", titles) if any(titles) else ""
        body = "".join(self._html_row("td", row) for row in self.rows[:MAX_HTML_ROWS])
        return f"<table>{head}{body}{footer}</table>"

    def _html_row(self, tag: str, cells: Sequence[str]) -> str:
        sides = ("right" if column.right else "left" for column in self.columns)
        pairs = zip(sides, cells, strict=True)
        elements = [f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for side, cell in pairs]
        return f"<tr>{''.join(elements)}</tr>"


@dataclass(frozen=True)
class Link:
    """A link that opens in a new tab."""

    address: str

    def html(self) -> str:
        """Return the link as HTML, escaped."""
        address = escape(self.address)
        return f'<p><a href="{address}" target="_blank">{address}</a></p>'


def named_values(**values: object) -> Table:
    """Return a table of names and values. Values of None are left out, and "_" in names becomes a blank."""
    rows = [(name.replace("_", " "), str(value)) for name, value in values.items() if value is not None]
    return Table((Column(""), Column("", folds=True)), rows)


def to_html(title: str, *contents: Table | Link | str) -> str:
    """Return the HTML of an object for a notebook: its title, tables, links and paragraphs of text, all escaped."""
    elements = [
        f"<p>{escape(content)}</p>" if isinstance(content, str) else content.html() for content in contents if content
    ]
    return f"<div><p><b>{escape(title)}</b></p>{''.join(elements)}</div>"


def console_for(is_terminal: bool) -> Console:
    """Return a console on standard output, for a terminal or a pipe."""
    from rich.console import Console

    width = None if is_terminal else PIPE_COLUMNS
    return Console(
        force_terminal=is_terminal, force_jupyter=False, width=width, highlight=False, markup=False, emoji=False
    )


def print_to_console(console: Console, table: Table) -> bool:
    """Print a table; return False if the terminal was too narrow for some columns (``min_width``).

    Columns that do not fit next to each other are in further tables below. Each repeats the first column.
    """
    shown = [column.min_width <= console.width for column in table.columns]
    columns = [*compress(table.columns, shown)]
    cells = [[*compress(row, shown)] for row in table.rows]
    widths = [_min_width(column, [row[index] for row in cells]) for index, column in enumerate(columns)]
    for number, indices in enumerate(split_columns(widths, console.width)):
        if number:
            console.print()
        console.print(_rich_table([columns[i] for i in indices], [[row[i] for i in indices] for row in cells], console))
    return all(shown)


def split_columns(widths: Sequence[int], width: int) -> list[list[int]]:
    """Split columns into tables that fit the width; return each table's column indices. All have the first column."""
    tables: list[list[int]] = [[0]]
    used_width = widths[0]
    for index, column_width in enumerate(widths[1:], 1):
        if used_width + GAP + column_width > width and len(tables[-1]) > 1:
            tables.append([0])
            used_width = widths[0]
        tables[-1].append(index)
        used_width += GAP + column_width
    return tables


def _min_width(column: Column, cells: Iterable[str]) -> int:
    """Return the minimum width of a column. A folding column can be wider."""
    width = max(len(text) for text in (column.title, *cells))
    return min(width, max(len(column.title), column.max_width or MIN_FOLDED_WIDTH)) if column.folds else width


def _rich_table(columns: Sequence[Column], rows: Iterable[Sequence[str]], console: Console) -> rich.table.Table:
    from rich import box
    from rich.table import Table as RichTable

    is_terminal = console.is_terminal
    table = RichTable(
        header_style="bold",
        box=box.SIMPLE_HEAD if is_terminal else None,
        show_edge=False,
        pad_edge=False,
        padding=(0, 0, 0, 1 if is_terminal else GAP),
    )
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.folds,
            overflow="fold",
            max_width=column.max_width if is_terminal else None,
        )
    for row in rows:
        table.add_row(*row)
    return table
