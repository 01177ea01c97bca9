"""Model rotation: how much of the blocks' transfer time two slices hide, and what time control saves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np

from benchmarks.frame import Part, answer
from benchmarks.local_spark import start_spark
from benchmarks.ratio import Found
from benchmarks.run_part import Asked
from ps2 import DCV, PS2Context
from ps2.client.matrix import DCVMatrix
from ps2.run.result import RunResult

SERVERS = 2
WORKERS = 2
COLUMNS, K = 8_000, 256  # int32: 8 MB in all
BLOCKS = 2 * WORKERS
ROTATIONS = 8
# Seconds of work on a block; workers only sleep, so they need no core.
ITEMS, ITEM_S = 10, 0.005
TURN_S = ITEMS * ITEM_S
SLOWER = 3.0
# Budget of time control: what the fast workers need for a block.
BUDGET_S = TURN_S
ROWS = list(range(WORKERS))


def measure(asked: Asked) -> Part:
    """Let one and two slices, and a slow worker with and without a budget, alternate."""
    spark = start_spark(f"local[{WORKERS}]", "benchmarks.run_rotation", {})
    names = ("no model", "one slice", "two slices", "slow", "slow, budget")
    taken: dict[str, list[float]] = {name: [] for name in names}
    work: dict[str, list[float]] = {name: [] for name in names}
    try:
        with PS2Context.getOrCreate(spark, servers=SERVERS) as ps:
            rows = spark.sparkContext.parallelize(ROWS, WORKERS)
            table = DCV.dense(COLUMNS, K, dtype="int32", layout="column").matrix()
            for round_ in range(-1, asked.rounds):  # in the first, every process compiles its kernels
                for name in names:
                    slices, budget_s = 1 if name == "one slice" else 2, BUDGET_S if "budget" in name else None
                    rotating = _rotating(
                        table if name != "no model" else None, slices, SLOWER if "slow" in name else 1.0, budget_s
                    )
                    result = ps.run(rows, rotating, workers=WORKERS, staleness=slices - 1)
                    if round_ >= 0:
                        seconds = _seconds(result)
                        taken[name].append(seconds / (ROTATIONS * BLOCKS))
                        work[name].append(sum(result) / seconds)
    finally:
        spark.stop()

    # Time beyond work includes clocks and sleeping too long. Without transfers, it consists of these alone.
    least, one, two = (median(taken[name]) for name in ("no model", "one slice", "two slices"))
    rates = {name: [1 / turn_s for turn_s in turns] for name, turns in taken.items()}
    return Part(
        [
            Found("turns, two slices", "one slice", "steps/s", None, rates["one slice"], rates["two slices"]),
            Found(
                "items of work, one worker three times as slow, time control", "none", "steps/s", 1.2, work["slow"],
                work["slow, budget"],
            ),
        ],
        [],
        {
            "workers": WORKERS,
            "blocks": BLOCKS,
            "KB a block": COLUMNS * K * 4 // BLOCKS >> 10,
            "ms of work a turn": 1e3 * TURN_S,
            "share of the communication that two slices hide": round(1 - (two - least) / (one - least), 2),
            **{f"ms a turn, {name}": round(1e3 * median(turns), 1) for name, turns in taken.items()},
        },
    )  # fmt: skip


def _rotating(table: DCVMatrix | None, slices: int, slower: float, budget_s: float | None) -> Callable[..., int]:
    """Return a worker's function that pulls its block (if any), works, adds to the block, and returns its items."""

    def rotate(worker: Any, rows: Iterator[int]) -> int:
        done = len(list(rows)) - 1  # read, so that Spark can use the process again
        values = np.random.default_rng(worker.rank).integers(-100, 100, (COLUMNS // BLOCKS, K), dtype=np.int32)

        def columns(block: int) -> Any:
            return np.arange(block * (COLUMNS // BLOCKS), (block + 1) * (COLUMNS // BLOCKS))

        def fetch(block: int) -> Any:
            return worker.prefetch(table, columns=columns(block))

        for turn in worker.rotate(BLOCKS, ROTATIONS, slices, budget_s, None if table is None else fetch):
            if table is not None:
                turn.pull()
            for _ in turn.parts(range(ITEMS)):
                time.sleep(ITEM_S * (slower if worker.rank == 0 else 1.0))
                done += 1
            if table is not None:
                table.add(columns=columns(turn.block), values=values, wait=False)
        return done

    return rotate


def _seconds(result: RunResult) -> float:
    """Return the time from the beginning of the first turn to the end of the last one."""
    tables = result.timeline
    ended_s = max(float((row := table[-1]).began + row.wait + row.pull + row.compute + row.push) for table in tables)
    return ended_s - min(float(table[0].began) for table in tables)


if __name__ == "__main__":
    answer(Asked, measure)
