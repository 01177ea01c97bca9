"""What the driver tells the workers for each clock, kept on the servers: who is started again reads all of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.client.dcv import DCV

Int64s = npt.NDArray[np.int64]

# Numbers that are read at once; of a message that has more, the others are read after these.
AT_ONCE = 512
# Keys of a clock's message: those of another clock are far away.
CLOCK_BITS = 32


class Task(IntEnum):
    """What workers do in a clock, when their rows have moved."""

    BEGIN = 0  # the training, or its end: losses, gradients, and how large they are
    ROOT = 1  # the first histogram of a tree; of a round's first tree, what BEGIN does as well
    NODES = 2  # those of more nodes
    STOP = 3
    COARSE = 4  # residuals of the leaves of a tree that has grown
    FINE = 5  # those in the cells that their quantiles are in


def has_gradients(task: Task, tree: int, width: int) -> bool:
    """Tell whether losses and gradients are computed in a clock: once before each round of ``width`` trees."""
    return task == Task.BEGIN or (task == Task.ROOT and tree > 0 and tree % width == 0)


# What is told of a split; then, of a set of categories, its words.
NODE, FEATURE, BIN, DEFAULT_LEFT, LEFT, BUILT, ROW = range(7)
FIELDS = 7
# In the place of a number that is not there.
NONE = -1
# What is told of a node in a tree that is over, in the order of its nodes.
CALLED, VALUE = range(2)
NO_ENDS = np.empty((0, 2), np.int64)


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
        splits: int64, shape (n, FIELDS + words): nodes whose rows are to be parted. LEFT is the left child's number,
            that of the right one is the next; of the child BUILT (0: the left one), if any, the workers add a histogram
            to ROW. The tree may come to have these splits, or not.
        ends: int64, shape (n, 2): of a tree that is over its nodes, in order: the number that each was CALLED by and,
            of a leaf, the VALUE that is added to its rows' margins. None until then. (COARSE: it
            has none yet; FINE: it is a coarse cell.)
    """

    task: Task
    tree: int
    scales: tuple[float, float] = (1.0, 1.0)
    matrices: tuple[int, int, int] = (0, 0, 0)
    splits: Int64s = field(default_factory=lambda: np.empty((0, FIELDS), np.int64))
    ends: Int64s = field(default_factory=lambda: NO_ENDS)

    def as_array(self) -> Int64s:
        """Return it as int64."""
        scales = [as_bits(scale) for scale in self.scales]
        head = [self.task, self.tree, *scales, *self.matrices, *self.splits.shape]
        size = len(head) + self.splits.size + self.ends.size
        return np.concatenate([[size], head, self.splits.reshape(-1), self.ends.reshape(-1)]).astype(np.int64)

    @staticmethod
    def of_array(numbers: Int64s) -> Told:
        """Undo ``as_array``."""
        task, tree, h, g, *matrices, count, width = map(int, numbers[1:10])
        first, second, third = matrices
        scales, splits = (from_bits(h), from_bits(g)), numbers[10 : 10 + count * width]
        ends = numbers[10 + count * width :].reshape(-1, 2)
        return Told(Task(task), tree, scales, (first, second, third), splits.reshape(count, width), ends)


@dataclass(frozen=True, eq=False)
class Log:
    """All messages; picklable.

    Attributes:
        vector: sparse, int64.
        latest: int64, on one server: the last message once more, if it is short, behind the number of its clock. Nearly
            all that is read is that, and it takes half the time.
    """

    vector: DCV
    latest: DCV

    @staticmethod
    def make(names: CheckpointNames) -> Log:
        vector = names.give(lambda name: DCV.sparse(2**63, 1, "int64", name=name))
        return Log(vector, names.give(lambda name: DCV.dense(AT_ONCE, 1, "int64", align=AT_ONCE, name=name)))

    def write(self, clock: int, told: Told) -> None:
        """Tell the workers something for a clock: two calls, for a batch."""
        numbers = told.as_array()
        self.vector.push(numbers, _keys(clock, 0, len(numbers)))
        if len(numbers) < AT_ONCE:
            self.latest.push(np.concatenate([[clock], numbers, np.zeros(AT_ONCE - 1 - len(numbers), np.int64)]))

    def read(self, clock: int) -> Told:
        """Return what was told for a clock."""
        numbers = self.latest.pull()
        if numbers[0] == clock:
            return Told.of_array(numbers[1 : 2 + int(numbers[1])])
        numbers = self.vector.pull(_keys(clock, 0, AT_ONCE))
        size = 1 + int(numbers[0])
        if size > AT_ONCE:
            numbers = np.concatenate([numbers, self.vector.pull(_keys(clock, AT_ONCE, size))])
        return Told.of_array(numbers[:size])

    def free(self) -> None:
        self.vector.free()
        self.latest.free()


def _keys(clock: int, begin: int, end: int) -> Int64s:
    return (clock << CLOCK_BITS) + np.arange(begin, end)
