"""Coordinate descent as a durable program.

Yu et al., "Scalable Coordinate Descent Approaches to Parallel Matrix Factorization for Recommender Systems" (2012),
section 4: each worker has the ratings of some users and of some items. An iteration is a clock, in which all workers
solve the vectors of their users, and then those of their items. CCD++ solves one coordinate of all vectors at a time. A
worker solves one vector after the other instead, in blocks of coordinates (iALS++; see ``ccd_kernels.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ps2.algorithms.factors import program as reports
from ps2.algorithms.factors.ccd_descent import (
    SideDescent,
    WorkersRatings,
    gram_matrix,
    num_coordinates,
    padded_rank,
    read_ratings,
)
from ps2.algorithms.factors.grid import Layout
from ps2.algorithms.factors.plan import FactorizationPlan, FittedFactors
from ps2.algorithms.factors.program import CheckAndTrain, FactorsProgram, Iteration, Problem
from ps2.algorithms.factors.rows import Vectors
from ps2.algorithms.factors.shared_factors import BEST, ITEMS, USERS, CcdSizes, CcdVectors, pull_vectors
from ps2.algorithms.frame.program import Ask, Steps, Task, WorkerLoop
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.record import StepReport
from ps2.array_types import Float32s, Int64s
from ps2.data.row_spill import RowSpill
from ps2.data.spilling import Spill
from ps2.errors import PS2Error

# The standard deviation of the coordinates of items' initial vectors, times the square root of the rank.
INITIAL_STD = 0.3


@dataclass(frozen=True)
class SolveAll(Task):
    """The task to solve all coordinates once; ``iteration`` counts from 0."""

    iteration: int


class CcdProgram(FactorsProgram):
    """Coordinate descent."""

    def __init__(self, problem: Problem, names: CheckpointNames, on_step: Callable[[StepReport], None]) -> None:
        super().__init__(problem, on_step)
        survey = problem.survey
        self.mean = survey.mean if problem.plan.settings.biases else 0.0
        workers = problem.assignment.layout.rotation.workers
        sizes = CcdSizes(problem.plan, len(survey.users), len(survey.items), workers, problem.keeps_best)
        self._vectors = CcdVectors.make(sizes, names)

    def drive(self, ask: Ask) -> Steps[tuple[int, int]]:
        ask(self._write_first_vectors)
        yield from self.check_ratings(ask)
        ask.start_timer()
        results: list[Iteration] = []
        while True:
            iterations = ask.setting(lambda: self.plan.settings.maxIter)
            last = self.last_iteration(results, iterations)
            if len(results) >= last:
                return self.end(results, is_early=last < iterations), len(results)
            report = yield SolveAll(len(results))
            result = Iteration.from_sums(vars(report), self.plan.settings.implicitPrefs)
            if not math.isfinite(result.objective):
                raise PS2Error(
                    f"iteration {len(results) + 1}: the loss is {result.objective}: values exceed float32's range; "
                    "smaller ratings, or a larger regParam, may help"
                )
            self.end_iteration(ask, results, result)
            if self.problem.keeps_best and self.best_iteration(results) == len(results):
                ask(partial(self._vectors.keep_best, len(results)))

    def _write_first_vectors(self) -> None:
        problem, survey, model = self.problem, self.problem.survey, self.problem.initial_model
        users, items = first_vectors(problem.plan, len(survey.users), len(survey.items))
        if model is not None:
            _copy_model(users, survey.users.find(model.users.values), model.user_factors, model.user_bias)
            _copy_model(items, survey.items.find(model.items.values), model.item_factors, model.item_bias)
        ordered = np.empty_like(users), np.empty_like(items)
        ordered[0][problem.assignment.user_positions] = users
        ordered[1][problem.assignment.item_positions] = items
        self._vectors.write(*ordered)

    def loop(self) -> CheckAndTrain:
        layout = self.problem.assignment.layout
        return CheckAndTrain(WorkerLoop(partial(_make_worker, self._vectors, layout.groups, self.mean)))

    def reader(self) -> Callable[[Any, Iterator[Any]], WorkersRatings]:
        return partial(_read, self.problem.assignment.layout, self.plan, self.spill)

    def result(self, best_and_last: tuple[int, int]) -> FittedFactors:
        assignment, (best, last) = self.problem.assignment, best_and_last
        copy = last % 2 if best == last else BEST
        users = pull_vectors(self._vectors.users[copy], assignment.user_positions)
        items = pull_vectors(self._vectors.items[copy], assignment.item_positions)
        return self.fitted(_split(users, self.plan), _split(items, self.plan))

    def free(self) -> None:
        self._vectors.free()


def _read(
    layout: Layout, plan: FactorizationPlan, spill: Spill | None, worker: Any, batches: Iterator[Any]
) -> WorkersRatings:
    first, end = layout.user_bounds(worker.rank)[[0, -1]].tolist()
    row_spill = None if spill is None else RowSpill(spill, worker.rank, worker.workers)
    return read_ratings(batches, (first, end), layout.items_owned_by(worker.rank), plan, row_spill)


def _make_worker(vectors: CcdVectors, threads: int, mean: float, ratings: WorkersRatings) -> CcdWorker:
    plan = vectors.sizes.plan
    users = SideDescent(plan, ratings.users, mean, None, threads)
    items = SideDescent(plan, ratings.items, mean, ratings.held_out, threads)
    return CcdWorker(vectors, (np.arange(*ratings.user_bounds), np.arange(*ratings.item_bounds)), (users, items))


class CcdWorker:
    """A worker's users and items with their ratings, and the vectors on the servers."""

    def __init__(
        self, vectors: CcdVectors, positions: tuple[Int64s, Int64s], sides: tuple[SideDescent, SideDescent]
    ) -> None:
        """``positions`` and ``sides``: first those of the worker's users, then those of its items."""
        self._vectors = vectors
        self._user_positions, self._item_positions = positions
        self._users, self._items = sides
        self._loaded: int | None = None  # the finished iterations of this process's vectors; None: no vectors

    def __call__(self, worker: Any, task: SolveAll) -> None:
        """Solve the users' vectors, wait for all workers, solve the items' vectors, and report."""

        def request(matrix: Any) -> Callable[[Int64s], Any]:
            return lambda columns: worker.prefetch(matrix, columns=columns, ahead=0)

        vectors, rank = self._vectors, worker.rank
        before, after = task.iteration % 2, (task.iteration + 1) % 2
        users, items = self._users, self._items
        if self._loaded != task.iteration:  # the process is new, or was rolled back
            users.vectors = vectors.users[before].pull(columns=self._user_positions)
            items.vectors = vectors.items[before].pull(columns=self._item_positions)
        users.solve(request(vectors.items[before]), vectors.gram(ITEMS + before))
        vectors.users[after].push(columns=self._user_positions, values=users.vectors, wait=False)
        if vectors.grams is not None:
            vectors.add_gram(USERS, rank, gram_matrix(users.vectors))
        worker.barrier()
        users_gram = vectors.gram(USERS)
        loss, held_loss = items.solve(request(vectors.users[after]), users_gram)
        vectors.items[after].push(columns=self._item_positions, values=items.vectors, wait=False)
        if vectors.grams is not None:
            vectors.add_gram(ITEMS + after, rank, items_gram := gram_matrix(items.vectors))
            # The inner product of the Gram matrices is the sum of the squared predictions of all users for these items.
            loss += float(np.sum(users_gram * items_gram))
        self._loaded = task.iteration + 1
        losses = {reports.LOSS: loss, reports.HELD_LOSS: held_loss, reports.PENALTY: users.penalty() + items.penalty()}
        weights = {reports.WEIGHT: items.weight, reports.HELD_WEIGHT: items.held_weight}
        worker.report(losses | weights | {reports.RATINGS: items.ratings, reports.BYTES: users.bytes + items.bytes})


