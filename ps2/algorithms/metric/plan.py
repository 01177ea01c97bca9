"""A training of a metric."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.algorithms.frame.placement import Work
from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.metric.settings import MetricSettings
from ps2.algorithms.training.faults import Form
from ps2.errors import ConfigError, LimitError

# The maximum number of values in L: the driver holds the trained L.
MAX_NUMBERS = 1 << 26
# With at least this many values in L, servers and workers store float32 instead of float64.
MIN_FLOAT32_NUMBERS = 1 << 22
# The seconds that a step takes for one value of a pair's difference and one row of L.
VALUE_S = 2e-9
# The factor from the values of a row to those of the pairs drawn for it, for each of ``pairsPerRow``: a similar and a
# dissimilar pair, each with the values of two rows.
VALUES_BY_PARTNER = 4
# The number of clocks that take no step: the survey of the pairs, and the evaluation of the last L.
OTHER_CLOCKS = 2


@dataclass(frozen=True, kw_only=True)
class MetricPlan(Plan[MetricSettings]):
    """A training of a metric.

    Attributes:
        dim: the number of features of a row with a label, or of each vector of a pair.
        classes: the number of classes; for rows that are pairs, 2.
    """

    dim: int
    classes: int

    def __post_init__(self) -> None:
        rank, dim = self.settings.rank, self.dim
        if rank > dim:
            raise ConfigError(f"rank: expected at most the number of features, {dim:,}, got {rank:,}")
        if self.numbers > MAX_NUMBERS:
            raise LimitError(
                f"rank: {rank:,} rows for {dim:,} features are {self.numbers:,} numbers, and the driver holds at most "
                f"{MAX_NUMBERS:,}; take a smaller rank"
            )

    @property
    def draws_pairs(self) -> bool:
        """Whether pairs are drawn from rows with classes; else each row is a pair."""
        return self.settings.otherCol is None

    @property
    def numbers(self) -> int:
        """The number of values in L."""
        return self.settings.rank * self.dim

    def work(self, rows: int, cost: float) -> Work:
        """Return the work of the training; ``cost``: the number of stored feature values plus the number of rows."""
        settings = self.settings
        values_per_row = VALUES_BY_PARTNER * settings.pairsPerRow if self.draws_pairs else 1
        value_s = VALUE_S * settings.rank * values_per_row * settings.miniBatchFraction
        return Work.of_clocks(cost, self.numbers, settings.maxIter + OTHER_CLOCKS, value_s)

    @property
    def is_small(self) -> bool:
        """Whether servers and workers store float64; else float32."""
        return self.numbers < MIN_FLOAT32_NUMBERS

    @property
    def form(self) -> Form:
        """The form that rows must have."""
        size = self.dim if self.draws_pairs else 2 * self.dim
        return Form(size, self.classes, "float64" if self.is_small else "float32")
