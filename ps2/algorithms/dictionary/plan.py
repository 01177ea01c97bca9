"""The plan of a dictionary's training."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.algorithms.dictionary.settings import DictionarySettings
from ps2.algorithms.frame.placement import Work
from ps2.algorithms.frame.settings import Plan
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.record import Words
from ps2.errors import ConfigError, LimitError

# The maximum number of atoms: a server's reply has four float64 values for each pair of atoms, so at most 32 MiB.
MAX_ATOMS = 1 << 10
# The maximum number of values in the dictionary, which the driver pulls: 512 MiB.
MAX_VALUES = 1 << 26
# The bytes on the servers for each value of the dictionary (value and sum) and each pair of atoms (product and sum).
VALUE_BYTES = PAIR_BYTES = 16
# The cost of a stored value and an atom in an iteration, in seconds (docs/decisions/0065).
VALUE_S = 5e-9
# The number of clocks of an iteration.
CLOCKS = 2
WORDS = Words("iteration", "objective")


@dataclass(frozen=True, kw_only=True)
class DictionaryPlan(Plan[DictionarySettings]):
    """The plan of a dictionary's training: the settings, and ``dim``, the number of features."""

    dim: int

    @property
    def values(self) -> int:
        """The number of values in the dictionary."""
        return self.settings.k * self.dim

    @property
    def form(self) -> Form:
        """The number of features that rows must have."""
        return Form(self.dim)

    @property
    def fleet_bytes(self) -> int:
        """The bytes on all servers together."""
        return VALUE_BYTES * self.values + PAIR_BYTES * self.settings.k**2

    def work(self, rows: int, entries: float) -> Work:
        """Return the training's work for the cost model; ``entries`` is the number of stored values plus rows."""
        clocks = CLOCKS * (self.settings.maxIter + 1)
        return Work.of_clocks(entries, self.values, clocks, VALUE_S / CLOCKS * self.settings.k)

    def check(self, rows: int) -> None:
        """Raise ConfigError if there are more atoms than rows, LimitError if there are too many atoms or values."""
        if self.settings.k > rows:
            raise ConfigError(f"k: expected at most the number of rows, {rows:,}, got {self.settings.k:,}")
        if self.settings.k > MAX_ATOMS:
            raise LimitError(f"k: expected at most {MAX_ATOMS:,} atoms, got {self.settings.k:,}")
        if self.values > MAX_VALUES:
            raise LimitError(
                f"k={self.settings.k:,} and {self.dim:,} features make {self.values:,} values, and the "
                f"driver can hold at most {MAX_VALUES:,}; use fewer atoms"
            )
