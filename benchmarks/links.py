"""Slow links: rotation against BSP and SSP, sufficient factors, and pulls by keys against whole pulls.

    python -m benchmarks.links

docs/performance/run.md says what is measured and how to read it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from benchmarks.compared import Parts, print_report
from benchmarks.frame import command, exit_code, machine, publish, tell
from benchmarks.links_part import LOOPBACK, Asked
from benchmarks.namespaces import Host, NoNamespacesError, ask_on, hosts, served

SERVERS = 2
NAMES = ("factors", "topics", "softmax", "pulls", "layers")
PARTS = Parts(names=NAMES, generated=NAMES)


@command(
    click.option("--part", "parts", type=click.Choice(PARTS.names), multiple=True, help="To train; all by default."),
    click.option(
        "--rate",
        "rates",
        multiple=True,
        default=("1gbit", "100mbit"),
        help="Of each link, as tc writes it; or loopback.",
    ),
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
                with _fleet(rate) as (workers, addresses, token_file):
                    asked = Asked(addresses, token_file, rate, rounds)
                    found[f"{part}, {rate}"] = ask_on(workers, f"links_{part}", asked)
    except NoNamespacesError as error:
        click.echo(f"skipped: {error}")
        return
    report: dict[str, Any] = {"machine": machine(), "rounds": rounds, "parts": found}
    publish(report, form, output, lambda: print_report(report))
    sys.exit(exit_code(report, strict))


@contextmanager
def _fleet(rate: str) -> Iterator[tuple[Host, tuple[str, ...], str]]:
    """Yield the workers' host, the addresses of servers, and the file of their token."""
    if rate != LOOPBACK:
        with hosts(1 + SERVERS, rate) as (workers, *others), served(others) as (addresses, token_file):
            yield workers, addresses, token_file
        return
    os.environ["PS2_UNIX_SOCKETS"] = "0"  # the same sockets as over links
    with hosts(1, "1gbit") as (host,), served([host] * SERVERS) as (addresses, token_file):
        yield host, addresses, token_file


if __name__ == "__main__":
    main()
