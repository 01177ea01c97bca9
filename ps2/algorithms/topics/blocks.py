"""Blocks of words with about equal numbers of tokens, which rotate among the workers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ps2.ops.kernels import Int64s, kernel
from ps2.run.rotation import RotationSchedule

# Blocks form this many groups: while a worker samples one block, its changes of another travel.
SLICES = 2


def ring_of(workers: int, vocabulary: int, width: int) -> RotationSchedule:
    """Return the rotation: the fewest blocks that keep all workers busy and have at most ``width`` words each."""
    at_once = SLICES * workers
    return RotationSchedule(workers, at_once * -(-vocabulary // (at_once * width)), SLICES)


def deal_words(frequencies: Int64s, blocks: int) -> npt.NDArray[np.int32]:
    """Return the block of each word: by falling frequency, each word goes to the block with the fewest tokens and space
    left.

    Args:
        frequencies: int64: occurrences of each word.
    """
    room = -(-len(frequencies) // blocks)
    found = np.empty(len(frequencies), np.int32)
    _deal(np.argsort(-frequencies, kind="stable"), frequencies, room, np.zeros((2, blocks), np.int64), found)
    return found


@kernel
def _deal(order: Int64s, frequencies: Int64s, room: int, held: Int64s, found: npt.NDArray[np.int32]) -> None:
    tokens, words = held[0], held[1]
    for word in order:
        best = -1
        for block in range(len(tokens)):
            if words[block] < room and (best < 0 or tokens[block] < tokens[best]):
                best = block
        found[word] = best
        tokens[best] += frequencies[word]
        words[best] += 1


@dataclass(frozen=True, eq=False)
class Blocks:
    """The words of each block in a worker's corpus.

    Attributes:
        begins: int64: position of each block's first word, and the end.
    """

    ring: RotationSchedule
    begins: Int64s

    def bounds(self, block: int) -> tuple[int, int]:
        """Return the positions of a block's words, begin and end."""
        return int(self.begins[block]), int(self.begins[block + 1])
