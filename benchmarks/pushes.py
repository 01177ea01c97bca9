"""The pushes whose cost ``benchmarks.recovery`` compares."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from benchmarks.ratio import Unit, in_unit
from ps2 import DCV
from ps2.client.plans import BLOCK_BYTES
from ps2.protocol.messages import Keys, Operation

COLUMNS = 16_000_000
# What operations of these pushes name.
MATRIX = 1
SEED = 2019


@dataclass(frozen=True)
class Kind:
    """A kind of push, to a float32 vector: overwriting its first columns, or adding at random ones.

    Attributes:
        what: its name.
        unit: of its rate.
        items: columns of one push.
        keys: whether they are random.
        calls: pushes in one timing.
    """

    what: str
    unit: Unit
    items: int
    keys: bool
    calls: int

    @property
    def nbytes(self) -> int:
        return (12 if self.keys else 4) * self.items * self.calls

    def rate(self, taken_s: float) -> float:
        """Return the rate of one timing."""
        return in_unit(self.unit, self.items * self.calls if self.keys else self.nbytes, taken_s)


KINDS = (
    Kind("dense push, 64 MB", "GB/s", COLUMNS, False, 1),
    Kind("dense push, 1 MB", "GB/s", 250_000, False, 20),
    Kind("add of 100k fresh keys", "M keys/s", 100_000, True, 20),
)


class Pusher:
    """Makes pushes to a vector, and keys that no server has seen."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(SEED)
        self._values = self._random.random(COLUMNS, np.float32)

    def push(self, vector: DCV, kind: Kind) -> float:
        """Time pushes of one kind, in seconds; ``vector`` is as long as those that are not of keys."""
        values = self._values[: kind.items]
        keys = [self.keys(kind) for _ in range(kind.calls if kind.keys else 0)]
        began_s = time.perf_counter()
        for some in keys:
            vector.add(values, some)
        for _ in range(0 if kind.keys else kind.calls):
            vector.push(values)
        return time.perf_counter() - began_s

    def operations(self, kind: Kind) -> list[Operation]:
        """Return what one push comes to on a server that has all columns."""
        values = self._values[: kind.items]
        if kind.keys:
            keys = Keys(kind.items, self.keys(kind))
            return [Operation("scatter_add", MATRIX, 0, (0,), arrays=(values,), keys=keys)]
        block = BLOCK_BYTES // values.itemsize
        starts = range(0, kind.items, block)
        return [
            Operation("push", MATRIX, 0, (0,), {"start": start}, (values[start : start + block],)) for start in starts
        ]

    def keys(self, kind: Kind) -> np.ndarray:
        return np.sort(self._random.choice(COLUMNS, kind.items, replace=False, shuffle=False))
