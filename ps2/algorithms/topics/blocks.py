"""Blocks of words with about equal numbers of tokens, which rotate among the workers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ps2.ops.kernels import Int64s
from ps2.run.rotation import RotationSchedule

# Blocks form this many groups: while a worker samples one block, its changes of another travel.
SLICES = 2


def make_ring(workers: int, vocabulary: int, width: int) -> RotationSchedule:
    """Return the rotation: the fewest blocks that keep all workers busy and have at most ``width`` words each."""
    at_once = SLICES * workers
    return RotationSchedule(workers, at_once * -(-vocabulary // (at_once * width)), SLICES)


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
