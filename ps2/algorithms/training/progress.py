"""Progress of a training: a live line in a terminal or a notebook, else a line in the log now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ps2.algorithms.jvm import progress_bar
from ps2.algorithms.training.record import StepReport

log = logging.getLogger(__name__)

LOG_INTERVAL_S = 5.0
# Spark's own progress bar, which would overwrite the line, comes back half a second after it was hidden.
QUIET_INTERVAL_S = 0.3
# Of a terminal; in a narrower one the words need the place of the name, too.
WIDTH_WITH_BAR = 110
# Characters of the bar, and of the time that has passed.
BAR, CLOCK = 20, 7
PREFIXES = " KMGTPE"


def say(what: str) -> None:
    """Log the current work, such as "reading rows.libsvm"."""
    log.info("%s", what)


@contextmanager
def progress(name: str, steps: int, spark_context: Any = None) -> Iterator[Callable[[StepReport], None]]:
    """Show a training under way; yield the function to call after each step.

    Args:
        name: of what is trained.
        steps: how many there may be.
        spark_context: whose progress bar is kept away meanwhile.
    """
    from rich.console import Console

    console = Console(stderr=True)
    is_live = console.is_terminal or console.is_jupyter
    log.info("%s: the workers read their rows", name, extra={"is_live": is_live})
    if is_live:
        with _live_line(console, name, steps, spark_context) as show:
            yield show
    else:
        yield _LogLine(name, steps)
    say(f"{name}: the model is trained")


def describe(report: StepReport, steps: int) -> list[str]:
    """Describe a step, the most important part first; times are means of all steps so far."""
    words = report.words
    speed = report.rows / report.seconds if report.seconds else 0.0
    return [
        f"{words.step} {report.number}/{steps}",
        f"{words.objective} {report.objective:.6g}",
        *([] if report.validation is None else [f"validation {report.validation:.6g}"]),
        *(f"{_short(value, 1000)} {_spoken(name)}" for name, value in report.metrics.items()),
        f"{report.seconds / report.number:.3g} s {words.a_step}",
        *([f"{_short(speed, 1000)} rows/s"] if report.rows else []),
        f"{_short(report.bytes, 1024)}B",
    ]


def fitting(said: list[str], room: int) -> str:
    """Join the parts that fit the width, at least the first one."""
    text = said[0]
    for part in said[1:]:
        if len(text) + len(part) + 2 > room:
            break
        text += f", {part}"
    return text


class _LogLine:
    """Logs a step when some time has passed since the last logged one."""

    def __init__(self, name: str, steps: int) -> None:
        self._name = name
        self._steps = steps
        self._logged_s = time.monotonic()

    def __call__(self, report: StepReport) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now_s
            log.info("%s: %s", self._name, ", ".join(describe(report, self._steps)))


@contextmanager
def _live_line(console: Any, name: str, steps: int, spark_context: Any) -> Iterator[Callable[[StepReport], None]]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    is_wide = console.width >= WIDTH_WITH_BAR
    before = [TextColumn("{task.description}"), BarColumn(bar_width=BAR)] if is_wide else []
    after = [TimeElapsedColumn()] if is_wide else []
    room = int(console.width) - (len(name) + BAR + CLOCK + 3 if is_wide else 0)
    bar = None if spark_context is None else progress_bar(spark_context)
    quieted_s = 0.0
    columns = *before, TextColumn("{task.fields[words]}"), *after
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(name, total=steps, words="reading" if is_wide else f"{name}: reading")

        def show(report: StepReport) -> None:
            nonlocal quieted_s
            if bar is not None and time.monotonic() - quieted_s > QUIET_INTERVAL_S:
                bar.finishAll()
                quieted_s = time.monotonic()
            words = fitting(describe(report, steps), room)
            shown.update(task, completed=report.number, words=words)

        yield show


def _spoken(name: str) -> str:
    """Return the name of a number for a sentence: "tokens/s" for "tokens_per_s"."""
    return name.replace("_per_", "/").replace("_", " ")


def _short(number: float, base: int) -> str:
    """Return a number with a unit prefix, in three digits: 1.2M."""
    power = 0
    while abs(number) >= 999.5 and power < len(PREFIXES) - 1:
        number, power = number / base, power + 1
    return f"{number:.3g}{PREFIXES[power].strip()}"
