"""Blocks of matrices with layout "column": k values of each of many random columns, new for each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.keys import Keys
from benchmarks.ratio import Pair
from benchmarks.raw import RawSocket, raw_socket
from ps2 import DCV, DCVMatrix

SEED = 2019
# Number of columns in one call while a matrix is initialised.
FILLED = 20_000
KEY_BYTES = 8


class Blocks:
    """A matrix on the fleet, and random calls for its columns; ``model`` holds the expected first columns."""

    def __init__(self, matrix: DCVMatrix, asked: int, dtype: str, below: int) -> None:
        self.matrix = matrix
        self._random = np.random.default_rng(SEED)
        k = matrix.rows
        values = self._random.integers(0, below, (asked, k)).astype(dtype)
        self._call = Keys(np.empty(asked, np.int64), values, np.ones((asked, k), dtype))
        for start in range(0, matrix.dim, FILLED):
            columns = np.arange(start, min(start + FILLED, matrix.dim))
            matrix.push(columns=columns, values=np.ones((columns.size, k), dtype))

    def draw(self) -> Keys:
        """Draw columns in random order, with occasional duplicates."""
        columns = self._random.integers(0, self.matrix.dim, self._call.keys.size)
        return self._call._replace(keys=columns)

    def check(self) -> None:
        """Raise if the pulled values differ from those that were added."""
        call = self.draw()
        before = self.matrix.pull(columns=call.keys)
        self.matrix.add(columns=call.keys, values=call.values)
        changes = np.zeros_like(before)
        _, first, which = np.unique(call.keys, return_index=True, return_inverse=True)
        np.add.at(changes, which, call.values)
        if not np.allclose(self.matrix.pull(columns=call.keys[first]), before[first] + changes[: first.size]):
            raise AssertionError("blocks: PS2 returned other values than expected")


def pairs() -> Iterator[Pair]:
    """Yield the lines of the table; each matrix exists while its lines are measured."""
    yield from _of("100K columns of 2M, k=128 float32", DCV.dense, (2_000_000, 128), 100_000, 0.6)
    yield from _of("100K keys of 2M, k=128 float32, sparse", DCV.sparse, (2_000_000, 128), 100_000, None)
    yield from _of("10K columns of 200K, k=1,000 int32", DCV.dense, (200_000, 1000), 10_000, 0.7, "int32")


def _of(
    what: str,
    make: Callable[..., DCV],
    shape: tuple[int, int],
    asked: int,
    target: float | None,
    dtype: str = "float32",
) -> Iterator[Pair]:
    blocks = Blocks(make(*shape, dtype, layout="column").matrix(), asked, dtype, 1 << 20)
    blocks.check()
    nbytes = asked * (shape[1] * 4 + KEY_BYTES)
    again = blocks.draw()
    with raw_socket("unix", asked * shape[1], longest_bytes=nbytes) as raw:
        yield _pull(f"pull, {what}", raw, blocks, blocks.draw, target)
        yield _add(f"add, {what}", raw, blocks, blocks.draw, target)
        yield _pull(f"pull, the same {what}", raw, blocks, lambda: again, None)
        yield _add(f"add, the same {what}", raw, blocks, lambda: again, None)
    blocks.matrix.free()


def _pull(what: str, raw: RawSocket, blocks: Blocks, draw: Callable[[], Keys], target: float | None) -> Pair:
    def ours(call: Keys) -> None:
        blocks.matrix.pull(columns=call.keys, out=call.out)

    return Pair(
        what, "raw Unix socket", "GB/s", target, lambda call: raw.move((call.keys,), call.out), ours, draw, _bytes
    )


def _add(what: str, raw: RawSocket, blocks: Blocks, draw: Callable[[], Keys], target: float | None) -> Pair:
    def ours(call: Keys) -> None:
        blocks.matrix.add(columns=call.keys, values=call.values)

    return Pair(
        what, "raw Unix socket", "GB/s", target, lambda call: raw.move((call.keys, call.values)), ours, draw, _bytes
    )


def _bytes(call: Keys) -> int:
    return call.values.nbytes
