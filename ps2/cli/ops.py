"""``ps2 ops``: the table of server operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ps2.cli.output import Format, format_option, print_data, print_table
from ps2.formats import plain
from ps2.text_tables import Column

if TYPE_CHECKING:
    from ps2.ops.table import Op, Param, Range

EPILOG = """\b
Examples:
  ps2 ops                all operations
  ps2 ops adam           one operation, with its documentation
  ps2 ops -o json
"""
COLUMNS = (
    Column("operation"),
    Column("vectors", folds=True, max_width=18),
    Column("writes", folds=True, max_width=17),
    Column("parameters", folds=True, max_width=24),
    Column("dtypes", folds=True),
    Column("what it does", folds=True, min_width=120),
)
# Short names of some tuples of dtypes.
SHORT_DTYPES = {("float32", "float64", "int32", "int64"): "any", ("float32", "float64"): "floats"}
PAGE_INDENT = 12  # the width of the first column on an operation's page


@click.command(epilog=EPILOG)
@click.argument("name", required=False)
@format_option
def ops(name: str | None, output: Format) -> None:
    """Show all operations that servers run, or the operation NAME."""
    from ps2.ops.all import TABLE, lookup

    if name is None:
        operations = list(TABLE.values())
        if output != "table":
            print_data({"operations": [_record(op) for op in operations]}, output)
        elif not print_table(COLUMNS, [_row(op) for op in operations]):
            click.echo("\n'ps2 ops NAME' describes an operation")
    elif output != "table":
        print_data(_record(lookup(name)), output)
    else:
        click.echo(_page(lookup(name)))


def _row(op: Op) -> list[str]:
    return [
        op.name,
        ", ".join(op.reads),
        ", ".join(op.writes) or "-",
        "; ".join(_parameter(param) for param in op.params.values()) or "-",
        SHORT_DTYPES.get(op.dtypes, ", ".join(op.dtypes)),
        _text(op.doc).splitlines()[0],
    ]


def _page(op: Op) -> str:
    facts = {
        "vectors": ", ".join(op.reads),
        "writes": ", ".join(op.writes) or "-",
        "parameters": ("\n" + " " * PAGE_INDENT).join(_parameter(param) for param in op.params.values()) or "-",
        "dtypes": ", ".join(op.dtypes),
    }
    lines = [f"{title:<{PAGE_INDENT}}{fact}" for title, fact in facts.items()]
    return "\n".join([op.name, "", *lines, "", _text(op.doc)])


def _record(op: Op) -> dict[str, Any]:
    return {
        "name": op.name,
        "vectors": list(op.reads),
        "writes": list(op.writes),
        "arrays": [name for name, _, _ in op.request_operands],
        "parameters": [
            {
                "name": param.name,
                "type": param.type.__name__,
                "required": param.required,
                "default": param.default,
                "range": str(param.range) if param.range is not None else None,
            }
            for param in op.params.values()
        ],
        "dtypes": list(op.dtypes),
        "reduce": op.reduce,
        "doc": op.doc,
    }


def _parameter(param: Param) -> str:
    """Format a parameter with its default and range: ``beta1 = 0.9, in [0, 1)``."""
    range = _range(param.range)
    default = "" if param.required else f" = {plain(param.default)}" + ("," if range else "")
    return f"{param.name}{default}{range}"


def _range(range: Range | None) -> str:
    from math import isfinite

    if range is None:
        return ""
    low = range.above if isfinite(range.above) else range.at_least
    if isfinite(low) and isfinite(range.below):
        return f" in {'(' if isfinite(range.above) else '['}{low:g}, {range.below:g})"
    if isfinite(range.below):
        return f" < {range.below:g}"
    return f" {'>' if isfinite(range.above) else '>='} {low:g}" if isfinite(low) else ""


def _text(doc: str) -> str:
    return doc.replace("``", "")
