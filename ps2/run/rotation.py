"""Model rotation: which worker has which block of a model when. Pure.

Zhang et al., "Parallelizing Big Data Machine Learning Algorithms with Model Rotation", section IV. All workers evaluate
the same function, so they agree without communication.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ps2.errors import UsageError
from ps2.number_checks import is_whole

# No block, in a schedule.
IDLE = -1
# Limit of the blocks: a rotation's schedule has arrays of this size.
MAX_BLOCKS = 1 << 24


@dataclass(frozen=True)
class RotationSchedule:
    """How blocks rotate among workers.

    Block b belongs to slice b mod ``slices``, and turns take the slices in order. So two turns with the same block are
    at least ``slices`` apart, across rotations, too.

    Attributes:
        workers: number of workers.
        blocks: number of blocks.
        slices: number of groups that the blocks are divided into.
    """

    workers: int
    blocks: int
    slices: int = 2

    def __post_init__(self) -> None:
        for name in ("workers", "blocks", "slices"):
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise UsageError(f"rotate: {name}: expected a positive integer, got {value!r}")
        if self.blocks < self.slices:
            raise UsageError(f"rotate: {self.blocks} blocks make no {self.slices} slices: at least one block in each")
        if self.blocks > MAX_BLOCKS:
            raise UsageError(f"rotate: blocks: at most {MAX_BLOCKS}, got {self.blocks}")

    @property
    def rounds(self) -> int:
        """Turns that a rotation spends on one slice: the slice's blocks, but at least the number of workers."""
        return max(-(-self.blocks // self.slices), self.workers)

    @property
    def turns(self) -> int:
        """Turns, and clocks, of a rotation."""
        return self.slices * self.rounds

    def orders(self, seed: int, rotation: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Draw, for each slice of a rotation, the order of its blocks and the workers' offsets."""
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(rotation,))))
        orders = []
        for slice_ in range(self.slices):
            slots = np.full(self.rounds, IDLE, np.int64)
            members = np.arange(slice_, self.blocks, self.slices)
            slots[: len(members)] = members
            orders.append((rng.permutation(slots), rng.permutation(self.rounds)[: self.workers]))
        return orders

    def turns_of(self, seed: int, rotation: int, rank: int) -> NDArray[np.int64]:
        """Return the blocks of one worker in a rotation, turn by turn; ``IDLE`` where it has none."""
        blocks = np.empty((self.rounds, self.slices), np.int64)
        for slice_, (slots, offsets) in enumerate(self.orders(seed, rotation)):
            blocks[:, slice_] = np.roll(slots, -offsets[rank])
        return blocks.reshape(-1)


def schedule(seed: int, rotation: int, workers: int, blocks: int, slices: int = 2) -> NDArray[np.int64]:
    """Return which block each worker has in each turn of a rotation.

    Args:
        seed: the run's seed.
        rotation: the number of the rotation, from 0.

    Returns:
        Shape (turns, workers); -1 where a worker has no block. A row holds no block twice, a column each block once.

    Raises:
        UsageError: there are no such blocks or slices.
    """
    rotation_schedule = RotationSchedule(workers, blocks, slices)
    return np.stack([rotation_schedule.turns_of(seed, rotation, rank) for rank in range(workers)], axis=1)
