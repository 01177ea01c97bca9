"""Shared code of benchmarks that compare trainings: their parts, options and reports, and tables of comparisons."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from benchmarks.frame import ask_all, command, exit_code, machine, print_parts, publish
from ps2.cli.output import print_table
from ps2.text_tables import Column

TITLES = ("what", "against", "baseline", "ours", "unit", "times less", "spread", "goal", "")
WORDS = {"what", "against", "unit", ""}


@dataclass(frozen=True)
class Chosen:
    """The choices that all these benchmarks have in common.

    Attributes:
        parts: to measure.
        data_dir: folder of the data sets; empty: no part needs it.
        rounds: turns that the medians are of.
        memory: of Spark's JVM, as Spark writes it.
        strict: a missed goal is an error.
        form, output: what to print, and a file for the JSON.
    """

    parts: Sequence[str]
    data_dir: str
    rounds: int
    memory: str
    strict: bool
    form: str
    output: Path | None

    def measure(self, name: str, asked: Any, packages: Sequence[str]) -> None:
        """Run the parts of the benchmark ``name``, print and write the report, and exit.

        Args:
            asked: the dataclass that each part gets.
            packages: distributions whose versions the report has beside those of pyspark and numpy.
        """
        found = ask_all(name, self.parts, asked)
        about = machine(**versions(("pyspark", "numpy", *packages)))
        report: dict[str, Any] = {"machine": about, "rounds": self.rounds, "parts": found}
        publish(report, self.form, self.output, lambda: print_report(report))
        sys.exit(exit_code(report, self.strict))


@dataclass(frozen=True)
class Parts:
    """Parts of a benchmark.

    Attributes:
        names: in the order in which they are measured.
        generated: parts that need no files.
    """

    names: tuple[str, ...]
    generated: tuple[str, ...]

    def options(self, files: str) -> tuple[Callable[[Any], Any], ...]:
        """Return the options ``--part`` and ``--data-dir``, a folder with certain files."""
        default = "[default: all; without --data-dir those that need no files]"
        folder = click.Path(exists=True, file_okay=False, resolve_path=True)
        return (
            click.option(
                *("--part", "parts"),
                type=click.Choice(self.names),
                multiple=True,
                help=f"What to measure.  {default}",
            ),
            click.option("--data-dir", type=folder, help=f"Folder of {files}."),
        )

    def command(
        self,
        files: str,
        *own: Callable[[Any], Any],
        rounds: int = 3,
        least_rounds: int = 1,
        memory: str = "4g",
        memory_help: str = "Of Spark's JVM.",
    ) -> Callable[[Callable[..., None]], click.Command]:
        """Make a command of a function that takes what is ``Chosen``, and its own options by name.

        Args:
            files: of the folder ``--data-dir``.
            own: options of this benchmark alone.
            rounds, memory: defaults.
        """
        options = [
            *self.options(files),
            click.option(
                "--rounds", type=click.IntRange(least_rounds), default=rounds, help="Turns that the medians are of."
            ),
            *own,
            click.option("--memory", default=memory, metavar="SIZE", help=memory_help),
            click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed, too."),
        ]

        def make(function: Callable[..., None]) -> click.Command:
            @wraps(function)
            def main(
                *,
                parts: tuple[str, ...],
                data_dir: str | None,
                rounds: int,
                memory: str,
                strict: bool,
                form: str,
                output: Path | None,
                **own: Any,
            ) -> None:
                chosen = self.chosen(parts, data_dir)
                function(Chosen(chosen, data_dir or "", rounds, memory, strict, form, output), **own)

            return command(*options)(main)

        return make

    def chosen(self, parts: tuple[str, ...], data_dir: str | None) -> list[str]:
        """Return the requested parts.

        Raises:
            click.UsageError: a part needs files, but no folder is given.
        """
        parts = parts or (self.generated if data_dir is None else self.names)
        if data_dir is None and set(parts) - set(self.generated):
            lacking = ", ".join(sorted(set(parts) - set(self.generated)))
            raise click.UsageError(f"--data-dir: the parts {lacking} need it")
        return [part for part in self.names if part in parts]


def print_report(report: dict[str, Any]) -> None:
    """Print a report of parts that compare."""
    print_parts(report, print_compared)
    print_sizes(report)


def print_compared(lines: Sequence[dict[str, Any]]) -> None:
    """Print for each line both sides, by which factor PS2 takes less, and whether that meets the goal."""
    rows = [
        (
            line["what"],
            line["against"],
            _figure(line["baseline"], line["unit"]),
            _figure(line["ours"], line["unit"]),
            line["unit"],
            "-" if line["times"] is None else f"{line['times']:.2f}",
            "-" if line["spread"] is None else "{:.2f}-{:.2f}".format(*line["spread"]),
            "-" if line["goal"] is None else f"{line['goal']:g}",
            {None: "", True: "met", False: "MISSED"}[line["met"]],
        )
        for line in lines
    ]
    columns = [Column(title, right=title not in WORDS, folds=title in {"what", "against"}) for title in TITLES]
    print_table(columns, rows)


def print_sizes(report: dict[str, Any]) -> None:
    """Print the additional tables of a report's parts."""
    for part in report["parts"].values():
        if part["sizes"]:
            click.echo()
            columns = [Column(title, right=True) for title in part["sizes"][0]]
            print_table(columns, [tuple(map(str, size.values())) for size in part["sizes"]])


def versions(distributions: Sequence[str]) -> dict[str, str]:
    """Return the versions of the installed ones among the packages."""
    found = {}
    for name in distributions:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _figure(value: float, unit: str) -> str:
    digits = {"AUC": 5, "F1": 2}.get(unit)
    return f"{value:,.3g}" if digits is None else f"{value:.{digits}f}"
