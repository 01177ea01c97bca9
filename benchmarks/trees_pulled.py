"""Splits found on the servers compared with histograms pulled by the driver: bytes and seconds of the same trees."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks import ml_data, trees_data
from benchmarks.frame import Check, Part, answer, tell
from benchmarks.ml_part import Line
from benchmarks.trees_fit import Settings, alone
from benchmarks.trees_part import Asked, spark_and_servers
from benchmarks.trees_same import digest
from benchmarks.trees_traffic import Moved, Traffic
from ps2.algorithms.trees import trainer
from ps2.algorithms.trees.growth import BestSplits, Growth
from ps2.algorithms.trees.ops import best_splits
from ps2.algorithms.trees.problem import BoostingOptions
from ps2.algorithms.trees.tree_matrices import TreeMatrices
from ps2.client.matrix import DCVMatrix

# Like news20-bigram: most features have few values and few rows.
SPARSE_ROWS, SPARSE_FEATURES = 20_000, 1_000_000
DENSE_ROWS = 200_000
SPARSE = Settings(trees=3, depth=7, bins=100, via="servers")
DENSE = Settings(trees=10, depth=6, bins=256, via="servers")
GOAL = 5.0
WAYS = ("pulled", "ours")


class Pulled(TreeMatrices):
    """Lets the driver find splits in histograms that it pulls."""

    def best_splits(self, growth: Growth, recipe: BoostingOptions) -> BestSplits:
        held: Any = self.__dict__.setdefault("held", InDriver(self.histograms))
        return TreeMatrices.best_splits(replace(self, histograms=held), growth, recipe)


class InDriver:
    """Histograms in the driver: it pulls what workers have added, and subtracts siblings itself.

    That is the least that a driver can pull: the histogram of one child of each split.
    """

    def __init__(self, histograms: DCVMatrix) -> None:
        self._servers = histograms
        self._rows: dict[int, Any] = {}
        self._pairs: list[tuple[int, int]] = []

    def apply(self, name: str, rows: Any, **given: Any) -> InDriver:
        """Record an operation for ``result``; the servers would get both in one request."""
        if name == "trees.subtract":
            self._pairs = [(int(whole), int(part)) for whole, part in zip(rows, given["others"], strict=True)]
        else:
            self._asked = [int(row) for row in rows], given
        return self

    def result(self) -> Any:
        """Compute in the driver what the servers would compute."""
        (rows, given), layout = self._asked, int(self._asked[1]["layout"])
        parts = {part for _, part in self._pairs}
        added = (parts | set(rows)) - {whole for whole, _ in self._pairs}
        if layout not in self._rows:
            added.add(layout)
        for row in sorted(added):
            self._rows[row] = self._servers.pull([row])[0]
        for whole, part in self._pairs:
            self._rows[whole] = self._rows[whole] - self._rows[part]
        self._pairs = []
        m = np.stack([self._rows[row] for row in (layout, *rows)])
        return best_splits(m, np.arange(1, len(m)), **{**given, "layout": 0})


@dataclass
class _Way:
    """Trainings in one way.

    Attributes:
        seconds: of all trees.
        digests: of the forests.
        moved: traffic of one training.
        driver: traffic of one training that is only for splits.
    """

    seconds: list[float] = field(default_factory=list)
    digests: set[str] = field(default_factory=set)
    moved: Moved = field(default_factory=Moved)
    driver: Moved = field(default_factory=Moved)


def measure(asked: Asked) -> Part:
    lines: list[Line] = []
    checks: list[Check] = []
    sizes: list[dict[str, Any]] = []
    os.environ["PS2_UNIX_SOCKETS"] = "0"  # bytes in Unix sockets are not counted
    with spark_and_servers(asked, "pulled") as spark:
        tables = {
            f"sparse, {SPARSE_ROWS:,} x {SPARSE_FEATURES:,}": (
                lambda: ml_data.generate(spark, SPARSE_ROWS, SPARSE_FEATURES).frame,
                SPARSE,
            ),
            f"dense, {DENSE_ROWS:,} x {trees_data.DENSE_FEATURES}": (
                lambda: trees_data.dense(spark, DENSE_ROWS).frame,
                DENSE,
            ),
        }
        for what, (make, settings) in tables.items():
            frame = make()
            ways = _compared(frame, settings, asked.rounds, Traffic())
            frame.unpersist()
            pulled, ours = ways["pulled"], ways["ours"]
            lines += [
                Line(f"{what}: all bytes", "histograms pulled", "MB", GOAL, [pulled.moved.mb], [ours.moved.mb]),
                Line(f"{what}: bytes of splits", "histograms pulled", "MB", None, [pulled.driver.mb], [ours.driver.mb]),
                Line(f"{what}: seconds of trees", "histograms pulled", "s", None, pulled.seconds, ours.seconds),
            ]
            sizes += [_size(what, name, way, settings.trees) for name, way in ways.items()]
            checks.append(Check(f"{what}: different forests", len(pulled.digests | ours.digests) - 1, 0))
    return Part(lines, checks, sizes=sizes)


def _compared(frame: Any, settings: Settings, rounds: int, traffic: Traffic) -> dict[str, _Way]:
    """Let both ways alternate; the first training of each warms up, and its traffic is counted."""
    ways = {name: _Way() for name in WAYS}
    for round_ in range(1 + rounds):
        for name, way in ways.items():
            with _grown(Pulled if name == "pulled" else TreeMatrices, None if round_ else (way, traffic)):
                before = Moved() if round_ else traffic.so_far()
                seconds, made = _fit(frame, settings)
            way.digests.add(made)
            if round_:
                way.seconds.append(seconds)
            else:
                way.moved = traffic.so_far() - before
                tell(f"{name}: {way.moved}, of it for splits {way.driver}")
            tell(f"{name}: {seconds:.2f} s of trees")
    return ways


def _fit(frame: Any, settings: Settings) -> tuple[float, str]:
    from ps2.algorithms import GBTClassifier

    model = GBTClassifier(**settings.ours()).fit(frame)
    return sum(model.summary.stepSeconds), digest(alone(model).forest)


@contextmanager
def _grown(base: Any, count: tuple[_Way, Traffic] | None) -> Iterator[None]:
    """Set how trainings find splits; if asked, count the traffic of that alone, while the workers wait."""
    module: Any = trainer
    given, kind = module.TreeMatrices, base
    if count is not None:
        kind = type("Counted", (base,), {"best_splits": _counted(base.best_splits, *count)})
    module.TreeMatrices = kind
    try:
        yield
    finally:
        module.TreeMatrices = given


def _counted(find: Callable[..., BestSplits], way: _Way, traffic: Traffic) -> Callable[..., BestSplits]:
    def count(self: Any, growth: Growth, recipe: BoostingOptions) -> BestSplits:
        before = traffic.so_far()
        found = find(self, growth, recipe)
        way.driver = way.driver + (traffic.so_far() - before)
        return found

    return count


def _size(what: str, name: str, way: _Way, trees: int) -> dict[str, Any]:
    return {
        "rows": what,
        "way": name,
        "trees": trees,
        "to servers MB": f"{way.moved.received / 1e6:.1f}",
        "from servers MB": f"{way.moved.sent / 1e6:.1f}",
        "of it for splits MB": f"{way.driver.mb:.3f}",
        "arrays MB": f"{way.moved.arrays / 1e6:.1f}",
    }


if __name__ == "__main__":
    answer(Asked, measure)
