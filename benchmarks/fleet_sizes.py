"""Workers and servers doubled on slow links: Figure 13(a).

    python -m benchmarks.fleet_sizes --fleet 1+1 --fleet 2+2 --rate 100mbit

docs/performance/wire.md says what is measured and how to read it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from benchmarks.compared import print_report
from benchmarks.fleet_sizes_part import Asked
from benchmarks.frame import command, exit_code, machine, publish
from benchmarks.namespaces import NoNamespacesError, ask_on, hosts, served


@command(
    click.option(
        *("--fleet", "fleets"),
        multiple=True,
        default=("1+1", "2+1", "2+2", "4+4", "8+8"),
        metavar="W+S",
        help="Workers and servers; each is compared with the first.",
    ),
    click.option("--rate", default="100mbit", metavar="RATE", help="Of each host's link, as tc writes it."),
    click.option("--features", type=click.IntRange(1000), default=10_000_000, help="Of the model."),
    click.option("--rows", type=click.IntRange(8), default=50_000, help="Of a step, over all workers."),
    click.option("--rounds", type=click.IntRange(1), default=2, help="Turns that the medians are of."),
)
def main(
    fleets: tuple[str, ...], rate: str, features: int, rows: int, rounds: int, form: str, output: Path | None
) -> None:
    """Train on hosts of their own, each with its own link: the driver, each worker and each server."""
    sizes = [_size(fleet) for fleet in fleets]
    workers, servers = (max(counts) for counts in zip(*sizes, strict=True))
    try:
        with hosts(1 + workers + servers, rate) as (driver, *others), served(others[workers:]) as (addresses, token):
            names = tuple(host.name for host in others[:workers])
            asked = Asked(fleets, driver.address, names, addresses, token, rate, features, rows, rounds)
            found = ask_on(driver, "fleet_sizes", asked)
    except NoNamespacesError as error:
        click.echo(f"skipped: {error}")
        return
    report: dict[str, Any] = {"machine": machine(), "rounds": rounds, "parts": {"fleet sizes": found}}
    publish(report, form, output, lambda: print_report(report))
    sys.exit(exit_code(report, strict=False))


def _size(fleet: str) -> tuple[int, int]:
    if not re.fullmatch(r"[1-8]\+[1-8]", fleet):
        raise click.BadParameter(f"--fleet: expected W+S of 1 to 8 each, such as 2+2, got {fleet!r}")
    workers, servers = fleet.split("+")
    return int(workers), int(servers)


if __name__ == "__main__":
    main()
