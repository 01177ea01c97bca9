"""A training of a dictionary, and its result."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.algorithms.dictionary.settings import DictionarySettings
from ps2.algorithms.frame.placement import Work
from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.record import TrainingHistory, Words
from ps2.errors import ConfigError, LimitError
from ps2.ops.kernels import Float64s

# Servers send products of all pairs of atoms, four numbers of 8 bytes for each pair, in one reply.
MAX_ATOMS = 1 << 10
# The maximum number of values in the dictionary, which the driver holds at the end.
MAX_NUMBERS = 1 << 26
# Bytes on the servers for a value of the dictionary with its sum, and for a pair of atoms with its sum.
NUMBER_BYTES = PAIR_BYTES = 16
# The seconds of computation per iteration, stored value and atom (decision 65).
VALUE_S = 5e-9
# The number of clocks of an iteration.
CLOCKS = 2
WORDS = Words("iteration", "objective")


@dataclass(frozen=True, kw_only=True)
class DictionaryPlan(Plan[DictionarySettings]):
    """A training of a dictionary."""

    dim: int

    @property
    def numbers(self) -> int:
        """The number of values in the dictionary."""
        return self.settings.k * self.dim

    @property
    def form(self) -> Form:
        """The form that rows must have."""
        return Form(self.dim)

    @property
    def fleet_bytes(self) -> int:
        """The bytes on all servers together."""
        return NUMBER_BYTES * self.numbers + PAIR_BYTES * self.settings.k**2

    def work(self, rows: int, cost: float) -> Work:
        """Return the work of the training; ``cost`` is the number of stored feature values plus the number of rows."""
        clocks = CLOCKS * (self.settings.maxIter + 1)
        return Work.of_clocks(cost, self.numbers, clocks, VALUE_S / CLOCKS * self.settings.k)

    def check(self, rows: int) -> None:
        """Raise ConfigError if there are fewer rows than atoms, LimitError if the dictionary is too large."""
        if self.settings.k > rows:
            raise ConfigError(f"k: expected at most the number of rows, {rows:,}, got {self.settings.k:,}")
        if self.settings.k > MAX_ATOMS:
            raise LimitError(f"k: expected at most {MAX_ATOMS:,} atoms, got {self.settings.k:,}")
        if self.numbers > MAX_NUMBERS:
            raise LimitError(
                f"k={self.settings.k:,} and {self.dim:,} features make {self.numbers:,} numbers, and the driver "
                f"holds at most {MAX_NUMBERS:,}; take fewer atoms"
            )


@dataclass(frozen=True, eq=False)
class FittedDictionary:
    """The result of a training: the dictionary, float64, shape (atoms, dim), with no atom longer than 1, and its
    history."""

    dictionary: Float64s
    history: TrainingHistory
