"""Generated click logs of any length, whose ids and tastes change by day, and whose true click probabilities are known.

python examples/generated_clicks.py FOLDER [--days N] [--rows N] [--ids N] [--seed N]

writes Parquet files, a day a folder: FOLDER/day=0/part-000.parquet. A row is like one of Criteo's: a label, numbers i1
to i13, and strings c1 to c26. It also has its time, and the probability that the label was drawn with.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NUMBERS = tuple(f"i{number}" for number in range(1, 14))
IDS = tuple(f"c{number}" for number in range(1, 27))
LABEL, TIME, PROBABILITY = "label", "time", "probability"
FIRST_DAY = datetime(2026, 1, 1, tzinfo=timezone.utc)
DAY_US = 86_400_000_000
# The k most popular ids of a field have the share (k / all) ** (1 / 4).
LEAST_IDS = 4
# Ids of smaller fields, such as countries, stay.
LEAST_TURNOVER_IDS = 1000
# Pairs of ids' fields whose vectors' product counts, so that a model of single ids does not know everything.
PAIRS = ((3, 9), (5, 12), (7, 10), (8, 14), (11, 13))
# Standard deviations of the parts of the log-odds: of all ids' weights, all numbers', all pairs'.
OF_IDS, OF_NUMBERS, OF_PAIRS = 1.1, 0.6, 0.6
MISSING = 0.15  # share of the values that i2, i5, i8 and i11 lack
HEX = np.frombuffer("".join(f"{value:04x}" for value in range(1 << 16)).encode(), np.uint32)


@dataclass(frozen=True)
class ClickLog:
    """A click log.

    The log-odds of a click are a sum of weights: of each id, of each number (of its logarithm), and of some pairs of
    ids. A weight turns like a wheel, ``a cos(2 pi t / period) + b sin(2 pi t / period)``, so what is true now is
    another thing in a quarter of the period, and all days are as hard as each other. Ids come and go: each day the
    share ``turnover`` of the ids of larger fields is replaced by new ones, popular ones too.

    Attributes:
        ids: distinct ids of all 26 fields at a time; the smallest field has 4, each larger one the same factor more.
        period: days; ``math.inf``: weights stay.
        turnover: share of ids that are replaced in a day.
        bias: log-odds of a row whose weights are 0.
        block: rows that are drawn together; a file has whole blocks, so a day's rows are the same in any files.
        seed: the same seed gives the same log.
    """

    ids: int = 10_000_000
    period: float = 40.0
    turnover: float = 0.02
    bias: float = -1.6
    block: int = 1 << 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.ids < LEAST_IDS * len(IDS):
            raise ValueError(f"ids: expected {LEAST_IDS * len(IDS)} or more, got {self.ids}")
        if not (self.period > 0 and self.turnover >= 0):
            raise ValueError(f"expected a period above 0 and a turnover from 0 on, got {self.period}, {self.turnover}")

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Ids of each field, smallest first; they grow by one factor from field to field, and add up to ``ids``."""
        low, high = 1.0, 1e9
        powers = np.arange(len(IDS))
        while high / low > 1 + 1e-12:
            factor = (low * high) ** 0.5
            low, high = (factor, high) if (LEAST_IDS * factor**powers).sum() < self.ids else (low, factor)
        sizes = np.maximum(LEAST_IDS, np.floor(LEAST_IDS * low**powers).astype(np.int64))
        sizes[-1] += self.ids - sizes.sum()
        return tuple(sizes.tolist())

    def day(self, day: int, rows: int) -> Iterator[pa.RecordBatch]:
        """Return a day's rows in the order of time, a batch for each block.

        Columns: ``label`` int32, ``time`` timestamp[us, UTC], ``i1`` to ``i13`` int32 with nulls, ``c1`` to ``c26``
        strings of 8 characters, ``probability`` float64.
        """
        for number in range(-(-rows // self.block)):
            yield self._block(day, number, rows)

    def write(self, folder: str | Path, day: int, rows: int, files: int = 1) -> list[Path]:
        """Write a day's rows to ``folder/day=DAY``, a file whole or not at all; return the paths by time."""
        of_day = Path(folder) / f"day={day}"
        of_day.mkdir(parents=True, exist_ok=True)
        blocks = -(-rows // self.block)
        paths = []
        for part in range(files):
            numbers = range(part * blocks // files, (part + 1) * blocks // files)
            batches = [self._block(day, number, rows) for number in numbers]
            if not batches:
                continue
            path = of_day / f"part-{part:03d}.parquet"
            unfinished = of_day / f".{path.name}"  # Spark does not look at such names
            pq.write_table(pa.Table.from_batches(batches), unfinished)
            os.replace(unfinished, path)
            paths.append(path)
        return paths

    def _block(self, day: int, number: int, rows: int) -> pa.RecordBatch:
        rng = np.random.default_rng([self.seed, day, number])
        count = min(self.block, rows - number * self.block)
        since = day + (number * self.block + np.arange(count) + 0.5) / rows  # days since the beginning
        angle = 2 * np.pi * since / self.period
        turning = np.cos(angle), np.sin(angle)
        odds = np.full(count, self.bias)
        columns: dict[str, pa.Array] = {}
        for field, name in enumerate(NUMBERS):
            columns[name] = self._numbers(rng, field, turning, odds)
        slots = [self._slots(rng, field, since) for field in range(len(IDS))]
        for field, (name, slot) in enumerate(zip(IDS, slots, strict=True)):
            columns[name] = _texts(slot, field)
            a, b = _two_weights(_mixed(slot, self.seed * 1000 + field))
            odds += OF_IDS / len(IDS) ** 0.5 * (turning[0] * a + turning[1] * b)
        for one, other in PAIRS:
            (p, q), (r, s) = (_two_weights(_mixed(slots[of], self.seed * 1000 + 500 + of)) for of in (one, other))
            odds += OF_PAIRS / (2 * len(PAIRS)) ** 0.5 * (p * r + q * s)
        probability = 1 / (1 + np.exp(-odds))
        label = (rng.random(count) < probability).astype(np.int32)
        first_us = int(FIRST_DAY.timestamp()) * 1_000_000
        at = pa.array((first_us + since * DAY_US).astype(np.int64)).cast(pa.timestamp("us", "UTC"))
        named = {LABEL: pa.array(label), TIME: at, **columns, PROBABILITY: pa.array(probability)}
        return pa.RecordBatch.from_pydict(named)

    def _numbers(
        self, rng: np.random.Generator, field: int, turning: tuple[float, float], odds: np.ndarray
    ) -> pa.Array:
        """Return counts, and add what they do to the log-odds: some the more, the more; some in the middle most."""
        sample = rng.standard_normal(odds.size)
        is_missing = rng.random(odds.size) < (MISSING if field % 3 == 1 else 0)
        effect = sample if field % 4 else np.abs(sample) - (2 / np.pi) ** 0.5
        a, b = _two_weights(_mixed(np.array([field]), self.seed * 1000 + 900))
        weight = OF_NUMBERS / len(NUMBERS) ** 0.5 * (turning[0] * a + turning[1] * b)
        odds += np.where(is_missing, 0.0, effect * weight)
        counts = np.exp(0.5 + field / 4 + sample).astype(np.int32)
        return pa.array(counts, mask=is_missing)

    def _slots(self, rng: np.random.Generator, field: int, since: np.ndarray) -> np.ndarray:
        """Return the number of each row's id: popular ones low, and ``size`` more for each time it was replaced."""
        size = self.sizes[field]
        sample = rng.random(since.size)
        sample *= sample
        rank = (size * sample * sample).astype(np.int64)
        if size < LEAST_TURNOVER_IDS or not self.turnover:
            return rank
        phase = (_mixed(rank, self.seed * 1000 + 950 + field) >> np.uint64(40)) * 2.0**-24
        return rank + size * (self.turnover * since + phase).astype(np.int64)


def _mixed(numbers: np.ndarray, stream: int) -> np.ndarray:
    """Return 64 random bits of each number (splitmix64)."""
    z = numbers.astype(np.uint64)
    z += np.uint64((stream * 0xD1342543DE82EF95 + 1) % 2**64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _two_weights(bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two numbers of mean 0 and standard deviation 1 from 64 bits: each is the sum of two uniform ones."""
    low, high = np.uint64(0xFFFF), np.uint64(16)
    a = (bits & low) + ((bits >> high) & low)
    b = ((bits >> np.uint64(32)) & low) + (bits >> np.uint64(48))
    deviation = 2.0**16 / 6**0.5
    return (a - 65535.0) / deviation, (b - 65535.0) / deviation


def _texts(slots: np.ndarray, field: int) -> pa.Array:
    """Return a string of 8 hexadecimal digits for each number below 2**32: different ones for different numbers."""
    z = slots.astype(np.uint32) ^ np.uint32((field + 1) * 0x9E3779B9 % 2**32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        z ^= z >> np.uint32(shift)
        z *= np.uint32(factor)
    z ^= z >> np.uint32(16)
    digits = HEX[z.view(np.uint16)]
    offsets = np.arange(0, 8 * z.size + 1, 8, dtype=np.int32)
    return pa.StringArray.from_buffers(z.size, pa.py_buffer(offsets), pa.py_buffer(digits))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--rows", type=int, default=1_000_000, help="a day")
    parser.add_argument("--files", type=int, default=4, help="a day")
    parser.add_argument("--ids", type=int, default=ClickLog.ids)
    parser.add_argument("--seed", type=int, default=ClickLog.seed)
    asked = parser.parse_args()
    clicks = ClickLog(ids=asked.ids, seed=asked.seed)
    for day in range(asked.days):
        began_s = time.monotonic()
        paths = clicks.write(asked.folder, day, asked.rows, asked.files)
        size = sum(path.stat().st_size for path in paths)
        print(f"day {day}: {asked.rows:,} rows, {size / 2**20:.0f} MiB, {time.monotonic() - began_s:.1f} s", flush=True)


if __name__ == "__main__":
    main()
