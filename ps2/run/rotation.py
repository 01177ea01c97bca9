"""Which worker has which block of a model when: model rotation. Pure.

Zhang et al., "Parallelizing Big Data Machine Learning Algorithms with Model Rotation", section IV. All workers evaluate
the same function, and agree without asking anybody.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ps2.errors import UsageError

# In a schedule: no block.
IDLE = -1
# A rotation of so many turns is drawn as arrays of that size.
MAX_BLOCKS = 1 << 24


@dataclass(frozen=True)
class Ring:
    """How blocks go round among workers.

    Block b is of slice b mod ``slices``; turns take the slices in order. So two turns with the same block are at least
    ``slices`` apart, also from one rotation to the next.

    Attributes:
        workers: how many there are.
        blocks: numbered from 0.
        slices: into how many groups the blocks are divided.
    """

    workers: int
    blocks: int
    slices: int = 2

    def __post_init__(self) -> None:
        for name in ("workers", "blocks", "slices"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise UsageError(f"rotate: {name}: expected a positive integer, got {value!r}")
        if self.blocks < self.slices:
            raise UsageError(f"rotate: {self.blocks} blocks make no {self.slices} slices: at least one block in each")
        if self.blocks > MAX_BLOCKS:
            raise UsageError(f"rotate: blocks: at most {MAX_BLOCKS}, got {self.blocks}")

    @property
    def rounds(self) -> int:
        """Turns with blocks of one slice in a rotation: its blocks, and no fewer than the workers."""
        return max(-(-self.blocks // self.slices), self.workers)

    @property
    def turns(self) -> int:
        """Turns, and clocks, of a rotation."""
        return self.slices * self.rounds

    def orders(self, seed: int, rotation: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Draw, for each slice of a rotation, which block is in each slot, and the workers' places."""
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(rotation,))))
        drawn = []
        for slice_ in range(self.slices):
            slots = np.full(self.rounds, IDLE, np.int64)
            members = np.arange(slice_, self.blocks, self.slices)
            slots[: len(members)] = members
            drawn.append((rng.permutation(slots), rng.permutation(self.rounds)[: self.workers]))
        return drawn

    def turns_of(self, seed: int, rotation: int, rank: int) -> NDArray[np.int64]:
        """Return the blocks of one worker in a rotation, turn by turn; ``IDLE`` where it has none."""
        blocks = np.empty((self.rounds, self.slices), np.int64)
        for slice_, (slots, places) in enumerate(self.orders(seed, rotation)):
            blocks[:, slice_] = np.roll(slots, -places[rank])
        return blocks.reshape(-1)


def schedule(seed: int, rotation: int, workers: int, blocks: int, slices: int = 2) -> NDArray[np.int64]:
    """Return which block each worker has in each turn of a rotation.

    Args:
        seed: of the run.
        rotation: which one, from 0.

    Returns:
        Of shape (turns, workers); -1 where a worker has no block. A row holds no block twice, a column each one once.

    Raises:
        UsageError: there are no such blocks or slices.
    """
    ring = Ring(workers, blocks, slices)
    return np.stack([ring.turns_of(seed, rotation, rank) for rank in range(workers)], axis=1)
