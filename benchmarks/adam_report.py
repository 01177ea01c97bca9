"""The results of ``benchmarks.adam``, as tables for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import click

from benchmarks.frame import facts
from ps2.cli.output import print_table
from ps2.text_tables import Column

PHASES = ("pull", "gradient", "push", "update", "stage")


@dataclass(frozen=True)
class StepTime:
    """One step.

    Attributes:
        total_s: the whole step, as its driver waits for it.
        phases_s: its time by ``PHASES``, in the task that took longest.
        keys: number of features in the minibatch of that task.
    """

    total_s: float
    phases_s: dict[str, float]
    keys: int


@dataclass(frozen=True)
class WayReport:
    """One way of training at one size.

    Attributes:
        way: its name.
        steps: number of steps behind the medians.
        step_s: median time of a whole step.
        phases_s: median of each phase; medians need not add up.
        slower: its ``step_s`` over that of the first way.
        difference: largest difference between its weights and the first way's, after the last step.
    """

    way: str
    steps: int
    step_s: float
    phases_s: dict[str, float]
    slower: float
    difference: float


@dataclass(frozen=True)
class SizeReport:
    """All ways at one size; ``keys`` is the median number of features in a task's minibatch."""

    features: int
    keys: int
    ways: tuple[WayReport, ...]


@dataclass(frozen=True)
class Crossing:
    """The first step after which the training loss was at most ``loss``, and the seconds of all steps up to it.

    Both are by the way's name, and None if the loss was not reached; the seconds are medians of several trainings.
    """

    loss: float
    steps: dict[str, int | None]
    seconds: dict[str, float | None]


@dataclass(frozen=True)
class Report:
    """All results of one run; ``tolerance`` is the maximum of ``difference``."""

    machine: dict[str, Any]
    problem: dict[str, Any]
    tolerance: float
    sizes: tuple[SizeReport, ...]
    convergence_features: int
    convergence: tuple[Crossing, ...]

    @property
    def agrees(self) -> bool:
        """True if all ways ended with the same weights at every size."""
        return all(way.difference <= self.tolerance for size in self.sizes for way in size.ways)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {**asdict(self), "agrees": self.agrees}


def summarise(features: int, times: dict[str, list[StepTime]], differences: dict[str, float]) -> SizeReport:
    """Return the medians of each way's steps, compared with the first way."""
    totals_s = {way: median(step.total_s for step in steps) for way, steps in times.items()}
    first_s = next(iter(totals_s.values()))
    return SizeReport(
        features,
        int(median(step.keys for steps in times.values() for step in steps)),
        tuple(
            WayReport(
                way,
                len(steps),
                totals_s[way],
                {phase: median(step.phases_s[phase] for step in steps) for phase in PHASES},
                totals_s[way] / first_s,
                differences[way],
            )
            for way, steps in times.items()
        ),
    )


def print_report(report: Report) -> None:
    """Print the tables and the result of the check."""
    click.echo(facts(report.machine))
    click.echo(facts(report.problem))
    click.echo()
    _print_sizes(report.sizes)
    click.echo()
    for size in report.sizes:
        found = ", ".join(f"{way.way} {way.difference:.1e}" for way in size.ways[1:])
        same = all(way.difference <= report.tolerance for way in size.ways)
        verdict = "the same weights" if same else "DIFFERENT WEIGHTS"
        click.echo(
            f"{size.features:,} features: {verdict} (from {size.ways[0].way}: {found}; {report.tolerance:g} may)"
        )
    if report.convergence:
        click.echo()
        _print_convergence(report)


def _print_sizes(sizes: Sequence[SizeReport]) -> None:
    columns = [Column("features", right=True), Column("keys", right=True), Column("way"), Column("steps", right=True)]
    columns += [Column(title, right=True) for title in ("step s", *PHASES, "ratio")]
    rows = []
    for size in sizes:
        for way in size.ways:
            phases = (f"{way.phases_s[phase]:.4f}" for phase in PHASES)
            which = (f"{size.features:,}", f"{size.keys:,}", way.way, str(way.steps))
            rows.append((*which, f"{way.step_s:.4f}", *phases, f"{way.slower:.2f}"))
    click.echo("Seconds per step (medians), and how many times those of the first way:")
    print_table(columns, rows)


def _print_convergence(report: Report) -> None:
    ways = list(report.convergence[0].seconds)
    columns = [Column("loss", right=True), Column("step", right=True)]
    columns += [Column(f"{way} s", right=True) for way in ways]
    columns += [Column(f"{way} ratio", right=True) for way in ways[1:]]
    rows = []
    for crossing in report.convergence:
        seconds = [crossing.seconds[way] for way in ways]
        first = seconds[0]
        ratios = ["-" if first is None or one is None else f"{one / first:.2f}" for one in seconds[1:]]
        steps = sorted({str(step) if step is not None else "-" for step in crossing.steps.values()})
        shown = ["-" if one is None else f"{one:.2f}" for one in seconds]
        rows.append((f"{crossing.loss:g}", "/".join(steps), *shown, *ratios))
    click.echo(f"Seconds until the training loss is reached, at {report.convergence_features:,} features:")
    print_table(columns, rows)
