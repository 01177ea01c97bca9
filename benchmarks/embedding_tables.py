"""Pulls and pushes of embedding tables: each optimizer against plain blocks, on this machine and over slow links.

    python -m benchmarks.embedding_tables

docs/performance/online.md says what is measured and how to read it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks.compared import print_report
from benchmarks.embedding_tables_part import Asked
from benchmarks.frame import ask, command, exit_code, machine, publish, tell
from benchmarks.namespaces import NoNamespacesError, ask_on, hosts, served

HERE = "here"


@command(
    click.option(
        "--rate", "rates", multiple=True, default=(HERE, "1gbit"), help=f"Of each link, as tc writes it; or {HERE}."
    ),
    click.option("--servers", type=click.IntRange(1), default=1, help="Of the fleet."),
    click.option("--keys", type=click.IntRange(1), default=1_000_000, help="That the table has."),
    click.option("--rounds", type=click.IntRange(1), default=21, help="Turns that the medians are of."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed."),
)
def main(
    rates: tuple[str, ...], servers: int, keys: int, rounds: int, strict: bool, form: str, output: Path | None
) -> None:
    """Pull and push the weights of new keys in each turn."""
    found: dict[str, Any] = {}
    for rate in rates:
        tell(f"links: {rate}")
        if rate == HERE:
            asked = Asked((), "", servers, keys, rounds)
            found[rate] = ask(rate, "benchmarks.embedding_tables_part", json.dumps(asdict(asked)))
            continue
        try:
            with hosts(1 + servers, rate) as (client, *others), served(others) as (addresses, token_file):
                found[rate] = ask_on(client, "embedding_tables", Asked(addresses, token_file, servers, keys, rounds))
        except NoNamespacesError as error:
            click.echo(f"skipped: {error}")
    report: dict[str, Any] = {"machine": machine(), "rounds": rounds, "parts": found}
    publish(report, form, output, lambda: print_report(report))
    sys.exit(exit_code(report, strict))


if __name__ == "__main__":
    main()
