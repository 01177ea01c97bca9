"""The rows of "sgd" (a vector, its bias, and the sums for its step sizes), and the scaling of ratings."""

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

# Vectors, shape (n, rank), and their biases; None: the model has no biases.
Vectors = tuple[Float32s, Float32s | None]

# The difference between the seeds of items' and of users' initial vectors: any constant.
ITEMS_SEED = 0x5BF03635
# A standard deviation below this fraction of the mean is rounding error.
MIN_SPREAD = 1e-7
# The largest absolute value of an initial random factor, times the square root of the rank.
NOISE = 0.5
# The smallest default step size, the number of ratings from which on it is used, and the largest default step size.
MIN_STEP, MANY_RATINGS, MAX_STEP = 0.1, 100_000, 0.3
# If the scaled ratings' absolute mean is below this, products of initial vectors are about 0, else about the mean.
MIN_LEVEL = 0.25


def default_step(ratings: int) -> float:
    """Return the first step size: 0.1 for 100,000 ratings or more, and up to 0.3 for fewer ratings.

    Fewer ratings need larger steps. Measured: on MovieLens' million ratings, 0.2 has a larger final error than 0.1. On
    20 to 600 ratings, 0.1 learns almost nothing in ten iterations, and 0.5 diverges.
    """
    return min(max(MIN_STEP, MIN_STEP * (MANY_RATINGS / max(ratings, 1)) ** (1 / 6)), MAX_STEP)


@dataclass(frozen=True)
class Scaling:
    """The scaling of ratings to the values that the solver fits: ``(rating - mean) / scale``.

    Attributes:
        mean: the mean rating; 0 without biases.
        scale: the standard deviation of the ratings, or their absolute mean if all are equal. So one step size suits
            all rating scales.
        mean_value: the mean of the values.
        weight_scale: the factor on all weights that makes their mean 1, because steps are proportional to weights. It
            does not change the optimum.
    """

    mean: float
    scale: float
    mean_value: float
    weight_scale: float = 1.0

    @staticmethod
    def from_survey(survey: RatingsSurvey, plan: FactorizationPlan) -> Scaling:
        mean = survey.mean if plan.settings.biases else 0.0
        scale = survey.std if survey.std > MIN_SPREAD * abs(survey.mean) else abs(survey.mean) or 1.0
        weight_scale = survey.rows / float(survey.user_penalties.sum()) if survey.columns.weight is not None else 1.0
        return Scaling(mean, scale, (survey.mean - mean) / scale, weight_scale)

    def restored(self, rows: Float32s, plan: FactorizationPlan) -> Vectors:
        """Return the vectors and biases of ``rows``, scaled so that they predict ratings instead of values."""
        rank = plan.settings.rank
        vectors = rows[:, :rank] * np.float32(math.sqrt(self.scale))
        return vectors, rows[:, rank + BIAS] * np.float32(self.scale) if plan.settings.biases else None


@dataclass(frozen=True, kw_only=True)
class SgdPlan(FactorizationPlan):
    """The plan of "sgd". Ratings, and the penalty of vectors, are divided by ``scale`` (see ``Scaling``)."""

    scale: float
    step_size: float = MIN_STEP

    def rates(self, halvings: int = 0) -> Float32s:
        """Return the step size after some halvings, and the weights of the penalties of vectors and of biases."""
        reg = self.settings.regParam
        return np.array([self.step_size / 2**halvings, reg / self.scale, reg], np.float32)

    @property
    def width(self) -> int:
        """The number of float32s in a row."""
        return self.settings.rank + WIDTH


@dataclass(frozen=True, eq=False)
class InitialRows:
    """The rows with which a training starts. Random factors depend on the seed and the index of each id.

    The ids of ``model`` keep its vectors, and have step sizes as small as after an iteration.
    """

    plan: SgdPlan
    scaling: Scaling
    model: FittedFactors | None = None

    def rows(self, kind: str, ids: Ids, penalties: Float64s, selected: slice) -> Float32s:
        """Return the rows of ids with indices ``selected``; ``penalties``: the summed weight of each id's ratings."""
        settings, scaling = self.plan.settings, self.scaling
        indices = np.arange(selected.start, selected.stop)
        rows = np.empty((len(indices), self.plan.width), np.float32)
        high = NOISE / math.sqrt(settings.rank)
        low = 0.0 if settings.nonnegative else -high
        seed = np.uint64((self.plan.seed + ITEMS_SEED * (kind == "item")) % 2**64)
        draw_rows(indices, seed, settings.rank, low, high, rows)
        if abs(scaling.mean_value) >= MIN_LEVEL:
            # The product of the first factors is the mean of the values. The other products are 0 on average.
            rows[:, 0] = math.copysign(
                math.sqrt(abs(scaling.mean_value)), scaling.mean_value if kind == "user" else 1.0
            )
        # No rating moves a vector whose ratings all weigh 0. With "ccd", and in pyspark.ml's ALS, it is 0, too.
        rows[penalties[selected] == 0, : settings.rank] = 0.0
        if (model := self.model) is None:
            return rows
        model_ids, vectors, biases = model.items, model.item_factors, model.item_bias
        if kind == "user":
            model_ids, vectors, biases = model.users, model.user_factors, model.user_bias
        model_rows = model_ids.find(ids.named(indices))
        is_known = model_rows != UNKNOWN
        model_rows = model_rows[is_known]
        rows[is_known, : settings.rank] = vectors[model_rows] / np.float32(math.sqrt(scaling.scale))
        for column in (SLOW, FAST):
            rows[is_known, settings.rank + column] += penalties[selected][is_known]
        if settings.biases and biases is not None:
            rows[is_known, settings.rank + BIAS] = biases[model_rows] / np.float32(scaling.scale)
        return rows
