"""The plan of a dictionary's training."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.algorithms.dictionary.settings import DictionarySettings
from ps2.algorithms.frame.placement import Work
from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.record import Words
from ps2.errors import ConfigError, LimitError

# The maximum number of atoms: a server's reply has four numbers of 8 bytes for each pair of atoms.
MAX_ATOMS = 1 << 10
# The maximum number of values in the dictionary, which must fit the driver's memory.
MAX_VALUES = 1 << 26
# Bytes on the servers for a value of the dictionary and its sum, and for a pair of atoms and its sum.
VALUE_BYTES = PAIR_BYTES = 16
# Seconds that an iteration takes for each stored value and atom (decision 65).
VALUE_S = 5e-9
# The number of clocks of an iteration.
CLOCKS = 2
WORDS = Words("iteration", "objective")


@dataclass(frozen=True, kw_only=True)
class DictionaryPlan(Plan[DictionarySettings]):
    """A training of a dictionary."""

    dim: int

    @property
    def values(self) -> int:
        """The number of values in the dictionary."""
        return self.settings.k * self.dim

    @property
    def form(self) -> Form:
        """The form that rows must have."""
        return Form(self.dim)

    @property
    def fleet_bytes(self) -> int:
        """The bytes on all servers together."""
        return VALUE_BYTES * self.values + PAIR_BYTES * self.settings.k**2

    def work(self, rows: int, cost: float) -> Work:
        """Return the work of the training; ``cost`` is the number of stored feature values plus the number of rows."""
        clocks = CLOCKS * (self.settings.maxIter + 1)
        return Work.of_clocks(cost, self.values, clocks, VALUE_S / CLOCKS * self.settings.k)

    def check(self, rows: int) -> None:
        """Raise ConfigError or LimitError if there are more atoms than rows, or too many atoms or numbers."""
        if self.settings.k > rows:
            raise ConfigError(f"k: expected at most the number of rows, {rows:,}, got {self.settings.k:,}")
        if self.settings.k > MAX_ATOMS:
            raise LimitError(f"k: expected at most {MAX_ATOMS:,} atoms, got {self.settings.k:,}")
        if self.values > MAX_VALUES:
            raise LimitError(
                f"k={self.settings.k:,} and {self.dim:,} features make {self.values:,} numbers, and the "
                f"driver can hold at most {MAX_VALUES:,}; use fewer atoms"
            )
