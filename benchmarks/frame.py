"""The frame of all benchmarks: options, parts in fresh processes, turns, comparisons, tables, JSON and plots.

A benchmark is a module: a dataclass of options, a function for each part, and

    BENCHMARK = Benchmark("trees", Args, {"dense": dense, "news20": news20})
    if __name__ == "__main__":
        BENCHMARK.main()
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Protocol, TypeVar, get_type_hints

import click
import psutil

import ps2
from ps2.cli.output import print_table
from ps2.plot_extra import needs_matplotlib
from ps2.text_tables import Column

K = TypeVar("K")
R = TypeVar("R")
# Load average of the last minute, before any measurement.
LOAD_BEFORE = os.getloadavg()[0]
# Units of which more is better; of all others, less is.
RATES = frozenset(
    ("GB/s", "M keys/s", "M ratings/s", "M steps/s", "rows/s", "steps/s", "AUC", "F1", "NDCG@10", "share")
)
TITLES = ("what", "against", "baseline", "ours", "unit", "times", "spread", "goal", "")
LEFT = {"what", "against", "unit", ""}


class SkippedError(Exception):
    """What a part needs is not on this machine."""


# -- options -----------------------------------------------------------------------------------------------------------


def option(default: Any, help: str, least: float | None = None, choices: Sequence[str] = ()) -> Any:
    """Return a field of a benchmark's ``Args``, from which its command line is made.

    Args:
        default: gives the option its type; a tuple is written with commas between its items.
        least: the smallest allowed number.
        choices: the allowed words.
    """
    return field(default=default, metadata={"help": help, "least": least, "choices": tuple(choices)})


@dataclass(frozen=True)
class Args:
    """The options that all benchmarks have; a benchmark's own class adds others, or changes the defaults."""

    rounds: int = option(3, "Turns that the medians are of.", least=1)
    data_dir: str = option("", "Folder of data sets.")
    memory: str = option("4g", "Memory of Spark's JVM.")


class _Words(click.ParamType[Any]):
    """Numbers or words with commas between them."""

    name = "a,b"

    def __init__(self, kind: type, least: float | None, choices: Sequence[str]) -> None:
        self._kind, self._least, self._choices = kind, least, choices

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        if not isinstance(value, str):
            return tuple(value)
        try:
            items = tuple(self._kind(part) for part in value.split(",") if part)
        except ValueError:
            self.fail(f"expected numbers like 1,2, got {value!r}", param, ctx)
        if self._least is not None and any(item < self._least for item in items):
            self.fail(f"expected numbers of at least {self._least:g}, got {value!r}", param, ctx)
        if unknown := set(items) - set(self._choices or items):
            self.fail(f"expected some of {', '.join(self._choices)}, got {', '.join(map(str, unknown))}", param, ctx)
        return items


def _click_option(one: Any) -> click.Option:
    default, about, kind = one.default, one.metadata, type(one.default)
    name = f"--{one.name.replace('_', '-')}"
    if kind is bool:
        return click.Option([f"{name}/--no-{name[2:]}"], default=default, show_default=True, help=about["help"])
    form: Any = kind
    if kind is tuple:
        form, default = _Words(type(default[0]), about["least"], about["choices"]), ",".join(map(str, default))
    elif about["choices"]:
        form = click.Choice(about["choices"])
    elif about["least"] is not None:
        form = (click.IntRange if kind is int else click.FloatRange)(about["least"])
    return click.Option([name], type=form, default=default, show_default=bool(default), help=about["help"])


# -- results -----------------------------------------------------------------------------------------------------------


