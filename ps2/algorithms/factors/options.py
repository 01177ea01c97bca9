"""Options and results of matrix factorization."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ps2.algorithms.training.record import TrainingHistory, Words
from ps2.array_types import Float32s
from ps2.data.ids import Ids
from ps2.errors import ConfigError

Solver = Literal["sgd", "ccd"]
# Larger ratings, weights, penalties or confidences have squares that float32 does not hold.
MAX_VALUE = 1e18
MAX_RANK = 4096
AUTO = "auto"
# The default step of tables with many ratings for each vector; smaller tables have a larger one.
MIN_STEP = 0.1
WORDS, IMPLICIT_WORDS = Words("iteration", "RMSE"), Words("iteration", "loss")


@dataclass(frozen=True)
class FactorOptions:
    """Options of a factorization.

    Explicit feedback minimises the sum over ratings of ``w (r - p.q)^2``, plus ``reg`` times the sum of each vector's
    squared norm times the summed weight of its ratings, which is their number without weights: the objective of
    pyspark.ml's ALS (Zhou et al., "Large-scale Parallel Collaborative Filtering for the Netflix Prize", section 3.1).
    Implicit feedback is that of Hu, Koren and Volinsky, "Collaborative Filtering for Implicit Feedback Datasets", as
    ALS has it.

    Attributes:
        rank: numbers in a vector.
        iterations: passes over all ratings.
        reg: the weight of the penalty (lambda).
        solver: "sgd": stochastic gradient descent; "ccd": coordinate descent.
        implicit: ratings are amounts of positive feedback, and all other cells are weak negative feedback.
        alpha: growth of the confidence with an amount of feedback (``implicit``).
        nonnegative: no number of a vector is negative.
        biases: predictions have a mean, and a bias of each user and each item, beside the product of vectors.
        step_size: the first step of "sgd"; steps adapt to each vector. If the training diverges, it begins anew with
            half of it. None: by the number of ratings (``rows.default_step``).
        seed: of all draws.
        budget_s: seconds of a turn ("sgd"); None: a turn ends when its block is done; "auto": by measured times.
        validation_tol: the least relative decrease of the held-out rows' RMSE that counts as progress.
        patience: iterations without progress after which the training ends, and its result is that of the iteration
            with the least RMSE; 0: it never ends early, and its result is the last iteration's.
        save_interval: iterations between saves of the vectors, to which a training goes back when a worker is lost;
            0: it saves at the end only.
        name: the name under which a restored context continues the training; "": it cannot.
    """

    rank: int = 10
    iterations: int = 10
    reg: float = 0.1
    solver: Solver = "sgd"
    implicit: bool = False
    alpha: float = 1.0
    nonnegative: bool = False
    biases: bool = False
    step_size: float | None = None
    seed: int = 0
    budget_s: float | Literal["auto"] | None = None
    validation_tol: float = 0.0
    patience: int = 0
    save_interval: int = 10
    name: str = ""

    def __post_init__(self) -> None:
        self._check("rank", 1 <= self.rank <= MAX_RANK, f"a number from 1 to {MAX_RANK:,}")
        self._check("iterations", self.iterations >= 1, "at least 1")
        self._check("reg", 0 <= self.reg <= MAX_VALUE, f"a number from 0 to {MAX_VALUE:g}")
        self._check("solver", self.solver in get_args(Solver), f"one of {', '.join(get_args(Solver))}")
        self._check("alpha", 0 <= self.alpha <= MAX_VALUE, f"a number from 0 to {MAX_VALUE:g}")
        is_step = self.step_size is None or 0 < self.step_size < math.inf
        self._check("step_size", is_step, "a finite positive number, or None")
        is_budget = self.budget_s in (None, AUTO) or (isinstance(self.budget_s, float) and self.budget_s > 0)
        self._check("budget_s", is_budget, f"a positive number of seconds, None or {AUTO!r}")
        self._check("validation_tol", 0 <= self.validation_tol < 1, "a number in [0, 1)")
        self._check("patience", self.patience >= 0, "a number that is not negative")
        self._check("save_interval", self.save_interval >= 0, "a number that is not negative")
        if self.implicit and self.solver == "sgd":
            raise ConfigError("implicit feedback needs solver 'ccd', got 'sgd', which sees the given ratings only")
        if self.implicit and self.biases:
            raise ConfigError("biases go with explicit ratings: implicit feedback has none, as in pyspark.ml's ALS")

    @property
    def words(self) -> Words:
        """Terms for an iteration and what it minimises."""
        return IMPLICIT_WORDS if self.implicit else WORDS

    def _check(self, name: str, is_fine: bool, expected: str) -> None:
        if not is_fine:
            raise ConfigError(f"{name}: expected {expected}, got {getattr(self, name)!r}")


@dataclass(frozen=True, eq=False)
class FittedFactors:
    """The result of a training.

    The prediction for a user and an item is ``mean + user_bias + item_bias`` plus the inner product of their vectors.

    Attributes:
        users, items: ids; their order is that of the rows below.
        user_factors: float32, shape (users, rank).
        item_factors: float32, shape (items, rank).
        user_bias: float32, shape (users,); None: without biases.
        item_bias: float32, shape (items,); None: without biases.
        mean: of the ratings; 0 without biases.
        history: its ``objective`` is the RMSE of the ratings in each iteration; its ``validation`` is that of the
            held-out rows after it.
        step_size: with which "sgd" has trained; None: it has not.
        halvings: how often the training has begun anew with half the step.
    """

    users: Ids
    items: Ids
    user_factors: Float32s
    item_factors: Float32s
    user_bias: Float32s | None
    item_bias: Float32s | None
    mean: float
    history: TrainingHistory
    step_size: float | None = None
    halvings: int = 0

    @property
    def rank(self) -> int:
        """Numbers in a vector."""
        return self.item_factors.shape[1]
