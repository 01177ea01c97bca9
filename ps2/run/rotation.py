"""Model rotation: the schedule of a model's blocks among workers, and the time budget of a turn. Pure.

Zhang et al., "Parallelizing Big Data Machine Learning Algorithms with Model Rotation", section IV. All workers compute
the same schedule, so they agree without communication. Time control (section IV.D, ``budgetS="auto"``): all workers end
a turn at the same time. The budget is long enough to hide the transfer of blocks, and to leave little work undone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ps2.array_types import Float64s
from ps2.errors import UsageError
from ps2.number_checks import is_whole

# The entry of a schedule for a turn without a block.
IDLE = -1
# The maximum number of blocks: the schedule of a rotation has arrays with an entry for each block.
MAX_BLOCKS = 1 << 24


@dataclass(frozen=True)
class RotationSchedule:
    """The schedule by which blocks rotate among workers.

    Block b belongs to slice b mod ``slices``, and turns take the slices in order. So two turns with the same block are
    at least ``slices`` turns apart, also across rotations.
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
            raise UsageError(
                f"rotate: blocks: expected at least one for each of {self.slices} slices, got {self.blocks}"
            )
        if self.blocks > MAX_BLOCKS:
            raise UsageError(f"rotate: blocks: expected at most {MAX_BLOCKS}, got {self.blocks}")

    @property
    def rounds(self) -> int:
        """The number of turns of one slice in a rotation: that of its blocks, but at least one for each worker."""
        return max(-(-self.blocks // self.slices), self.workers)

    @property
    def turns(self) -> int:
        """The number of turns of a rotation; each is a clock."""
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

    def worker_blocks(self, seed: int, rotation: int, rank: int) -> NDArray[np.int64]:
        """Return a worker's block in each turn of a rotation; ``IDLE``: it has none."""
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
        Shape (turns, workers); -1: the worker has no block. A row contains no block twice, a column each block once.

    Raises:
        UsageError: an argument is out of range.
    """
    rotation_schedule = RotationSchedule(workers, blocks, slices)
    return np.stack([rotation_schedule.worker_blocks(seed, rotation, rank) for rank in range(workers)], axis=1)


# The number of newest turns of each worker from which the budget is computed.
WINDOW = 16
# The fraction of the best rate of work that may be lost by a longer budget, which leaves less work undone.
TOLERANCE = 0.05
# The minimum fraction of a block's work that a turn does: the mean over all workers, and for each worker.
MIN_DONE, MIN_WORKER_DONE = 0.25, 0.05
# The assumed time to enter a clock, in addition to the budget.
ENTER_S = 1e-3
# The maximum number of candidate budgets that are compared.
MAX_CANDIDATES = 64


class TurnBudget:
    """Records measured turns, and computes the budget of the next turn from them."""

    def __init__(self, workers: int) -> None:
        # By rank and turn: the seconds for all work on the block, and the seconds of the turn without work.
        self._block_s = np.zeros((workers, WINDOW))
        self._other_s = np.zeros((workers, WINDOW))
        self._transfer_s = np.zeros(workers)
        self._count = np.zeros(workers, np.int64)
        self._has_ended_turn = np.zeros(workers, bool)
        self._seconds: float | None = math.inf  # None: to be computed

    def add(self, rank: int, work_s: float, left: float, other_s: float, transfer_s: float) -> None:
        """Add a turn that has ended; ``left`` is the fraction of the block's work that was not done.

        ``other_s`` excludes waiting for other workers; ``transfer_s`` is the time of background reads and writes.
        """
        self._has_ended_turn[rank] = True
        if work_s > 0 and left < 1:
            slot = self._count[rank] % WINDOW
            self._block_s[rank, slot], self._other_s[rank, slot] = work_s / (1 - left), other_s
            self._count[rank] += 1
        self._transfer_s[rank] = transfer_s
        self._seconds = None

    @property
    def seconds(self) -> float:
        """The budget of the next turn; infinite until all workers have ended a turn."""
        if self._seconds is None:
            is_measured = np.arange(WINDOW) < self._count[:, None]
            self._seconds = math.inf
            if self._has_ended_turn.all() and is_measured.any():
                ranks = np.nonzero(is_measured)[0]
                transfer_s = float(np.median(self._transfer_s))
                self._seconds = best_budget(self._block_s[is_measured], self._other_s[is_measured], ranks, transfer_s)
        return self._seconds


def best_budget(block_s: Float64s, other_s: Float64s, ranks: NDArray[np.int64], transfer_s: float) -> float:
    """Return the longest budget whose rate of work is close to the best rate.

    With a budget B, a turn takes max(B, transfer_s). In it, a worker works for B - other_s, or until its block is done.
    So the measured turns give the rate of each B, in blocks per second. Return the longest B whose rate is at
    least 1 - ``TOLERANCE`` of the best rate. If that B leaves too much work undone (``MIN_DONE``,
    ``MIN_WORKER_DONE``), return the shortest B that does not.

    Args:
        block_s: the seconds for all work on the block, for each measured turn.
        other_s: the seconds without work on the block, for each measured turn.
        ranks: the worker of each measured turn.
        transfer_s: the seconds of a turn's background reads and writes.
    """
    ends = np.unique(block_s + other_s)
    if len(ends) > MAX_CANDIDATES:
        ends = np.quantile(ends, np.linspace(0, 1, MAX_CANDIDATES))
    budgets = np.maximum(np.concatenate([ends, [transfer_s]]), transfer_s)
    budgets.sort()
    work_s = np.clip(budgets[:, None] - other_s, 0.0, block_s)
    fractions = work_s / np.maximum(block_s, np.finfo(float).tiny)
    rates = fractions.mean(axis=1) / (budgets + ENTER_S)
    turns = np.bincount(ranks)
    sums = np.stack([np.bincount(ranks, turn_fractions) for turn_fractions in fractions])
    by_worker = sums[:, turns > 0] / turns[turns > 0]
    is_enough = (fractions.mean(axis=1) >= MIN_DONE) & (by_worker.min(axis=1) >= MIN_WORKER_DONE)
    best = int(np.flatnonzero(rates >= (1 - TOLERANCE) * rates.max())[-1])
    # The fraction of work done never decreases with B, and with the largest B all work is done.
    return float(budgets[max(best, int(np.flatnonzero(is_enough)[0]))])
