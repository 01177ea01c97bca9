"""A training of a metric."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.algorithms.frame.placement import Work
from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.metric.settings import MetricSettings
from ps2.algorithms.training.faults import Form
from ps2.errors import ConfigError, LimitError

# The maximum number of values in L, which the driver holds at the end.
MAX_NUMBERS = 1 << 26
# With at least this many values in L, servers and workers hold float32.
MIN_FLOAT32_NUMBERS = 1 << 22
# Seconds that a step spends on a value of a pair's difference, for each row of L.
VALUE_S = 2e-9
# The approximate number of values that drawn pairs have, for each partner of a row of either kind: the row's values and
# the partner's.
VALUES_BY_PARTNER = 4
# The number of clocks besides steps.
OTHER_CLOCKS = 2


@dataclass(frozen=True, kw_only=True)
class MetricPlan(Plan[MetricSettings]):
    """A training of a metric; ``dim``: the features of a row with a label, or of each vector of a pair."""

    dim: int
    classes: int

    @property
    def draws_pairs(self) -> bool:
        """Whether rows have classes, and pairs of them are drawn; else rows are pairs."""
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

    def check(self) -> None:
        """Raise ConfigError or LimitError if there is no L for this number of features."""
        rank, dim = self.settings.rank, self.dim
        if rank > dim:
            raise ConfigError(f"rank: expected at most the number of features, {dim:,}, got {rank:,}")
        if self.numbers > MAX_NUMBERS:
            raise LimitError(
                f"rank: {rank:,} rows for {dim:,} features are {self.numbers:,} numbers, and at most "
                f"{MAX_NUMBERS:,} come to the driver; take a smaller rank"
            )

    @property
    def is_small(self) -> bool:
        """Whether L has float64 numbers on the servers."""
        return self.numbers < MIN_FLOAT32_NUMBERS

    @property
    def form(self) -> Form:
        """The form that rows must have."""
        size = self.dim if self.draws_pairs else 2 * self.dim
        return Form(size, self.classes, "float64" if self.is_small else "float32")
