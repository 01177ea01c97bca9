"""The driver's part of coordinate descent: vectors on the servers, and how far the training is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ps2.algorithms.factors.ccd_descent import padded
from ps2.algorithms.factors.ccd_reading import WorkersRatings, read_ratings
from ps2.algorithms.factors.ccd_vectors import CcdSizes, CcdVectors
from ps2.algorithms.factors.ccd_worker import CcdProgram
from ps2.algorithms.factors.driver import Problem
from ps2.algorithms.factors.grid import Layout
from ps2.algorithms.factors.options import FactorOptions
from ps2.algorithms.factors.plan import LAST
from ps2.algorithms.factors.progress import Iteration, Stopping
from ps2.algorithms.factors.rows import Vectors
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.array_types import Float32s

# Standard deviation of the numbers of new vectors, times the root of the rank.
SPREAD = 0.3


class CcdProgress:
    """``Following`` of coordinate descent: each clock is an iteration."""

    def __init__(self, iterations: int, stopping: Stopping, implicit: bool) -> None:
        self._iterations, self._stopping, self._implicit = iterations, stopping, implicit
        self.results: list[Iteration] = []
        self.halvings = 0
        self.is_over = self.stopped_early = False
        self.failure = ""

    @property
    def best(self) -> int | None:
        return self._stopping.best(self.results)

    def hear(self, clock: int, heard: Mapping[str, float]) -> dict[str, Any]:
        if self.is_over:
            return {}
        one, number = Iteration.of(heard, self._implicit), len(self.results) + 1
        if not math.isfinite(one.objective):
            self.failure = (
                f"iteration {number}: the loss is {one.objective}: the numbers have left float32's range; ratings of a "
                "smaller scale, or a larger regParam, may help"
            )
            return {}
        self.results.append(one)
        self.stopped_early = number < self._iterations and self._stopping.is_stuck(self.results)
        self.is_over = self.stopped_early or number >= self._iterations
        return {LAST: number} if self.stopped_early else {}

    def go_on_to(self, iterations: int) -> None:
        if not self.stopped_early:
            self._iterations = iterations
            self.is_over = len(self.results) >= iterations


class CcdSolver:
    """``SolverPart`` of coordinate descent."""

    staleness, scale = 0, 1.0
    step_size: float | None = None

    def __init__(self, problem: Problem, names: CheckpointNames, iterations: int) -> None:
        self._problem, survey = problem, problem.survey
        self.mean = survey.mean if problem.options.biases else 0.0
        workers = problem.deal.layout.ring.workers
        sizes = CcdSizes(problem.options, len(survey.users), len(survey.items), workers, problem.keeps_best)
        self._vectors = CcdVectors.make(sizes, names)

    def begin(self, iterations: int) -> CcdProgress:
        options = self._problem.options
        return CcdProgress(iterations, Stopping(options.validation_tol, options.patience), options.implicit)

    def put_first(self) -> None:
        problem, survey, start = self._problem, self._problem.survey, self._problem.start
        users, items = first_vectors(problem.options, len(survey.users), len(survey.items))
        if start is not None:
            _take(users, survey.users.find(start.users.values), start.user_factors, start.user_bias)
            _take(items, survey.items.find(start.items.values), start.item_factors, start.item_bias)
        placed = np.empty_like(users), np.empty_like(items)
        placed[0][problem.deal.user_places] = users
        placed[1][problem.deal.item_places] = items
        self._vectors.write(*placed)

    def keep(self, iteration: int) -> None:
        if self._problem.keeps_best:
            self._vectors.keep(iteration)

    def read(self, progress: CcdProgress) -> tuple[Vectors, Vectors]:
        deal, options, iterations = self._problem.deal, self._problem.options, len(progress.results)
        is_last = progress.best in (None, iterations)
        users, items = self._vectors.read(iterations) if is_last else self._vectors.read_best()
        return _cut(users[deal.user_places], options), _cut(items[deal.item_places], options)

    def reader(self) -> ReadRatings:
        return ReadRatings(self._problem.deal.layout, self._problem.options)

    def program(self) -> CcdProgram:
        return CcdProgram(self._vectors, self._problem.deal.layout, self.mean)

    def free(self) -> None:
        self._vectors.free()


@dataclass(frozen=True, eq=False)
class ReadRatings:
    """Reads a worker's ratings; picklable."""

    layout: Layout
    options: FactorOptions

    def __call__(self, worker: Any, batches: Iterator[Any]) -> WorkersRatings:
        first, end = self.layout.users_of(worker.rank)[[0, -1]].tolist()
        return read_ratings(batches, (first, end), self.layout.items_owned_by(worker.rank), self.options)


def first_vectors(options: FactorOptions, users: int, items: int) -> tuple[Float32s, Float32s]:
    """Draw vectors, with their biases: shape (users, ranks) and (items, ranks). The users' are solved first."""
    ranks = padded(options.rank) + options.biases
    of_items = np.zeros((items, ranks), np.float32)
    draws = np.random.default_rng(options.seed)
    of_items[:, : options.rank] = draws.standard_normal((items, options.rank), np.float32)
    of_items *= np.float32(SPREAD / math.sqrt(options.rank))
    # Ratings have one sign, mostly: the first rank begins with it.
    of_items[:, 0] = np.abs(of_items[:, 0])
    if options.nonnegative:
        np.abs(of_items, out=of_items)
    return np.zeros((users, ranks), np.float32), of_items


def _take(vectors: Float32s, numbers: Any, factors: Float32s, bias: Float32s | None) -> None:
    """Set vectors to those of a model, and biases if both have some."""
    rank = factors.shape[1]
    vectors[numbers, :rank] = factors
    if bias is not None and vectors.shape[1] > padded(rank):
        vectors[numbers, padded(rank)] = bias


def _cut(vectors: Float32s, options: FactorOptions) -> Vectors:
    """Return vectors without the numbers that fill blocks, and biases."""
    biases = vectors[:, padded(options.rank)].copy() if options.biases else None
    return np.ascontiguousarray(vectors[:, : options.rank]), biases
