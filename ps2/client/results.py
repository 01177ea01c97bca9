"""The return type of ``mapPartitions``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any


class PartitionResults:
    """One result per partition, in the order of the partitions (paper, Figures 3 and 8)."""

    def __init__(self, results: list[Any]) -> None:
        self._results = results

    def collect(self) -> list[Any]:
        """Return the results as a list."""
        return list(self._results)

    def sum(self) -> Any:
        """Return the sum of the results."""
        return self.reduce(lambda a, b: a + b)

    def max(self, key: Callable[[Any], Any] | None = None) -> Any:
        """Return the largest result, or the one whose ``key`` is largest."""
        return max(self._results, key=key) if key is not None else max(self._results)

    def min(self, key: Callable[[Any], Any] | None = None) -> Any:
        """Return the smallest result, or the one whose ``key`` is smallest."""
        return min(self._results, key=key) if key is not None else min(self._results)

    def reduce(self, f: Callable[[Any, Any], Any]) -> Any:
        """Fold the results from left to right with a function of two results."""
        return functools.reduce(f, self._results)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        return f"PartitionResults({self._results!r})"
