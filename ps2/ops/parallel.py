"""Run a loop over long rows on several cores: the rows are cut into contiguous blocks, and each thread takes the next.

The calling thread works too, and waits for no thread that has not begun: on a busy machine it does all blocks itself.
Kernels and NumPy's loops run without the GIL, so plain threads do. Numba's own ``parallel=True`` is not used: its pools
of threads survive no fork, and two threads may not enter them at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from ps2.cgroups import usable_cores
from ps2.ops.table import Array

# Additions in the smallest block: some 30 us of work. A row of fewer than four of these is left whole, as to wake a
# thread costs as much again.
MIN_BLOCK = 1 << 18
MIN_BLOCKS = 4
# More would only cost: each takes 2 us to hand out.
MAX_BLOCKS = 64
# What it costs to find a column anywhere in a row.
SLOT_COST = 16

_cores: int | None = None


def set_cores(count: int) -> None:
    """Let this process use so many cores; before that, it uses all that it may run on and gets the time of."""
    global _cores
    _cores = count


def over_blocks(
    fn: Callable[..., Any], rows: Sequence[Array], *rest: Any, cost: int = 1, most: int | None = None
) -> list[Any]:
    """Call ``fn(*blocks, *rest)`` for each block of the rows, all at once; return the results in the blocks' order.

    Args:
        fn: a kernel, or another function that leaves the GIL; it writes to the blocks of its call only.
        rows: arrays of one length, which are cut along their first axis.
        rest: arguments that all calls get.
        cost: what one element of the rows costs ``fn``, in additions of one array to another.
        most: cores that it takes, at most; None: all that the process may use.

    Raises:
        What a block raised; none is under way any more, and others may have been done.
    """
    length = len(rows[0])
    if length * cost < MIN_BLOCKS * MIN_BLOCK:
        return [fn(*rows, *rest)]
    count = min(length, length * cost // MIN_BLOCK, MAX_BLOCKS)
    bounds = [length * i // count for i in range(count + 1)]
    return _run([partial(fn, *(row[begin:end] for row in rows), *rest) for begin, end in pairwise(bounds)], most)


def sum_blocks(fn: Callable[..., Any], rows: Sequence[Array]) -> float:
    """Return the sum of the results of ``fn``, in the blocks' order: the same on any number of cores."""
    return float(sum(over_blocks(fn, rows)))


def update(ufunc: np.ufunc, u: Array, v: Any) -> None:
    """Set ``u`` to ``ufunc(u, v)``, v a row or a number, with the results of IEEE 754: infinity is no warning."""
    if isinstance(v, np.ndarray):
        over_blocks(lambda u, v: _update(ufunc, u, v), (u, v))
    else:
        over_blocks(lambda u: _update(ufunc, u, v), (u,))


def assign(u: Array, v: Any) -> None:
    """Overwrite ``u`` with v, a row or a number."""
    if isinstance(v, np.ndarray):
        over_blocks(np.copyto, (u, v))
    else:
        over_blocks(np.copyto, (u,), v)


def _update(ufunc: np.ufunc, u: Array, v: Any) -> None:
    # In each block, as each thread has an error state of its own.
    with np.errstate(all="ignore"):
        ufunc(u, v, out=u)


def _run(calls: Sequence[Callable[[], Any]], most: int | None) -> list[Any]:
    """Run the calls in this thread and in those of the pool that are free; return their results in order."""
    results: list[Any] = [None] * len(calls)
    turns = iter(range(len(calls)))  # shared: to take the next is one step under the GIL

    def take_turns() -> None:
        for turn in turns:
            results[turn] = calls[turn]()

    cores = _cores or usable_cores()
    count = min(cores, len(calls), most or cores)
    helpers = [_pool(os.getpid(), cores - 1).submit(take_turns) for _ in range(count - 1)]
    try:
        take_turns()
    finally:
        # After an error too: nothing may write to a row when the lock of its shard is given back.
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()
    return results


@lru_cache(maxsize=1)
def _pool(pid: int, threads: int) -> ThreadPoolExecutor:
    """Return the pool of the process: a fork takes no threads along, so another pid needs another."""
    return ThreadPoolExecutor(threads, thread_name_prefix="ps2-blocks")
