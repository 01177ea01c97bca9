"""Rotation against BSP and SSP over slow links: seconds to the same objective, for factorization and topics.

    python -m benchmarks.links

docs/performance.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from benchmarks.compared import Parts, print_report
from benchmarks.frame import command, exit_code, machine, publish, tell
from benchmarks.links_part import Asked
from benchmarks.namespaces import NoNamespacesError, ask_on, hosts, served

SERVERS = 2
PARTS = Parts(names=("factors", "topics", "softmax"), generated=("factors", "topics", "softmax"))


@command(
    click.option("--part", "parts", type=click.Choice(PARTS.names), multiple=True, help="To train; all by default."),
    click.option("--rate", "rates", multiple=True, default=("1gbit", "100mbit"), help="Of each link, as tc writes it."),
    click.option("--rounds", type=click.IntRange(1), default=3, help="Turns that the medians are of."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed."),
)
def main(
    parts: tuple[str, ...], rates: tuple[str, ...], rounds: int, strict: bool, form: str, output: Path | None
) -> None:
    """Train on hosts of their own, each with a link of its own: two workers on one, a server on each of the others."""
    found: dict[str, Any] = {}
    try:
        for rate in rates:
            for part in PARTS.chosen(parts, None):
                tell(f"{part}, links of {rate}")
                with hosts(1 + SERVERS, rate) as (workers, *others), served(others) as (addresses, token_file):
                    asked = Asked(addresses, token_file, rate, rounds)
                    found[f"{part}, {rate}"] = ask_on(workers, f"links_{part}", asked)
    except NoNamespacesError as error:
        click.echo(f"skipped: {error}")
        return
    report: dict[str, Any] = {"machine": machine(), "rounds": rounds, "parts": found}
    publish(report, form, output, lambda: print_report(report))
    sys.exit(exit_code(report, strict))


if __name__ == "__main__":
    main()
