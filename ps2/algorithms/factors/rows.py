"""Rows: a vector with a bias and what its steps need, as solvers and servers hold it; ratings are scaled for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ps2.algorithms.factors.plan import FactorizationPlan, FittedFactors
from ps2.algorithms.factors.sgd_kernels import BIAS, FAST, SLOW, WIDTH, draw_rows
from ps2.array_types import Float32s, Float64s
from ps2.data.ids import UNKNOWN, Ids

if TYPE_CHECKING:
    from ps2.algorithms.factors.ratings import RatingsSurvey

# Vectors, shape (n, rank), and biases, if there are biases.
Vectors = tuple[Float32s, Float32s | None]

# Seeds of items differ from those of users by this.
ITEMS_SEED = 0x5BF03635
# A standard deviation below this share of the mean is rounding.
MIN_SPREAD = 1e-7
# The largest number that is drawn, for vectors of rank 1.
NOISE = 0.5
# The default step sizes: the smallest, for this many ratings or more, and the largest.
MIN_STEP, MANY_RATINGS, MAX_STEP = 0.1, 100_000, 0.3
# Values with a mean nearer to 0 than this have none to begin with.
MIN_LEVEL = 0.25


def default_step(ratings: int) -> float:
    """Return the first step: .1 from 100,000 ratings on, and more for fewer ratings, up to .3.

    Few steps have to be larger. On MovieLens' million ratings .2 ends worse than .1. On 20 to 600 ratings .1 learns
    next to nothing in ten iterations, and .5 diverges.
    """
    return min(max(MIN_STEP, MIN_STEP * (MANY_RATINGS / max(ratings, 1)) ** (1 / 6)), MAX_STEP)


@dataclass(frozen=True)
class Scaling:
    """The scaling of ratings to values of a solver: ``(rating - mean) / scale``.

    Attributes:
        mean: the mean rating; 0 without biases.
        scale: about the standard deviation of ratings, so that steps suit any unit.
        level: the mean of the values.
        unit: the factor of weights that makes their mean 1, as steps grow with them; no optimum changes.
    """

    mean: float
    scale: float
    level: float
    unit: float = 1.0

    @staticmethod
    def from_survey(survey: RatingsSurvey, plan: FactorizationPlan) -> Scaling:
        mean = survey.mean if plan.settings.biases else 0.0
        scale = survey.std if survey.std > MIN_SPREAD * abs(survey.mean) else abs(survey.mean) or 1.0
        unit = survey.rows / float(survey.user_penalties.sum()) if survey.columns.weight is not None else 1.0
        return Scaling(mean, scale, (survey.mean - mean) / scale, unit)

    def restored(self, rows: Float32s, plan: FactorizationPlan) -> Vectors:
        """Return the vectors and biases of rows, in the unit of ratings."""
        rank = plan.settings.rank
        vectors = rows[:, :rank] * np.float32(math.sqrt(self.scale))
        return vectors, rows[:, rank + BIAS] * np.float32(self.scale) if plan.settings.biases else None


@dataclass(frozen=True, kw_only=True)
class SgdPlan(FactorizationPlan):
    """A factorization to train by gradient descent; ``scale`` divides ratings, and the penalty of vectors."""

    scale: float
    step_size: float = MIN_STEP

    def rates(self, halvings: int = 0) -> Float32s:
        """Return the first step size after some halvings, and the weights of the penalties of vectors and of biases."""
        reg = self.settings.regParam
        return np.array([self.step_size / 2**halvings, reg / self.scale, reg], np.float32)

    @property
    def width(self) -> int:
        """The number of numbers in a row."""
        return self.settings.rank + WIDTH


@dataclass(frozen=True, eq=False)
class Beginning:
    """The rows that a training begins with; they depend on the seed and each id's number.

    The vectors of a model ``start`` continue, with steps as after some passes.
    """

    plan: SgdPlan
    scaling: Scaling
    start: FittedFactors | None = None

    def rows(self, kind: str, ids: Ids, ratings: Float64s, some: slice) -> Float32s:
        """Return the rows of some of the ids; the kind is "user" or "item", and each id has so many ratings."""
        settings, scaling = self.plan.settings, self.scaling
        numbers = np.arange(some.start, some.stop)
        rows = np.empty((len(numbers), self.plan.width), np.float32)
        high = NOISE / math.sqrt(settings.rank)
        low = 0.0 if settings.nonnegative else -high
        seed = np.uint64((self.plan.seed + ITEMS_SEED * (kind == "item")) % 2**64)
        draw_rows(numbers, seed, settings.rank, low, high, rows)
        if abs(scaling.level) >= MIN_LEVEL:
            # The first numbers of two vectors have the mean of the values as their product: what is left to learn has
            # no mean, as with biases.
            rows[:, 0] = math.copysign(math.sqrt(abs(scaling.level)), scaling.level if kind == "user" else 1.0)
        if self.start is None:
            return rows
        start = self.start
        known, vectors, biases = start.items, start.item_factors, start.item_bias
        if kind == "user":
            known, vectors, biases = start.users, start.user_factors, start.user_bias
        known_numbers = known.find(ids.named(numbers))
        old = known_numbers != UNKNOWN
        rows[old, : settings.rank] = vectors[known_numbers[old]] / np.float32(math.sqrt(scaling.scale))
        for sum_ in (SLOW, FAST):
            rows[old, settings.rank + sum_] += ratings[some][old]
        if settings.biases and biases is not None:
            rows[old, settings.rank + BIAS] = biases[known_numbers[old]] / np.float32(scaling.scale)
        return rows
