"""What the parts of ``benchmarks.slow`` share: how slow workers are, and when each way is as good as another one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.frame import Part
from benchmarks.ml_part import Line
from ps2.array_types import Float64s

# By rank: how many times as long as the first a worker takes. As in the paper, two are three times, and one is ten
# times as slow.
SLOWNESS = (1.0, 3.0, 3.0, 10.0)
# Times as long as the computation takes: the first worker sleeps, too, so that four have enough cores here.
ALL_SLOWER = 3.0
GOAL = 1.7
# Iterations of rotation without control, as shares of all, after which the other ways are to be as good.
SHARES = (0.5, 0.75, 1.0)
CONTROLLED, PLAIN = "rotation, auto", "rotation"


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        rounds: turns that the medians are of.
        memory: of Spark's JVM, as Spark writes it.
    """

    rounds: int
    memory: str


@dataclass(frozen=True, eq=False)
class Curve:
    """How a training went.

    Attributes:
        seconds: at which the quality is known, shape (n,).
        losses: what falls, shape (n,).
    """

    seconds: Float64s
    losses: Float64s

    def seconds_to(self, loss: float) -> float:
        """Return when a loss was reached, interpolated; infinite if it was not."""
        best = np.minimum.accumulate(self.losses)
        if best[-1] > loss:
            return np.inf
        return float(np.interp(-loss, -best, self.seconds))


@contextmanager
def slowly(kind: type, method: str, rank: int) -> Iterator[None]:
    """Let a worker sleep after each call of a method, in proportion to the CPU time that the call took."""
    compute, slower = getattr(kind, method), ALL_SLOWER * SLOWNESS[rank]
    # What the system sleeps longer than it should is slept less the next time.
    due_s = 0.0

    def slow(self: Any, *args: Any) -> Any:
        nonlocal due_s
        began_s = time.thread_time()
        found = compute(self, *args)
        due_s += (slower - 1.0) * (time.thread_time() - began_s)
        began_s = time.monotonic()
        if due_s > 0:
            time.sleep(due_s)
        due_s -= time.monotonic() - began_s
        return found

    with patch.object(kind, method, slow):
        yield


def compared(curves: Mapping[str, Sequence[Curve]], unit: str, facts: Mapping[str, Any]) -> Part:
    """Compare all ways with rotation under time control: seconds to losses of rotation without it."""
    plain = curves[PLAIN]
    lines, columns = [], {}
    for share in SHARES:
        at = [round(share * len(curve.losses)) - 1 for curve in plain]
        targets = [float(curve.losses[one]) for curve, one in zip(plain, at, strict=True)]
        taken = {
            way: [curve.seconds_to(target) for curve, target in zip(turns, targets, strict=True)]
            for way, turns in curves.items()
        }
        what = f"{unit} {float(np.median(targets)):.4f}"
        columns[f"s to {what}"] = taken
        if np.isfinite(taken[CONTROLLED]).all():
            lines += [
                Line(f"{CONTROLLED}: {what}", way, "s", GOAL if way == PLAIN else None, seconds, taken[CONTROLLED])
                for way, seconds in taken.items()
                if way != CONTROLLED and np.isfinite(seconds).all()
            ]
    sizes = [
        {
            "way": way,
            **{column: _told(taken[way]) for column, taken in columns.items()},
            f"least {unit}": f"{turns[0].losses.min():.4f}",
            "after, s": f"{turns[0].seconds[turns[0].losses.argmin()]:.1f}",
        }
        for way, turns in curves.items()
    ]
    drawn = {way: [turns[0].seconds.tolist(), turns[0].losses.tolist()] for way, turns in curves.items()}
    slow = ", ".join(f"{slower:g}" for slower in SLOWNESS)
    said = {**facts, "workers": f"{len(SLOWNESS)}, which take {slow} times as long"}
    return Part(lines, facts=said, sizes=sizes, curves={unit: drawn})


def _told(seconds: Sequence[float]) -> str:
    return f"{np.median(seconds):.1f}" if np.isfinite(seconds).all() else "-"
