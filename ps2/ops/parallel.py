"""Runs a loop over long rows on several cores: threads process contiguous blocks of the rows.

The calling thread processes blocks, too. It does not wait for threads that have not started, so on a busy machine it
processes all blocks alone. Python threads suffice, because kernels and NumPy's loops release the GIL. Numba's
``parallel=True`` is not used: its thread pools do not survive a fork, and two threads must not use them concurrently.
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

# The minimum cost of a block, in element additions: about 30 us. A row of fewer than MIN_BLOCKS such blocks is not
# divided, because the start of a thread costs about as much.
MIN_BLOCK = 1 << 18
MIN_BLOCKS = 4
# The maximum number of blocks: each block costs 2 us, and more blocks would not help.
MAX_BLOCKS = 64
# The cost of a random access to a column of a row, in element additions.
SLOT_COST = 16

_cores: int | None = None  # None: all cores that the process may use


def set_cores(count: int) -> None:
    """Set the number of cores that this process uses; the default is all that it may use."""
    global _cores
    _cores = count


def cores() -> int:
    """Return the number of cores that this process uses."""
    return _cores or usable_cores()


def over_blocks(
    fn: Callable[..., Any], rows: Sequence[Array], *rest: Any, cost: int = 1, max_cores: int | None = None
) -> list[Any]:
    """Call ``fn(*blocks, *rest)`` for each block of the rows, in parallel; return the results in the blocks' order.

    Args:
        fn: a kernel, or another function that releases the GIL. It must write only to its blocks.
        rows: arrays of the same length, divided along their first axis.
        rest: further arguments of every call.
        cost: the cost of ``fn`` for one element, in element additions.
        max_cores: maximum number of cores; None: all that the process may use.

    Raises:
        Exception: the call for a block has failed. It is raised after all running calls have ended; some blocks may not
            be processed.
    """
    length = len(rows[0])
    if length * cost < MIN_BLOCKS * MIN_BLOCK:
        return [fn(*rows, *rest)]
    count = min(length, length * cost // MIN_BLOCK, MAX_BLOCKS)
    bounds = [length * i // count for i in range(count + 1)]
    return _run([partial(fn, *(row[begin:end] for row in rows), *rest) for begin, end in pairwise(bounds)], max_cores)


def sum_blocks(fn: Callable[..., Any], rows: Sequence[Array]) -> float:
    """Return the sum of the results of ``fn``, in order of the blocks. It does not depend on the number of cores."""
    return float(sum(over_blocks(fn, rows)))


def update(ufunc: np.ufunc, u: Array, v: Any) -> None:
    """Set ``u`` to ``ufunc(u, v)``, where v is a row or a scalar. Infinities and NaN cause no warning."""
    if isinstance(v, np.ndarray):
        over_blocks(lambda u, v: _update(ufunc, u, v), (u, v))
    else:
        over_blocks(lambda u: _update(ufunc, u, v), (u,))


def assign(u: Array, v: Any) -> None:
    """Overwrite ``u`` with v, a row or a scalar."""
    if isinstance(v, np.ndarray):
        over_blocks(np.copyto, (u, v))
    else:
        over_blocks(np.copyto, (u,), v)


def _update(ufunc: np.ufunc, u: Array, v: Any) -> None:
    # NumPy's error state is thread-local, so each call sets it.
    with np.errstate(all="ignore"):
        ufunc(u, v, out=u)


def _run(calls: Sequence[Callable[[], Any]], max_cores: int | None) -> list[Any]:
    """Run the calls in this thread and in threads of the pool; return their results in order."""
    results: list[Any] = [None] * len(calls)
    indices = iter(range(len(calls)))  # shared between threads: ``next`` is atomic under the GIL

    def run_calls() -> None:
        for index in indices:
            results[index] = calls[index]()

    num_cores = cores()
    num_threads = min(num_cores, len(calls), max_cores or num_cores)
    futures = [_pool(os.getpid(), num_cores - 1).submit(run_calls) for _ in range(num_threads - 1)]
    try:
        run_calls()
    finally:
        # Wait even after an error: no thread may write to a row after the caller has released the shard's lock.
        started = [future for future in futures if not future.cancel()]
        wait(started)
    for future in started:
        future.result()
    return results


@lru_cache(maxsize=1)
def _pool(pid: int, threads: int) -> ThreadPoolExecutor:
    """Return the pool of the process with this pid. A forked child gets a new pool: threads do not survive a fork."""
    return ThreadPoolExecutor(threads, thread_name_prefix="ps2-blocks")
