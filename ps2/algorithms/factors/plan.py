"""The plan of a factorization, and its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ps2.algorithms.factors.settings import FactorizationSettings
from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.training.record import TrainingHistory, Words
from ps2.array_types import Float32s
from ps2.data.ids import Ids
from ps2.errors import ConfigError

WORDS, IMPLICIT_WORDS = Words("iteration", "RMSE"), Words("iteration", "loss")


@dataclass(frozen=True, kw_only=True)
class FactorizationPlan(Plan[FactorizationSettings]):
    """The settings of a factorization, checked and with defaults resolved."""

    def __post_init__(self) -> None:
        """Raise ConfigError if settings contradict each other."""
        settings = self.settings
        for name in ("stepSize", "budgetS"):
            if self.solver == "ccd" and getattr(settings, name) is not None:
                raise ConfigError(f"{name}: solver {self.solver!r} does not use it")
        if settings.implicitPrefs and self.solver == "sgd":
            raise ConfigError(
                "solver: expected 'ccd' for implicit feedback, got 'sgd', which supports explicit feedback only"
            )
        if settings.implicitPrefs and settings.biases:
            raise ConfigError("biases: expected False with implicit feedback, as in pyspark.ml's ALS, got True")

    @property
    def solver(self) -> Literal["sgd", "ccd"]:
        """The solver; "auto" is resolved."""
        settings = self.settings
        if settings.solver == "auto":
            is_for_sgd = settings.biases or settings.stepSize is not None or settings.budgetS is not None
            return "sgd" if is_for_sgd and not settings.implicitPrefs and not settings.nonnegative else "ccd"
        return "sgd" if settings.solver == "sgd" else "ccd"

    @property
    def save_interval(self) -> int:
        """The number of iterations between saves of the vectors; 0: they are saved at the end only."""
        return max(self.settings.checkpointInterval, 0)

    @property
    def words(self) -> Words:
        """The terms for an iteration and its objective in output."""
        return IMPLICIT_WORDS if self.settings.implicitPrefs else WORDS


@dataclass(frozen=True, eq=False)
class FittedFactors:
    """The result of a training.

    The prediction for a user and an item is ``mean + user_bias + item_bias`` plus the inner product of their vectors.

    Attributes:
        users, items: the ids, in the order of the rows of the arrays.
        user_factors, item_factors: shape (users, rank) and (items, rank).
        user_bias, item_bias: shape (users,) and (items,); None: the model has no biases.
        mean: the mean rating; 0 without biases.
        history: the objective and the validation of each iteration; see ``program.Iteration``.
        step_size, halvings: the last step size of "sgd" (None: "ccd"), and the number of restarts with half the step.
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
        """The number of factors in a vector."""
        return self.item_factors.shape[1]