class Row(Protocol):
    """A comparison; its JSON has ``met``: True, False, or None without a goal."""

    def as_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Line:
    """Two sides compared: how many times as good ours is.

    Attributes:
        what, against: what ours does, and what the baseline does.
        unit: of the figures; of ``RATES`` more is better, else less.
        goal: how many times as good ours is to be, at least; None: for information.
        baseline, ours: figures, in the order in which they were measured.
    """

    what: str
    against: str
    unit: str
    goal: float | None
    baseline: Sequence[float]
    ours: Sequence[float]

    def _times(self, baseline: float, ours: float) -> float:
        return ours / baseline if self.unit in RATES else baseline / ours

    @property
    def times(self) -> float:
        return self._times(median(self.baseline), median(self.ours))

    @property
    def spread(self) -> tuple[float, float] | None:
        """The quartiles of the single turns' ratios; None: there was one turn, or one side took none."""
        if len(self.baseline) != len(self.ours) or len(self.ours) < 2:
            return None
        low, _, high = quantiles(self._times(*pair) for pair in zip(self.baseline, self.ours, strict=True))
        return low, high

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("what", "against", "unit", "goal", "times", "spread")},
            "baseline": median(self.baseline),
            "ours": median(self.ours),
            "met": None if self.goal is None else bool(self.times >= self.goal),
            "baseline_turns": list(self.baseline),
            "ours_turns": list(self.ours),
        }


def within(what: str, unit: str, limit: float, values: Sequence[float]) -> Line:
    """Compare figures of ours with a goal: the largest, or of ``RATES`` the smallest, that is good enough."""
    return Line(what, "the goal", unit, 1.0, [limit], values)


@dataclass(frozen=True)
class Score:
    """The score of a model of ours beside a baseline's; larger is better, and ``goal`` is the least of ours."""

    what: str
    against: str
    unit: str
    goal: float | None
    baseline: float
    ours: float

    def as_json(self) -> dict[str, Any]:
        met = None if self.goal is None else bool(self.ours >= self.goal)
        return {**asdict(self), "times": None, "spread": None, "met": met}


@dataclass(frozen=True)
class Check:
    """A number that must be small for the part's results to be meaningful."""

    what: str
    value: float
    at_most: float

    def as_json(self) -> dict[str, Any]:
        met = bool(self.value <= self.at_most)
        return {"what": self.what, "value": float(self.value), "at_most": self.at_most, "met": met}


@dataclass(frozen=True)
class Part:
    """The results of a part.

    Attributes:
        facts: what was measured, for the heading.
        table: rows of an additional table.
        curves: for plots: by what they show, and by name, the values on both axes.
    """

    lines: Sequence[Row] = ()
    checks: Sequence[Check] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    table: Sequence[Mapping[str, Any]] = ()
    curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "facts": dict(self.facts),
            "lines": [line.as_json() for line in self.lines],
            "checks": [check.as_json() for check in self.checks],
            "table": [dict(row) for row in self.table],
            "curves": dict(self.curves),
        }


# -- a benchmark -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its parts, in the order in which they are measured.

    Attributes:
        name: of its module.
        args: class of its options.
        parts: functions of ``args`` that return a ``Part``; each runs in a process of its own.
        files: names of the files in ``--data-dir``, by part; a part without an entry needs none.
        packages: distributions whose versions the report has, beside those of pyspark and numpy.
    """

    name: str
    args: type[Any]
    parts: Mapping[str, Callable[[Any], Part]]
    files: Mapping[str, str] = field(default_factory=dict)
    packages: Sequence[str] = ()

    def main(self) -> None:
        """Run the command line."""
        self.command()()

    def command(self) -> click.Command:
        module = sys.modules[next(iter(self.parts.values())).__module__]
        own = [_click_option(one) for one in fields(self.args)]
        common = [
            click.Option(["--part"], multiple=True, type=click.Choice([*self.parts]), help="What to measure."),
            click.Option(["-o", "form"], type=click.Choice(["table", "json"]), default="table", help="What to print."),
            click.Option(["--output"], type=click.Path(path_type=Path), help="Write the JSON to a file too."),
            click.Option(["--plots"], type=click.Path(path_type=Path), help="Draw the curves in this folder, as PNG."),
            click.Option(["--strict"], is_flag=True, help="Exit with 1 if a goal is missed, too."),
        ]
        return click.Command(self.name, params=[*common, *own], callback=self._run, help=module.__doc__)

    def _run(
        self, part: Sequence[str], form: str, output: Path | None, plots: Path | None, strict: bool, **own: Any
    ) -> None:
        args = self.args(**own)
        chosen = part or [name for name in self.parts if args.data_dir or name not in self.files]
        lacking = [name for name in part or self.files if name in self.files and not args.data_dir]
        if lacking:
            needed = ", ".join(dict.fromkeys(self.files[name] for name in lacking))
            click.echo(f"skipped: {', '.join(lacking)}: --data-dir is to name a folder of {needed}", err=True)
            chosen = [name for name in chosen if name not in lacking]
        if not chosen:
            return
        results = {name: ask(self.parts[name], args, self.name) for name in self.parts if name in chosen}
        versions = _versions(("pyspark", "numpy", *self.packages))
        report = {"benchmark": self.name, "machine": machine(**versions), "args": asdict(args), "parts": results}
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(report, indent=2) + "\n")
        if plots is not None:
            plot(results, plots / f"{self.name}.png")
        if form == "json":
            click.echo(json.dumps(report, indent=2))
        else:
            print_report(report)
        missed = strict and any(line["met"] is False for line in _all(report, "lines"))
        sys.exit(1 if missed or not all(check["met"] for check in _all(report, "checks")) else 0)


def ask(
    function: Callable[[Any], Part],
    args: Any,
    benchmark: str,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a function of ``benchmarks.BENCHMARK`` in a fresh process; return its results as plain data.

    Args:
        args: a dataclass, of the type that the function takes.
        prefix: command that runs another one, such as ``Host.command()`` of ``benchmarks.namespaces``.
        env: added to the environment.
    """
    click.echo(f"measuring: {function.__name__}", err=True)
    command = [*prefix, sys.executable, "-m", "benchmarks", benchmark, function.__name__, json.dumps(asdict(args))]
    finished = subprocess.run(command, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, check=False)
    if finished.returncode:
        raise click.ClickException(f"the part {function.__name__!r} ended with {finished.returncode}; see above")
    results: dict[str, Any] = json.loads(finished.stdout)
    return results


