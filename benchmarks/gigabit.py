"""Training vectors on the servers or on pulled rows, over links of 1 Gbit/s: Figure 9(c, d), and the choice of
``auto``.

    python -m benchmarks.gigabit --servers 1,2,4,8 --columns 32,128,512,1024

docs/performance/embeddings.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.frame import command, exit_code, facts, machine, print_parts, publish, read_numbers
from benchmarks.gigabit_part import CLOSE, Asked
from benchmarks.gigabit_plot import crossings, plot
from benchmarks.namespaces import NoNamespacesError, ask_on, hosts, served
from ps2.algorithms.embeddings.settings import Strategy
from ps2.cli.output import print_table
from ps2.text_tables import Column

WAYS: tuple[Strategy, ...] = ("servers", "rows", "local")


@command(
    click.option("--servers", default="1,2,4,8", metavar="N,...", help="Sizes of the fleet, one after another."),
    click.option("--columns", default="32,128,512,1024", metavar="K,...", help="Numbers of a vector."),
    click.option("--words", type=click.IntRange(2), default=100_000, help="Vectors of each of the two tables."),
    click.option("--window", type=click.IntRange(1), default=5, help="As of Word2Vec."),
    click.option("--negative", type=click.IntRange(0), default=5, help="As of Word2Vec."),
    click.option("--way", "ways", type=click.Choice(WAYS), multiple=True, default=WAYS[:2], help="To compare."),
    click.option("--rate", default="1gbit", metavar="RATE", help="Of each host's link, as tc writes it."),
    click.option("--plots", type=click.Path(path_type=Path), metavar="FOLDER", help="For a picture (PNG)."),
    click.option("--strict", is_flag=True, help="Exit with 1 if auto is more than 20% slower anywhere."),
)
def main(
    servers: str,
    columns: str,
    words: int,
    window: int,
    negative: int,
    ways: tuple[Strategy, ...],
    rate: str,
    plots: Path | None,
    strict: bool,
    form: str,
    output: Path | None,
) -> None:
    """Measure the ways on separate hosts, each with its own link."""
    sizes, widths = read_numbers(servers), read_numbers(columns)
    try:
        with hosts(1 + max(sizes), rate) as (worker, *others), served(others) as (addresses, token_file):
            asked = Asked(addresses, sizes, widths, words, window, negative, ways, token_file)
            found = ask_on(worker, "gigabit", asked)
    except NoNamespacesError as error:
        click.echo(f"skipped: {error}")
        return
    found["facts"]["links"] = rate
    report: dict[str, Any] = {"machine": machine(), "rounds": 1, "parts": {"links": found}}
    report["crossings"] = crossings(found["lines"])
    if plots is not None:
        plots.mkdir(parents=True, exist_ok=True)
        plot(found["lines"], plots / "gigabit.png", facts(found["facts"]))
    publish(report, form, output, lambda: _print(report))
    sys.exit(exit_code(report, strict))


def _print(report: dict[str, Any]) -> None:
    print_parts(report, _print_lines)
    for servers, columns in report["crossings"].items():
        click.echo(f"{servers} servers: {columns}")


def _print_lines(lines: Sequence[dict[str, Any]]) -> None:
    ways = list(lines[0]["measured"])
    columns = [Column("servers", right=True), Column("d", right=True)]
    columns += [Column(f"{way} us", right=True) for way in ways] + [
        Column(f"expected: {way}", right=True) for way in ways
    ]
    columns += [Column("rows/servers", right=True), Column("auto"), Column("is")]
    rows = []
    for line in lines:
        times = [f"{by_way[way]:.1f}" for by_way in (line["measured"], line["expected"]) for way in ways]
        judge = "the fastest" if line["loss"] == 1 else f"{'close' if line['met'] else 'SLOWER'}: {line['loss']:.2f}"
        ratio = "-" if line["ratio"] is None else f"{line['ratio']:.2f}"
        rows.append((str(line["servers"]), f"{line['columns']:,}", *times, ratio, line["chosen"], judge))
    click.echo("Microseconds of a token:")
    print_table(columns, rows)
    met = sum(line["met"] for line in lines)
    worst = np.max([line["loss"] for line in lines])
    click.echo(
        f"auto took one within {CLOSE - 1:.0%} of the fastest in {met} of {len(lines)} cases, at worst {worst:.2f}"
    )


if __name__ == "__main__":
    main()
