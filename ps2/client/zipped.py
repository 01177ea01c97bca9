"""Several vectors, operated on column by column (paper, section 4.2; Figures 3 and 8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ps2.client import plans
from ps2.client.batch import submit
from ps2.client.dcv import DCV
from ps2.client.results import PartitionResults
from ps2.errors import ConfigError, DTypeError
from ps2.ops.table import lookup, lookup_at


class ZippedDCV:
    """What ``u.zip(v, ...)`` returns. Vectors that are not co-located with the first are brought beside it for each
    call, and written back after one that may have changed them."""

    def __init__(self, vectors: tuple[DCV, ...]) -> None:
        for vector in vectors:
            if not isinstance(vector, DCV):
                raise DTypeError(f"zip: expected DCVs, got {type(vector).__name__}")
        self._vectors = vectors

    def mapPartitions(self, fn: Callable[..., Any]) -> PartitionResults:
        """Call ``fn(u, v, ...)`` once a partition, on the servers, right now.

        Args:
            fn: gets one array a vector, of shape (columns of the partition,), writable: what it writes there is
                written to the vectors. It is pickled; it runs with all of the partition's rows locked.

        Returns:
            What the calls returned, in the order of the partitions.

        Raises:
            OpError: it raised, or returned what cannot be pickled; what it had written on that partition is undone.
        """
        return self._map(fn, with_index=False)

    def mapPartitionsWithIndex(self, fn: Callable[..., Any]) -> PartitionResults:
        """Call ``fn(partition, u, v, ...)``: like ``mapPartitions``, with the ``Partition`` first."""
        return self._map(fn, with_index=True)

    def apply(self, name: str, indices: Any = None, **params: Any) -> DCV:
        """Run a built-in kernel (``ps2 ops`` lists them) on the servers, atomically on each partition.

        Args:
            name: such as "adam", "sgd", "momentum", "adagrad", "rmsprop" or "ftrl".
            indices: int64 of shape (n,), any order, duplicates count once: run it at these columns only, if it can
                ("settle_plain", "settle_scaled", "settle_ftrl"); absent keys of a sparse vector stay absent.
            params: the kernel's scalars.

        Returns:
            The first vector.

        Raises:
            NotFoundError, ConfigError, DTypeError, ShapeError: no such kernel, or not with these arguments.
        """
        op = lookup(name) if indices is None else lookup_at(name)
        first = self._vectors[0]
        if set(op.operands) != ({"row"} if indices is None else {"row", "slots"}) or not op.writes:
            raise ConfigError(f"operation {name!r} is not a kernel for zipped vectors")
        op.check(len(self._vectors), first._spec.dtype, params)
        if len({(v._matrix, v._row) for v in self._vectors}) < len(self._vectors):
            raise ConfigError(f"operation {name!r}: the same vector is given twice")
        beside = self._beside()
        target = first._target(*beside[1:])
        if indices is None:
            plan = plans.call(target, op.name, params)
        else:
            plan = plans.call_at(target, op.name, indices, params)
        submit(first._session, plan)
        self._write_back(beside, written=op.writes, names=op.reads)
        return first

    def _map(self, fn: Callable[..., Any], with_index: bool) -> PartitionResults:
        first, beside = self._vectors[0], self._beside()
        plan = plans.map_partitions(first._target(*beside[1:]), fn, with_index)
        results: Any = submit(first._session, plan)
        names = tuple(str(i) for i in range(len(beside)))
        self._write_back(beside, written=names, names=names)
        return results

    def _beside(self) -> list[DCV]:
        first = self._vectors[0]
        return [first, *(first._beside(vector) for vector in self._vectors[1:])]

    def _write_back(self, beside: list[DCV], written: tuple[str, ...], names: tuple[str, ...]) -> None:
        for name, original, used in zip(names, self._vectors, beside, strict=True):
            if used is not original and name in written:
                original.copy(used)
