"""Sort a worker's ratings by key outside of memory: sorted runs in a file, which are merged range of keys by range."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2.array_types import Int64s
from ps2.data.block_file import BlockFile, BlockSlice
from ps2.data.row_spill import RowSpill

Array = npt.NDArray[Any]
# Rows (users, or items), positions on the other side, values, and weights, which are empty if all are 1.
RatingArrays = tuple[Array, ...]
NAMES = ("rows", "others", "values", "weights")
NO_RATINGS: RatingArrays = (*(np.empty(0, np.int32),) * 2, *(np.empty(0, np.float32),) * 2)


@dataclass(eq=False)
class RatingRuns:
    """Ratings in the order in which they arrive, in memory, or in sorted runs in a file.

    Attributes:
        num_keys: the number of keys by which ratings are sorted, from 0 on.
        get_keys: a function that returns the keys of ratings from their rows and the positions on the other side.
        nbytes: the size of the ratings in memory.
        is_weighted: whether ratings have weights.
        file: the file of the runs; None: all ratings are in memory.
    """

    num_keys: int
    get_keys: Callable[[Array, Array], Array]
    nbytes: int = 0
    is_weighted: bool = False
    file: BlockFile | None = None
    _parts: list[RatingArrays] = field(default_factory=list)
    _runs: list[BlockSlice] = field(default_factory=list)

    def add(self, arrays: RatingArrays) -> None:
        """Keep ratings in memory."""
        self._parts.append(arrays)
        self.is_weighted |= len(arrays[-1]) > 0
        self.nbytes += sum(array.nbytes for array in arrays)

    def write(self, spill: RowSpill) -> None:
        """Move the ratings that are in memory to the file, as one run."""
        if not self.nbytes:
            return
        if self.file is None:
            self.file = spill.new_file()
        arrays = dict(zip(NAMES, join(self._parts), strict=True))
        self._parts, self.nbytes = [], 0
        order = np.argsort(self.get_keys(arrays["rows"], arrays["others"]), kind="stable")
        for name, array in arrays.items():
            arrays[name] = array[order] if len(array) else array
        self._runs.append(self.file.append(arrays))

    def begins(self) -> Int64s:
        """Return for each key the number of ratings with smaller keys, and then the number of all ratings."""
        begins = np.zeros(self.num_keys + 1, np.int64)
        for rows, others, *_ in [*self._parts, *map(self._read, self._runs)]:
            np.add.at(begins[1:], self.get_keys(rows, others), 1)
        return np.cumsum(begins, out=begins)

    def ranges(self, range_bytes: int) -> Iterator[tuple[int, int, list[RatingArrays]]]:
        """Yield ranges of keys, ascending, as first key, end, and their ratings, which take about ``range_bytes``.

        Ratings in memory are one range. A single key can have more ratings.
        """
        if self.file is None:
            yield 0, self.num_keys, self._parts
            return
        begins = self.begins()
        size = max(1, range_bytes * int(begins[-1]) // sum(run.size for run in self._runs))
        cuts = np.unique(np.searchsorted(begins, np.arange(size, begins[-1], size)))
        keys = [0, *(key for key in cuts.tolist() if 0 < key < self.num_keys), self.num_keys]
        bounds = [np.searchsorted(self.get_keys(*self._read(run)[:2]), keys).tolist() for run in self._runs]
        for number, (first, end) in enumerate(pairwise(keys)):
            parts = []
            for run, positions in zip(self._runs, bounds, strict=True):
                part = slice(*positions[number : number + 2])
                parts.append(tuple(array[part].copy() for array in self._read(run)))  # a view would keep the run mapped
            yield first, end, parts

    def _read(self, run: BlockSlice) -> RatingArrays:
        assert self.file is not None  # there are runs
        arrays = self.file.arrays(run)
        return tuple(arrays[name] for name in NAMES)


def range_bytes(spill: RowSpill | None) -> int:
    """Return the size of the ratings that are sorted at once; sorting needs about six times as much memory."""
    return 0 if spill is None else max(spill.spill.block_bytes // 8, spill.limit_bytes // 4)


def join(parts: Sequence[RatingArrays]) -> RatingArrays:
    """Concatenate each array."""
    return tuple(np.concatenate(arrays) for arrays in zip(NO_RATINGS, *parts, strict=True))
