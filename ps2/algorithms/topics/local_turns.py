"""Which words a thread samples when, in one process that has all tokens. Pure.

Threads stand for the workers of a training on servers: each has some documents. In a turn no two threads have the same
words, so counts of words are exact. Totals of topics, which all threads change, are those of an earlier turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ps2.algorithms.topics.blocks import make_ring
from ps2.algorithms.topics.plan import SamplingPlan
from ps2.algorithms.training.table import deal_by_cost
from ps2.ops.kernels import Int64s
from ps2.run.rotation import RotationSchedule


@dataclass(frozen=True, eq=False)
class ThreadTurns:
    """The turns of threads.

    Attributes:
        word_blocks: the block of each word.
        blocks: number of blocks.
        age: turns of which the totals do not know other threads' changes, that before included: from 1 on. 0: those
            of the current iteration.
        ring: schedule of "rotation", else None.
        seed: the seed of the schedule.
        threads: number of threads.
    """

    word_blocks: npt.NDArray[np.int32]
    blocks: int
    age: int
    ring: RotationSchedule | None
    seed: int
    threads: int

    @staticmethod
    def from_plan(plan: SamplingPlan, words: Int64s, frequencies: Int64s, threads: int) -> ThreadTurns:
        """Plan the turns by the training's way of sharing counts.

        "rotation" and "average" have the turns that as many workers have on servers; the threads of "ssp" pass on
        blocks of about equally many tokens.

        Args:
            words: int64, ascending: numbers of the words that have tokens.
            frequencies: int64: tokens of each of these.
        """
        vocabulary = plan.vocabulary
        if plan.settings.sync == "rotation":
            ring = make_ring(threads, vocabulary, plan.width)
            everywhere = np.zeros(vocabulary, np.int64)
            everywhere[words] = frequencies
            word_blocks = deal_by_cost(everywhere, ring.blocks)[words]
            return ThreadTurns(word_blocks, ring.blocks, plan.lateness + 1, ring, plan.seed, threads)
        if plan.settings.sync == "average":
            bounds = vocabulary * np.arange(1, threads) // threads
            word_blocks = np.searchsorted(bounds, words, side="right").astype(np.int32)
            return ThreadTurns(word_blocks, threads, 0, None, plan.seed, threads)
        word_blocks = deal_by_cost(frequencies, threads) if threads > 1 else np.zeros(len(words), np.int32)
        return ThreadTurns(word_blocks, threads, 1, None, plan.seed, threads)

    def iteration_turns(self, iteration: int) -> Sequence[Sequence[int]]:
        """Return the block of each thread, turn by turn; -1 where it has none.

        Args:
            iteration: from 1 on.
        """
        threads = range(self.threads)
        if self.ring is None:
            return [[(thread + turn) % self.threads for thread in threads] for turn in range(self.blocks)]
        thread_turns = [self.ring.turns_of(self.seed, iteration - 1, thread) for thread in threads]
        turns: list[list[int]] = np.stack(thread_turns, axis=1).tolist()
        return turns


def document_bounds(lengths: Int64s, threads: int) -> list[int]:
    """Divide documents among threads, neighbours together, so that each has about equally many tokens.

    Args:
        lengths: int64: tokens of each document; at least one document.

    Returns:
        The first document of each thread, and the end. There are no more threads than documents.
    """
    threads = min(threads, len(lengths))
    ends = np.cumsum(lengths)
    shares = ends[-1] * np.arange(1, threads) / threads
    bounds = np.searchsorted(ends, shares).astype(np.int64) + 1
    # Every thread has a document, however long some are.
    for thread in range(threads - 1):
        low = bounds[thread - 1] + 1 if thread else 1
        bounds[thread] = min(max(bounds[thread], low), len(lengths) - (threads - 1 - thread))
    return [0, *bounds.tolist(), len(lengths)]