def first_vectors(plan: FactorizationPlan, users: int, items: int) -> tuple[Float32s, Float32s]:
    """Return initial vectors, shape (n, ``num_coordinates``). Users' are 0: an iteration solves them before use."""
    settings, ranks = plan.settings, num_coordinates(plan)
    item_vectors = np.zeros((items, ranks), np.float32)
    rng = np.random.default_rng(plan.seed)
    item_vectors[:, : settings.rank] = rng.standard_normal((items, settings.rank), np.float32)
    item_vectors *= np.float32(INITIAL_STD / math.sqrt(settings.rank))
    # With a positive first coordinate of all items, the users' first coordinates can fit the sign of most ratings.
    item_vectors[:, 0] = np.abs(item_vectors[:, 0])
    if settings.nonnegative:
        np.abs(item_vectors, out=item_vectors)
    return np.zeros((users, ranks), np.float32), item_vectors


def _copy_model(vectors: Float32s, rows: Any, factors: Float32s, bias: Float32s | None) -> None:
    """Copy a model's factors to these rows of ``vectors``, and its biases if the model and the training have biases."""
    rank = factors.shape[1]
    vectors[rows, :rank] = factors
    if bias is not None and vectors.shape[1] > padded_rank(rank):
        vectors[rows, padded_rank(rank)] = bias


def _split(vectors: Float32s, plan: FactorizationPlan) -> Vectors:
    """Split vectors into factors and biases, without the additional coordinates of ``padded_rank``."""
    biases = vectors[:, padded_rank(plan.settings.rank)].copy() if plan.settings.biases else None
    return np.ascontiguousarray(vectors[:, : plan.settings.rank]), biases
