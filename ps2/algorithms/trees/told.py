"""What the driver tells the workers for each clock, kept on the servers: who is started again reads all of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ps2.algorithms.training.names import Names
from ps2.client.dcv import DCV

Int64s = npt.NDArray[np.int64]

# Numbers that are read at once; of a message that has more, the others are read after these.
AT_ONCE = 256
# Keys of a clock's message: those of another clock are far away.
CLOCK_BITS = 32


class Task(IntEnum):
    """What workers do in a clock, when their rows have moved."""

    BEGIN = 0  # a tree: gradients, and how large they are
    ROOT = 1  # its first histogram
    LEVEL = 2  # those of the next level
    STOP = 3


# What is told of a node; then, of a set of categories, its words.
NODE, FEATURE, BIN, DEFAULT_LEFT, LEFT, RIGHT, VALUE, VALUE_LEFT, VALUE_RIGHT, BUILT, ROW = range(11)
FIELDS = 11
# In the place of a number that is not there.
NONE = -1


def as_bits(value: float) -> int:
    """Return a float64 as an integer of the same bits."""
    return int(np.float64(value).view(np.int64))


def from_bits(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))


@dataclass(frozen=True, eq=False)
class Told:
    """A message.

    Attributes:
        task: what comes after the nodes.
        tree: which one it is about, from 0.
        scales: of hessians and gradients (ROOT).
        matrices: numbers of those on the servers: histograms; cut points; sizes of features.
        nodes: int64, shape (n, FIELDS + words): what becomes of the nodes that were open. A leaf has no FEATURE, and
            its VALUE is added to its rows' margins. Of a split, a child that stays open has no value, else it is a
            leaf too; of the child BUILT, if any, the workers add a histogram to ROW.
    """

    task: Task
    tree: int
    scales: tuple[float, float] = (1.0, 1.0)
    matrices: tuple[int, int, int] = (0, 0, 0)
    nodes: Int64s = field(default_factory=lambda: np.empty((0, FIELDS), np.int64))

    def as_array(self) -> Int64s:
        """Return it as int64."""
        scales = [as_bits(scale) for scale in self.scales]
        head = [self.task, self.tree, *scales, *self.matrices, self.nodes.shape[1]]
        return np.concatenate([[len(head) + self.nodes.size], head, self.nodes.reshape(-1)]).astype(np.int64)

    @staticmethod
    def of_array(numbers: Int64s) -> Told:
        """Undo ``as_array``."""
        task, tree, h, g, *matrices, width = map(int, numbers[1:9])
        first, second, third = matrices
        scales = from_bits(h), from_bits(g)
        return Told(Task(task), tree, scales, (first, second, third), numbers[9:].reshape(-1, width))


@dataclass(frozen=True, eq=False)
class Log:
    """All messages; picklable.

    Attributes:
        vector: sparse, int64.
    """

    vector: DCV

    @staticmethod
    def make(names: Names) -> Log:
        return Log(names.give(lambda name: DCV.sparse(2**63, 1, "int64", name=name)))

    def write(self, clock: int, told: Told) -> None:
        """Tell the workers something for a clock."""
        numbers = told.as_array()
        self.vector.push(numbers, _keys(clock, 0, len(numbers)))

    def read(self, clock: int) -> Told:
        """Return what was told for a clock."""
        numbers = self.vector.pull(_keys(clock, 0, AT_ONCE))
        size = 1 + int(numbers[0])
        if size > AT_ONCE:
            numbers = np.concatenate([numbers, self.vector.pull(_keys(clock, AT_ONCE, size))])
        return Told.of_array(numbers[:size])


def _keys(clock: int, begin: int, end: int) -> Int64s:
    return (clock << CLOCK_BITS) + np.arange(begin, end)
