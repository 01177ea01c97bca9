"""Topics by rotation over links of 1 Gbit/s: what two slices hide of the time in which blocks travel.

    python -m benchmarks.topics_gigabit

docs/performance/topics.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from benchmarks.frame import command, facts, machine, publish, tell
from benchmarks.namespaces import NoNamespacesError, ask_on, hosts, served
from benchmarks.topics_gigabit_part import WAYS, Asked

SERVERS = 2
# So fast that blocks take no time but the processors'.
FAST = "40gbit"
GOAL = 0.7


@command(
    click.option("--tokens", type=click.IntRange(100_000), default=3_000_000, help="Of the generated corpus."),
    click.option("--topics", type=click.IntRange(2), default=200, help="How many."),
    click.option("--rate", default="1gbit", metavar="RATE", help="Of each host's link, as tc writes it."),
    click.option("--rounds", type=click.IntRange(1), default=3, help="Turns that the medians are of."),
    click.option("--strict", is_flag=True, help=f"Exit with 1 if less than {GOAL:.0%} is hidden."),
)
def main(tokens: int, topics: int, rate: str, rounds: int, strict: bool, form: str, output: Path | None) -> None:
    """Train on hosts of their own, each with a link of its own: two workers on one, a server on each of the others."""
    found: dict[str, dict[str, float]] = {}
    try:
        for speed in (rate, FAST):
            tell(f"links of {speed}")
            with hosts(1 + SERVERS, speed) as (workers, *others), served(others) as (addresses, token_file):
                asked = Asked(addresses, token_file, tokens, topics, rounds)
                found[speed] = ask_on(workers, "topics_gigabit", asked)["facts"]
    except NoNamespacesError as error:
        click.echo(f"skipped: {error}")
        return
    # With fast links, what is left of a way's iteration is sampling, and the processors' part of what travels.
    travels = {way: found[rate][way] - found[FAST][way] for way in WAYS}
    hidden = 1 - travels["two slices"] / travels["one slice"]
    report: dict[str, Any] = {
        "machine": machine(),
        "rounds": rounds,
        "facts": {"tokens": f"{tokens:,}", "topics": topics, "servers": SERVERS},
        "seconds of an iteration": found,
        "hidden": hidden,
        "met": hidden >= GOAL,
    }
    publish(report, form, output, lambda: _print(report))
    sys.exit(1 if strict and not report["met"] else 0)


def _print(report: dict[str, Any]) -> None:
    click.echo(facts(report["machine"]))
    click.echo(facts(report["facts"]))
    for speed, by_way in report["seconds of an iteration"].items():
        told = ", ".join(f"{way} {1e3 * by_way[way]:.0f} ms" for way in WAYS)
        click.echo(f"links of {speed}: {told} an iteration")
    click.echo(f"two slices hide {report['hidden']:.0%} of the time in which blocks travel (goal {GOAL:.0%})")


if __name__ == "__main__":
    main()
