"""The progress of a training: a live line in a terminal or a notebook; elsewhere, a log line every few seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ps2.algorithms.training.record import StepReport
from ps2.formats import short_time
from ps2.progress_line import ShowProgress, progress_line
from ps2.run.spark.backend import SparkBackend

log = logging.getLogger(__name__)

LOG_INTERVAL_S = 5.0
# The unit prefixes of large numbers: none, kilo, mega, ...
PREFIXES = " KMGTPE"


def log_activity(text: str) -> None:
    """Log the current activity, such as "reading rows.libsvm"."""
    log.info("%s", text)


@contextmanager
def progress(name: str, steps: int, spark: SparkBackend | None = None) -> Iterator[Callable[[StepReport], None]]:
    """Show a running training, without Spark's progress bar; yield the function to call after each step."""
    with progress_line(name, steps, "reading") as line:
        log.info("%s: the workers read their rows", name, extra={"is_live": line is not None})
        yield _LogLine(name, steps) if line is None else _live_line(line, steps, spark)
    log_activity(f"{name}: the model is trained")


def describe(report: StepReport, steps: int) -> list[str]:
    """Describe a step for the progress line, most important first; time and speed are means over all steps so far."""
    words = report.words
    speed = report.rows / report.seconds if report.seconds else 0.0
    return [
        f"{words.step} {report.number}/{steps}",
        f"{words.objective} {report.objective:.6g}",
        *([] if report.validation is None else [f"validation {report.validation:.6g}"]),
        *(f"{_short(value, 1000)} {_metric_text(name)}" for name, value in report.metrics.items()),
        *([f"{short_time(report.seconds / report.number)} {words.a_step}"] if report.seconds else []),
        *([f"{_short(speed, 1000)} rows/s"] if report.rows else []),
        *([f"{_short(report.bytes, 1024)}B"] if report.bytes else []),
    ]


class _LogLine:
    """Logs a step if ``LOG_INTERVAL_S`` have passed since the last logged step."""

    def __init__(self, name: str, steps: int) -> None:
        self._name = name
        self._steps = steps
        self._logged_s = time.monotonic()

    def __call__(self, report: StepReport) -> None:
        now_s = time.monotonic()
        if now_s - self._logged_s >= LOG_INTERVAL_S:
            self._logged_s = now_s
            log.info("%s: %s", self._name, ", ".join(describe(report, self._steps)))


def _live_line(line: ShowProgress, steps: int, spark: SparkBackend | None) -> Callable[[StepReport], None]:
    """Return a function that shows a step, and hides Spark's progress bar."""
    hide_bar = None if spark is None else spark.progress_bar_hider()

    def show(report: StepReport) -> None:
        if hide_bar is not None:
            hide_bar()
        line(report.number, describe(report, steps))

    return show


def _metric_text(name: str) -> str:
    """Return the name of a metric for messages: "tokens/s" for "tokens_per_s"."""
    return name.replace("_per_", "/").replace("_", " ")


def _short(number: float, base: int) -> str:
    """Return a number with three significant digits and a unit prefix: 1.2M. ``base`` is 1000, or 1024 for bytes."""
    power = 0
    while abs(number) >= 999.5 and power < len(PREFIXES) - 1:
        number, power = number / base, power + 1
    return f"{number:.3g}{PREFIXES[power].strip()}"
