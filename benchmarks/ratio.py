"""Two calls compared: they take turns, so what else goes on in the machine hits both alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Literal

import click

from ps2.cli.output import print_table
from ps2.text_tables import Column

# Rates are better high, times are better low; each with what one of it is.
RATES = {"GB/s": 1e9, "M keys/s": 1e6, "steps/s": 1.0}
TIMES = {"us": 1e-6, "ms": 1e-3}
Unit = Literal["GB/s", "M keys/s", "steps/s", "us", "ms"]
WARM_UPS = 3


def _one(_: Any) -> int:
    return 1


@dataclass(frozen=True)
class Pair:
    """One line of the table.

    Attributes:
        what: what ours does.
        against: what the baseline does.
        unit: a rate or a time.
        target: what ours is of the baseline, at least for a rate, at most for a time; None: for information.
        baseline: is called with what ``prepare`` made.
        ours: likewise, right after it.
        prepare: makes the arguments of both, outside the time that counts.
        amount: bytes or keys that one call moves.
        calls: calls in one timing.
    """

    what: str
    against: str
    unit: Unit
    target: float | None
    baseline: Callable[[Any], object]
    ours: Callable[[Any], object]
    prepare: Callable[[], Any] = lambda: None
    amount: Callable[[Any], int] = _one
    calls: int = 1

    def measure(self, repeats: int) -> Found:
        """Let the two take turns, and return what they took; the first few turns do not count."""
        taken: list[tuple[float, float]] = []
        for _ in range(WARM_UPS + repeats):
            argument = self.prepare()
            taken.append((self._time(self.baseline, argument), self._time(self.ours, argument)))
        baseline, ours = zip(*taken[WARM_UPS:], strict=True)
        return Found(self.what, self.against, self.unit, self.target, baseline, ours)

    def _time(self, call: Callable[[Any], object], argument: Any) -> float:
        began_s = time.perf_counter()
        for _ in range(self.calls):
            call(argument)
        return in_unit(self.unit, self.amount(argument), (time.perf_counter() - began_s) / self.calls)


@dataclass(frozen=True)
class Found:
    """What one line came to: ``baseline`` and ``ours`` are in its unit, in the order in which they were measured."""

    what: str
    against: str
    unit: str
    target: float | None
    baseline: Sequence[float]
    ours: Sequence[float]

    @property
    def ratio(self) -> float:
        """Ours over the baseline, by their medians."""
        return median(self.ours) / median(self.baseline)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the single turns' ratios: wide ones say that the machine was busy."""
        low, _, high = quantiles(ours / baseline for ours, baseline in zip(self.ours, self.baseline, strict=True))
        return low, high

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        return self.ratio >= self.target if self.unit in RATES else self.ratio <= self.target

    def as_json(self) -> dict[str, Any]:
        """Return what ``json.dumps`` writes."""
        return {
            "what": self.what,
            "against": self.against,
            "unit": self.unit,
            "baseline": median(self.baseline),
            "ours": median(self.ours),
            "ratio": self.ratio,
            "spread": self.spread,
            "target": self.target,
            "better": "higher" if self.unit in RATES else "lower",
            "met": self.met,
            "baseline_turns": list(self.baseline),
            "ours_turns": list(self.ours),
        }


def in_unit(unit: Unit, amount: int, taken_s: float) -> float:
    """Return a rate or a time as a number of its unit."""
    return taken_s / TIMES[unit] if unit in TIMES else amount / taken_s / RATES[unit]


def print_lines(lines: Sequence[dict[str, Any]]) -> None:
    """Print the table of what ``Found.as_json`` returned."""
    right = {"baseline", "ours", "ratio", "spread", "target"}
    titles = ("what", "against", "baseline", "ours", "unit", "ratio", "spread", "target", "")
    rows = [
        (
            line["what"],
            line["against"],
            _figure(line["baseline"]),
            _figure(line["ours"]),
            line["unit"],
            f"{line['ratio']:.2f}",
            "{:.2f}-{:.2f}".format(*line["spread"]),
            _target(line),
            {None: "", True: "met", False: "MISSED"}[line["met"]],
        )
        for line in lines
    ]
    columns = [Column(title, right=title in right, folds=title in {"what", "against"}) for title in titles]
    print_table(columns, rows)
    if targets := sum(line["target"] is not None for line in lines):
        click.echo(f"\n{sum(line['met'] is False for line in lines)} of {targets} targets missed")


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _target(line: dict[str, Any]) -> str:
    if line["target"] is None:
        return "-"
    return f"{'at least' if line['better'] == 'higher' else 'at most'} {line['target']:g}"
