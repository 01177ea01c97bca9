"""Factorization in which each worker changes a copy of all items: BSP, SSP and averaging. Rotation is compared with it.

Users, ratings, steps and the items' rows are those of ``ps2.algorithms.factors``; only how workers share items differs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.slow_part import Curve
from ps2 import DCV
from ps2.algorithms.factors.dealing import Deal, DealtRatings
from ps2.algorithms.factors.following import HELD_LOSS, HELD_WEIGHT
from ps2.algorithms.factors.grid import Grid, Layout, read_grid
from ps2.algorithms.factors.options import FactorOptions
from ps2.algorithms.factors.ratings import RatingsSurvey
from ps2.algorithms.factors.rows import Beginning, Scaling
from ps2.algorithms.factors.sgd import BlockDescent, Piece, SgdSettings
from ps2.algorithms.factors.sgd_kernels import squared_errors
from ps2.array_types import Float32s
from ps2.client.matrix import DCVMatrix


@dataclass(frozen=True)
class Copies:
    """How copies are kept.

    Attributes:
        clocks: of an iteration: after each the workers' changes are added up.
        staleness: of the run; 0: BSP.
        averages: workers' items are averaged; else their changes are added.
    """

    clocks: int
    staleness: int = 0
    averages: bool = False


class PartDescent(BlockDescent):
    """Takes the steps of a part of a worker's users, in all blocks."""

    def __init__(self, grid: Grid, settings: SgdSettings, rank: int, users: Float32s, parts: int) -> None:
        super().__init__(grid, settings, rank, users)
        self._parts = parts

    def pieces(self, block: int) -> list[Piece]:
        return [Piece(turn, part) for turn in range(self.grid.layout.groups) for part in range(self._parts)]

    def take_part(self, part: int, iteration: int, rows: Float32s) -> None:
        """Take the steps of a part.

        Args:
            rows: of all items; changed.
        """
        layout = self.grid.layout
        for block in range(layout.ring.blocks):
            bounds = layout.items_of(block)
            for turn in range(layout.groups):
                self.take(block, Piece(turn, part), iteration, rows[bounds[0] : bounds[-1]], None)


@dataclass(frozen=True, eq=False)
class CopiesProgram:
    """What each worker runs; picklable."""

    settings: SgdSettings
    way: Copies
    users: DCVMatrix
    items: DCVMatrix

    def __call__(self, worker: Any, grid: Grid) -> None:
        way, items, every = self.way, self.items, np.arange(grid.layout.items)
        users = self.users.pull(columns=np.arange(grid.first_user, grid.first_user + grid.users))
        descent = PartDescent(grid, self.settings, worker.rank, users, way.clocks)
        share = np.float32(1 / worker.workers if way.averages else 1)
        for _ in worker.clocks(1):
            worker.barrier()  # all have read their ratings
        ahead = None
        for clock in worker.clocks(1 + self.settings.options.iterations * way.clocks):
            iteration, part = divmod(clock - 1, way.clocks)
            rows = items.pull(columns=every) if ahead is None else ahead.result()
            if way.staleness:
                ahead = worker.prefetch(items, columns=every)
            changed = rows.copy()
            descent.take_part(part, iteration + 1, changed)
            items.add(columns=every, values=share * (changed - rows), wait=False)
            if part + 1 == way.clocks:
                worker.report(self._evaluate(worker, grid, users))

    def _evaluate(self, worker: Any, grid: Grid, users: Float32s) -> Mapping[str, float]:
        held, options = grid.held_out, self.settings.options
        if held is None:
            return {HELD_LOSS: np.nan, HELD_WEIGHT: 1.0}
        if not self.way.staleness:
            worker.barrier()
        rows = self.items.pull(columns=held.columns)
        loss = squared_errors(
            held.users, held.items, held.values, held.weights, users, rows, options.rank, options.biases
        )
        return {HELD_LOSS: loss, HELD_WEIGHT: held.weight}


@dataclass(frozen=True, eq=False)
class _Read:
    layout: Layout
    scaling: Scaling

    def __call__(self, worker: Any, batches: Any) -> Grid:
        scaling = self.scaling
        return read_grid(batches, self.layout, worker.rank, scaling.mean, scaling.scale, scaling.unit)


def train_copies(
    ps: Any,
    dealt: DealtRatings,
    survey: RatingsSurvey,
    options: FactorOptions,
    way: Copies,
    program: type[CopiesProgram] = CopiesProgram,
) -> Curve:
    """Train; return the RMSE of held-out rows after each iteration; NaN without any."""
    scaling = Scaling.of(survey, options)
    settings = SgdSettings(options, scaling.scale)
    layout = dealt.deal.layout
    users, items = (DCV.dense(dim, settings.width, layout="column").matrix() for dim in (layout.users, layout.items))
    _put_first(dealt.deal, survey, Beginning(settings, scaling), users, items)
    seconds: list[float] = []
    losses: list[float] = []
    began_s = 0.0

    def on_clock(clock: int, reports: Sequence[Any]) -> None:
        nonlocal began_s
        if clock == 0:
            began_s = time.monotonic()
        if reports:
            seconds.append(time.monotonic() - began_s)
            losses.append(scaling.scale * float(np.sqrt(reports[0][HELD_LOSS] / reports[0][HELD_WEIGHT])))

    ps.run(
        *(dealt.frame, program(settings, way, users, items), dealt.workers, way.staleness),
        read=_Read(layout, scaling),
        onClock=on_clock,
        seed=settings.seed,
    )
    users.free()
    items.free()
    return Curve(np.array(seconds), np.array(losses))


def _put_first(deal: Deal, survey: RatingsSurvey, beginning: Beginning, users: DCVMatrix, items: DCVMatrix) -> None:
    for matrix, places, ids, ratings, kind in (
        (users, deal.user_places, survey.users, survey.user_penalties, "user"),
        (items, deal.item_places, survey.items, survey.item_penalties, "item"),
    ):
        rows = beginning.rows(kind, ids, slice(0, len(places)), ratings)
        matrix.push(columns=places.astype(np.int64), values=rows)