def answer(benchmark: str, function: str, args: str) -> None:
    """Run a part in this process, and print its results."""
    measure = getattr(import_module(f"benchmarks.{benchmark}"), function)
    kind = get_type_hints(measure)["args"]
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(args).items()}
    try:
        part = measure(kind(**values))
    except (SkippedError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith(("ps2", "benchmarks")):
            raise
        part = Part(facts={"skipped": str(error)})
    print(json.dumps(part if isinstance(part, dict) else part.as_json()))


def tell(text: str) -> None:
    """Print the progress of a part."""
    print(f"  {text}", file=sys.stderr, flush=True)


def machine(**versions: str) -> dict[str, Any]:
    """Describe the machine; the load before comes from other programs, the load after mostly from the benchmark."""
    return {
        "cores": os.cpu_count(),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "load before": round(LOAD_BEFORE, 1),
        "load after": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **versions,
        "ps2": ps2.__version__,
    }


def _versions(distributions: Iterable[str]) -> dict[str, str]:
    installed = {}
    for name in distributions:
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


# -- measuring ---------------------------------------------------------------------------------------------------------


def timed(call: Callable[..., R], *arguments: Any) -> tuple[R, float]:
    """Return what a call returns, and its seconds."""
    began_s = time.perf_counter()
    result = call(*arguments)
    return result, time.perf_counter() - began_s


def seconds_of(call: Callable[..., object], *arguments: Any) -> float:
    """Return the seconds of a call."""
    return timed(call, *arguments)[1]


def take_turns(ways: Mapping[K, Callable[[], R]], rounds: int, warm_ups: int = 1) -> dict[K, list[R]]:
    """Let ways alternate, so that what else the machine does meets all alike; the first turns do not count."""
    results: dict[K, list[R]] = {variant: [] for variant in ways}
    for turn in range(warm_ups + rounds):
        for variant, call in ways.items():
            result = call()
            tell(f"{variant}: {result:.4g}" if isinstance(result, float) else f"{variant}: turn {turn + 1 - warm_ups}")
            if turn >= warm_ups:
                results[variant].append(result)
    return results


@dataclass(frozen=True)
class Pair:
    """Two short calls, timed in turns of several calls each.

    Attributes:
        what, against, unit, goal: of the line.
        baseline, ours: are called with what ``prepare`` made, one right after the other.
        prepare: makes the argument of both, outside the time that counts.
        amount: bytes or keys that one call moves, for rates.
        calls: calls in one timing.
    """

    what: str
    against: str
    unit: str
    goal: float | None
    baseline: Callable[[Any], object]
    ours: Callable[[Any], object]
    prepare: Callable[[], Any] = lambda: None
    amount: Callable[[Any], float] = lambda _: 1.0
    calls: int = 1

    def measure(self, rounds: int, warm_ups: int = 3) -> Line:
        turns: list[tuple[float, float]] = []
        for _ in range(warm_ups + rounds):
            argument = self.prepare()
            turns.append((self._time(self.baseline, argument), self._time(self.ours, argument)))
        line = Line(self.what, self.against, self.unit, self.goal, *zip(*turns[warm_ups:], strict=True))
        tell(f"{self.what}: {line.times:.2f}")
        return line

    def _time(self, call: Callable[[Any], object], argument: Any) -> float:
        began_s = time.perf_counter()
        for _ in range(self.calls):
            call(argument)
        return in_unit(self.unit, self.amount(argument), (time.perf_counter() - began_s) / self.calls)


def in_unit(unit: str, amount: float, taken_s: float) -> float:
    """Return a rate or a time as a number of its unit."""
    scale = {"GB/s": 1e9, "us": 1e-6, "ms": 1e-3}.get(unit, 1e6 if unit.startswith("M ") else 1.0)
    return amount / taken_s / scale if unit in RATES else taken_s / scale


# -- printing ----------------------------------------------------------------------------------------------------------


def print_report(report: Mapping[str, Any]) -> None:
    """Print the machine, and each part's facts, lines, table and checks."""
    click.echo(facts(report["machine"]))
    click.echo(facts({name: value for name, value in report["args"].items() if value}))
    for name, part in report["parts"].items():
        click.echo(f"\n{name}: {facts(part['facts'])}")
        if part["lines"]:
            print_lines(part["lines"])
        if part["table"]:
            columns = [Column(title, right=number > 0) for number, title in enumerate(part["table"][0])]
            print_table(columns, [tuple(map(_cell, row.values())) for row in part["table"]])
        for check in part["checks"]:
            verdict = "" if check["met"] else "  WRONG"
            click.echo(f"{check['what']}: {check['value']:.2g} ({check['at_most']:g} may){verdict}")
    goals = [line["met"] for line in _all(report, "lines") if line["met"] is not None]
    if goals:
        click.echo(f"\n{goals.count(False)} of {len(goals)} goals missed")


def print_lines(lines: Sequence[Mapping[str, Any]]) -> None:
    """Print for each line both sides, how many times as good ours is, and whether that meets the goal."""
    rows = [
        (
            line["what"],
            line["against"],
            _figure(line["baseline"], line["unit"]),
            _figure(line["ours"], line["unit"]),
            line["unit"],
            "-" if line["times"] is None else f"{line['times']:.3g}",
            "-" if line["spread"] is None else "{:.2f}-{:.2f}".format(*line["spread"]),
            "-" if line["goal"] is None else f"{line['goal']:.3g}",
            {None: "", True: "met", False: "MISSED"}[line["met"]],
        )
        for line in lines
    ]
    print_table([Column(title, right=title not in LEFT, folds=title in {"what", "against"}) for title in TITLES], rows)


def facts(values: Mapping[str, Any]) -> str:
    """Return facts as one line for people."""
    return ", ".join(f"{name} {_cell(value)}" for name, value in values.items())


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _figure(value: float, unit: str) -> str:
    digits = {"AUC": 5, "NDCG@10": 5, "F1": 2}.get(unit)
    return f"{value:,.3g}" if digits is None else f"{value:.{digits}f}"


def _all(report: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    return [row for part in report["parts"].values() for row in part[kind]]


def plot(parts: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw the curves of all parts beside each other.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    with needs_matplotlib("--plots"):
        from matplotlib.figure import Figure
    pictures = [(f"{name}: {what}", curves) for name, part in parts.items() for what, curves in part["curves"].items()]
    if not pictures:
        raise click.ClickException("--plots: this benchmark has no curves")
    figure = Figure(figsize=(6 * len(pictures), 4.5), layout="constrained")
    for axes, (title, curves) in zip(figure.subplots(1, len(pictures), squeeze=False)[0], pictures, strict=True):
        for name, (x, y) in curves.items():
            axes.plot(x, y, marker=".", markersize=4, linewidth=1.2, label=name)
        axes.set_title(title, fontsize=9)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
