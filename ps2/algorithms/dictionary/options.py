"""What the training of a dictionary is asked, and what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.record import TrainingHistory, Words
from ps2.errors import ConfigError, LimitError
from ps2.ops.kernels import Float64s

# Servers send products of all pairs of atoms, four numbers of 8 bytes for each pair, in one reply.
MAX_ATOMS = 1 << 10
# Numbers of the dictionary: it comes to the driver in the end.
MAX_NUMBERS = 1 << 26
# Bytes on the servers: of a number of the dictionary with its sum, and of a pair of atoms with its sum.
NUMBER_BYTES = PAIR_BYTES = 16
WORDS = Words("iteration", "objective")


@dataclass(frozen=True)
class DictionaryOptions:
    """How to learn a dictionary.

    Attributes:
        atoms: k: rows of the dictionary.
        penalty: of the absolute values of codes: scikit-learn's alpha.
        positive: codes are not negative.
        iterations: updates of the dictionary at most.
        tolerance: the training ends when an iteration lessens the objective by no more than this share of it.
        seed: of the first atoms, and of those that replace unused ones.
        name: of the training, under which another driver continues it; "": none does.
        dim: number of features; 0: not known yet.
    """

    atoms: int
    penalty: float = 1.0
    positive: bool = False
    iterations: int = 100
    tolerance: float = 1e-4
    seed: int = 0
    name: str = ""
    dim: int = 0

    @property
    def numbers(self) -> int:
        """How many numbers the dictionary has."""
        return self.atoms * self.dim

    @property
    def form(self) -> Form:
        """The form that rows must have."""
        return Form(self.dim)

    @property
    def fleet_bytes(self) -> int:
        """The bytes on all servers together."""
        return NUMBER_BYTES * self.numbers + PAIR_BYTES * self.atoms**2

    def check(self, rows: int) -> None:
        """Raise ConfigError or LimitError if so many rows can have no such dictionary."""
        if self.atoms > rows:
            raise ConfigError(f"k: expected at most the number of rows, {rows:,}, got {self.atoms:,}")
        if self.atoms > MAX_ATOMS:
            raise LimitError(f"k: expected at most {MAX_ATOMS:,} atoms, got {self.atoms:,}")
        if self.numbers > MAX_NUMBERS:
            raise LimitError(
                f"k={self.atoms:,} and {self.dim:,} features make {self.numbers:,} numbers, and at most "
                f"{MAX_NUMBERS:,} come to the driver; take fewer atoms"
            )


@dataclass(frozen=True, eq=False)
class FittedDictionary:
    """The result of a training.

    Attributes:
        dictionary: float64, shape (atoms, dim); no atom is longer than 1.
        history: how it went.
    """

    dictionary: Float64s
    history: TrainingHistory


def check_fleet(options: DictionaryOptions, servers: Sequence[tuple[int, int]]) -> None:
    """Raise LimitError if the dictionary and its sums cannot fit servers.

    Args:
        servers: of each one, the limit of its memory, and the bytes in use.
    """
    left = sum(max(0, limit - taken) for limit, taken in servers)
    if options.fleet_bytes > left:
        raise LimitError(
            f"k={options.atoms:,} and {options.dim:,} features make {options.numbers:,} numbers, which take "
            f"{options.fleet_bytes:,} bytes with their sums, and {left:,} are left on the {len(servers)} servers; "
            "start more servers, or with a larger memory limit"
        )


def check_worker(options: DictionaryOptions, features: int, left_bytes: int) -> None:
    """Raise LimitError if a worker has too little memory for the atoms, and sums, at the features of its rows."""
    needed = NUMBER_BYTES * options.atoms * features
    if needed > left_bytes:
        raise LimitError(
            f"k={options.atoms:,}: the rows of one worker use {features:,} features, at which atoms and sums take "
            f"{needed:,} bytes, and {left_bytes:,} are left on its machine; use machines with more memory"
        )
