"""The driver's part of stochastic gradient descent: vectors on the servers, and how far the training is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.factors.driver import Problem
from ps2.algorithms.factors.grid import Grid, Layout, read_grid
from ps2.algorithms.factors.plan import STALENESS, Lengths
from ps2.algorithms.factors.progress import Progress, Stopping
from ps2.algorithms.factors.rows import Beginning, Scaling, Vectors, default_step
from ps2.algorithms.factors.sgd import SgdProgram, SgdSettings
from ps2.algorithms.factors.shared_factors import FleetSizes, SharedFactors
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.array_types import Float32s

# Vectors that the driver pushes or pulls at once, in bytes.
SOME_BYTES = 64 << 20


class SgdSolver:
    """``SolverPart`` of stochastic gradient descent.

    Attributes:
        scaling: of ratings.
    """

    staleness = STALENESS

    def __init__(self, problem: Problem, names: CheckpointNames, iterations: int) -> None:
        options, layout = problem.options, problem.deal.layout
        self._problem = problem
        self.scaling = Scaling.of(problem.survey, options)
        self.scale, self.mean = self.scaling.scale, self.scaling.mean
        step = default_step(problem.survey.rows) if options.step_size is None else options.step_size
        self.step_size: float | None = step
        self._settings = SgdSettings(options, self.scale, step)
        keeps_best, evaluates = problem.keeps_best, problem.survey.held_out > 0
        self._lengths = Lengths(layout.ring.turns, iterations, options.save_interval, evaluates, keeps_best)
        sizes = FleetSizes(layout.users, layout.items, self._settings.width, self._lengths.generations)
        self._fleet = SharedFactors.make(sizes, names)

    def begin(self, iterations: int) -> Progress:
        options = self._problem.options
        # Twice the RMSE of predicting 0. A model to go on from may predict other ratings worse than that.
        most = 2 * math.hypot(1.0, self.scaling.level) if self._problem.start is None else math.inf
        return Progress(self._lengths, Stopping(options.validation_tol, options.patience), most)

    def put_first(self) -> None:
        survey, deal = self._problem.survey, self._problem.deal
        kinds = (
            (self._fleet.kept_users[0], deal.user_places, survey.users, survey.user_penalties, "user"),
            (self._fleet.kept_items[0], deal.item_places, survey.items, survey.item_penalties, "item"),
        )
        beginning = Beginning(self._settings, self.scaling, self._problem.start)
        for matrix, places, ids, ratings, kind in kinds:
            for some in self._slices(len(places)):
                rows = beginning.rows(kind, ids, some, ratings[some])
                matrix.push(columns=places[some].astype(np.int64), values=rows, wait=False)
            matrix.flush()

    def keep(self, iteration: int) -> None:
        """Nothing to do: each iteration is saved, and the next one where the best one is not."""

    def read(self, progress: Progress) -> tuple[Vectors, Vectors]:
        deal, best = self._problem.deal, progress.best
        generation = progress.plan.generation(progress.saved if best is None else best)
        return (
            self._read(self._fleet.kept_users[generation], deal.user_places),
            self._read(self._fleet.kept_items[generation], deal.item_places),
        )

    def reader(self) -> ReadGrid:
        return ReadGrid(self._problem.deal.layout, self.scaling)

    def program(self) -> SgdProgram:
        return SgdProgram(self._settings, self._fleet, self._lengths)

    def free(self) -> None:
        self._fleet.free()

    def _read(self, matrix: Any, places: Any) -> Vectors:
        rows: Float32s = np.empty((len(places), self._settings.width), np.float32)
        for some in self._slices(len(places)):
            rows[some] = matrix.pull(columns=places[some].astype(np.int64))
        return self.scaling.restored(rows, self._problem.options)

    def _slices(self, count: int) -> Iterator[slice]:
        each = max(1, SOME_BYTES // (4 * self._settings.width))
        for begin in range(0, count, each):
            yield slice(begin, min(begin + each, count))


@dataclass(frozen=True, eq=False)
class ReadGrid:
    """Reads a worker's ratings; picklable."""

    layout: Layout
    scaling: Scaling

    def __call__(self, worker: Any, batches: Iterator[Any]) -> Grid:
        scaling = self.scaling
        return read_grid(batches, self.layout, worker.rank, scaling.mean, scaling.scale, scaling.unit)
