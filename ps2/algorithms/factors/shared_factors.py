"""The vectors of users and items on the servers: the items' current ones, and saved copies of both."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.algorithms.factors.timetable import COPIES
from ps2.algorithms.frame.memory import fitting_servers
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.client.dcv import DCV
from ps2.client.matrix import DCVMatrix


@dataclass(frozen=True)
class FleetSizes:
    """The sizes of the vectors on the servers.

    Attributes:
        users, items: the numbers of users and of items.
        width: the number of float32 numbers for each of them.
        copies: the number of saved copies of both.
    """

    users: int
    items: int
    width: int
    copies: int = COPIES

    @property
    def bytes(self) -> int:
        return 4 * self.width * (self.items + self.copies * (self.users + self.items))


@dataclass(frozen=True, eq=False)
class SharedFactors:
    """Matrices of layout "column": a column for each user or item, by position (``Deal``); picklable.

    Attributes:
        items: the current vectors of items.
        saved_users, saved_items: saved vectors, by copy.
    """

    items: DCVMatrix
    saved_users: tuple[DCVMatrix, ...]
    saved_items: tuple[DCVMatrix, ...]

    @staticmethod
    def make(sizes: FleetSizes, names: CheckpointNames) -> SharedFactors:
        """Make them, or find those of an earlier driver.

        Raises:
            LimitError: they do not fit.
        """

        def matrix(dim: int) -> DCVMatrix:
            return names.give(lambda name: DCV.dense(dim, sizes.width, layout="column", name=name)).matrix()

        matrices: list[DCVMatrix] = []
        what = f"vectors of {sizes.users:,} users and {sizes.items:,} items, {sizes.width} numbers each, take"
        with fitting_servers(f"{what} {sizes.bytes:,} bytes with their saved copies, and they", matrices):
            for dim in (sizes.items, *([sizes.users, sizes.items] * sizes.copies)):
                matrices.append(matrix(dim))
        return SharedFactors(matrices[0], tuple(matrices[1::2]), tuple(matrices[2::2]))

    def keep_items(self, copy: int, begin: int, end: int) -> None:
        """Copy the current vectors of items at some positions to a saved copy; no value travels."""
        self.saved_items[copy].apply("factors.copy_blocks", source=self.items, begin=begin, end=end)

    def take_items(self, copy: int, begin: int, end: int) -> None:
        """Copy saved vectors of items at some positions to the current ones; no value travels."""
        self.items.apply("factors.copy_blocks", source=self.saved_items[copy], begin=begin, end=end)

    def free(self) -> None:
        for matrix in (self.items, *self.saved_users, *self.saved_items):
            matrix.free()


def share(count: int, rank: int, workers: int) -> tuple[int, int]:
    """Return the range of ``count`` positions of which a worker takes care."""
    return count * rank // workers, count * (rank + 1) // workers
