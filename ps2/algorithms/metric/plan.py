"""The plan of a metric's training."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.algorithms.frame.placement import Work
from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.metric.settings import MetricSettings
from ps2.algorithms.training.faults import Form
from ps2.errors import ConfigError, LimitError

# The maximum number of values in L: the driver holds the trained L.
MAX_VALUES = 1 << 26
# With at least this many values in L, servers and workers store float32 instead of float64.
MIN_FLOAT32_VALUES = 1 << 22
# The cost of one value of a pair's difference and one row of L in a step, in seconds.
VALUE_S = 2e-9
# For each of ``pairsPerRow``, two pairs are drawn for a row, and each pair's difference has the values of two rows. So
# the differences have this many times the values of the rows.
VALUES_BY_PARTNER = 4
# The number of clocks without a step: the survey of the pairs, and the evaluation of the last L.
OTHER_CLOCKS = 2


@dataclass(frozen=True, kw_only=True)
class MetricPlan(Plan[MetricSettings]):
    """The plan of a metric's training: the settings, and facts about the rows.

    Attributes:
        dim: the number of features of a row with a label, or of each vector of a pair.
        classes: the number of classes of the labels; 2 if each row is a pair.
    """

    dim: int
    classes: int

    def __post_init__(self) -> None:
        rank, dim = self.settings.rank, self.dim
        if rank > dim:
            raise ConfigError(f"rank: expected at most the number of features, {dim:,}, got {rank:,}")
        if self.num_values > MAX_VALUES:
            raise LimitError(
                f"rank: {rank:,} rows for {dim:,} features are {self.num_values:,} values; the driver holds at most "
                f"{MAX_VALUES:,}; take a smaller rank"
            )

    @property
    def draws_pairs(self) -> bool:
        """Whether pairs are drawn from labelled rows; otherwise each row is a pair."""
        return self.settings.otherCol is None

    @property
    def num_values(self) -> int:
        """The number of values in L."""
        return self.settings.rank * self.dim

    def work(self, rows: int, entries: float) -> Work:
        """Return the training's work for the cost model; ``entries`` is the number of stored values plus rows."""
        settings = self.settings
        values_per_row = VALUES_BY_PARTNER * settings.pairsPerRow if self.draws_pairs else 1
        value_s = VALUE_S * settings.rank * values_per_row * settings.miniBatchFraction
        return Work.of_clocks(entries, self.num_values, settings.maxIter + OTHER_CLOCKS, value_s)

    @property
    def is_small(self) -> bool:
        """Whether servers and workers store float64; otherwise float32."""
        return self.num_values < MIN_FLOAT32_VALUES

    @property
    def form(self) -> Form:
        """The number of features and classes, and the dtype, that rows must have."""
        num_features = self.dim if self.draws_pairs else 2 * self.dim
        return Form(num_features, self.classes, "float64" if self.is_small else "float32")
