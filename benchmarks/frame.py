"""The framework of all benchmarks: command line, parts in separate processes, reports as text and JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
import psutil

import ps2

A = TypeVar("A")
# Load average of the last minute, before any measurement.
LOAD_BEFORE = os.getloadavg()[0]
FORM = click.option("-o", "form", type=click.Choice(["table", "json"]), default="table", help="What to print.")
OUTPUT = click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the JSON to a file too.")


def command(*options: Callable[[Any], Any]) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a function, with its options and the common ones ``-o`` (``form``) and ``--output``."""

    def make(function: Callable[..., None]) -> click.Command:
        for option in reversed([*options, FORM, OUTPUT]):
            function = option(function)
        return click.command(context_settings={"show_default": True})(function)

    return make


def read_numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers separated by commas, or raise ``click.BadParameter``."""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise click.BadParameter(f"expected numbers like 40000,1000000, got {text!r}") from error
    if min(numbers) < 1:
        raise click.BadParameter(f"expected numbers above 0, got {text!r}")
    return numbers


def publish(report: dict[str, Any], form: str, output: Path | None, show: Callable[[], None]) -> None:
    """Print a report, as JSON or by ``show``; also write the JSON to a file if one is named, creating its folder."""
    text = json.dumps(report, indent=2)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n")
    if form == "json":
        click.echo(text)
    else:
        show()


def machine(**versions: str) -> dict[str, Any]:
    """Describe the machine; the load before comes from other programs, the load after mostly from the benchmark.

    Args:
        versions: of the relevant packages, by name.
    """
    return {
        "cores": os.cpu_count(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "load before": round(LOAD_BEFORE, 1),
        "load after": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **versions,
        "ps2": ps2.__version__,
    }


def facts(values: dict[str, Any]) -> str:
    """Return facts as one line for people."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


# -- parts -------------------------------------------------------------------------------------------------------------


class Line(Protocol):
    """Two sides compared; its JSON has ``met``: True, False, or None without a goal."""

    def as_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Check:
    """A number that must be small for the part's results to be meaningful."""

    what: str
    value: float
    at_most: float

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "value": float(self.value),
            "at_most": self.at_most,
            "met": bool(self.value <= self.at_most),
        }


@dataclass(frozen=True)
class Part:
    """The results of a part.

    Attributes:
        facts: what was measured, for the heading.
        sizes: lines of an additional table.
        curves: for pictures: by what falls, and by way, its seconds and its values.
    """

    lines: Sequence[Line] = ()
    checks: Sequence[Check] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    sizes: Sequence[dict[str, Any]] = ()
    curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "facts": self.facts,
            "lines": [line.as_json() for line in self.lines],
            "checks": [check.as_json() for check in self.checks],
            "sizes": list(self.sizes),
            "curves": dict(self.curves),
        }


def ask(part: str, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a part, ``python -m module arguments``, in a fresh process; return its results as plain data."""
    click.echo(f"measuring: {part}", err=True)
    done = subprocess.run([sys.executable, "-m", module, *arguments], env=env, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise click.ClickException(f"the part {part!r} ended with {done.returncode}; what it said is above")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ask_all(name: str, parts: Iterable[str], asked: Any) -> dict[str, dict[str, Any]]:
    """Run parts, each the module ``benchmarks.NAME_PART``, which gets the dataclass of settings and ``answer``s."""
    return {part: ask(part, f"benchmarks.{name}_{part}", json.dumps(asdict(asked))) for part in parts}


def answer(kind: Callable[..., A], measure: Callable[[A], Part]) -> None:
    """Run a part in its own process and print its results."""
    asked = json.loads(sys.argv[1])
    part = measure(kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in asked.items()}))
    print(json.dumps(part.as_json()))


def tell(text: str) -> None:
    """Print the progress of a part."""
    print(f"  {text}", file=sys.stderr, flush=True)


def print_parts(report: dict[str, Any], print_lines: Callable[[Sequence[dict[str, Any]]], None]) -> None:
    """Print the machine, headings, lines and checks of a report of parts."""
    click.echo(facts(report["machine"]))
    click.echo(f"medians of {report['rounds']} turns")
    for name, part in report["parts"].items():
        click.echo(f"\n{name}: {facts(part['facts'])}")
    lines, checks = _all(report, "lines"), _all(report, "checks")
    if lines:
        click.echo()
        print_lines(lines)
    if checks:
        click.echo()
    for check in checks:
        verdict = "" if check["met"] else "  WRONG"
        click.echo(f"{check['what']}: {check['value']:.2g} ({check['at_most']:g} may){verdict}")


def exit_code(report: dict[str, Any], strict: bool) -> int:
    """Return 1 if a check of a report is not met or, with ``strict``, a line's goal; else 0."""
    missed = strict and any(line["met"] is False for line in _all(report, "lines"))
    return 1 if missed or not all(check["met"] for check in _all(report, "checks")) else 0


def _all(report: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [found for part in report["parts"].values() for found in part[kind]]
