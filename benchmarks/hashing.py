"""Columns of a generated click log to rows of keys, against pyspark.ml's FeatureHasher; distinct keys against NumPy's.

    python -m benchmarks.hashing

docs/performance/online.md says what is measured and how to read it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pyarrow as pa
import pyspark

from benchmarks.compared import print_compared
from benchmarks.frame import Check, Part, command, exit_code, machine, print_parts, publish
from benchmarks.local_spark import local_spark
from benchmarks.ml_part import Line
from examples.generated_clicks import IDS, NUMBERS, ClickLog
from ps2.algorithms.feature import KeyHasher
from ps2.data.hashing import Field, FieldHasher
from ps2.data.key_rows import KeyRows

WORKERS = 2
# Rows that a worker pushes at once.
BATCH = 8192
# Slots of FeatureHasher, by default.
SLOTS = 1 << 18
# Short calls are timed so many times more often.
TURNS = 5


@command(
    click.option("--rounds", type=click.IntRange(1), default=3, help="Turns that the medians are of."),
    click.option("--rows", type=click.IntRange(BATCH), default=500_000, help="Rows of the log."),
    click.option("--ids", type=int, default=10_000_000, help="Distinct ids of the log at a time."),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed, too."),
)
def main(rounds: int, rows: int, ids: int, strict: bool, form: str, output: Path | None) -> None:
    """Compare hashing with FeatureHasher's, and distinct keys with numpy.unique's."""
    log = ClickLog(ids=ids)
    batch = next(log.day(0, BATCH))
    lines, checks = _distinct(batch, rounds)
    with tempfile.TemporaryDirectory() as folder:
        log.write(folder, 0, rows, files=WORKERS)
        lines += _hashed(folder, rows, rounds)
    part = Part(lines, checks, {"rows": rows, "ids": ids, "fields": len(IDS) + len(NUMBERS)}).as_json()
    report = {"machine": machine(pyspark=pyspark.__version__), "rounds": rounds, "parts": {"hashing": part}}
    publish(report, form, output, lambda: print_parts(report, print_compared))
    sys.exit(exit_code(report, strict))


def _hasher() -> FieldHasher:
    return FieldHasher((*map(Field.categorical, IDS), *map(Field.buckets, NUMBERS)))


def _distinct(batch: pa.RecordBatch, rounds: int) -> tuple[list[Line], list[Check]]:
    """Time the distinct keys of a batch; check that both ways find the same."""
    rows = _hasher().rows(batch)
    ours, numpys = (_turns(call, rounds * TURNS) for call in (rows.distinct, lambda: _unique(rows)))
    line = Line(f"distinct keys of {BATCH:,} rows", "numpy.unique", "ms", None, numpys, ours)
    found, expected = rows.distinct(), _unique(rows)
    wrong = sum(int((a != b).sum()) for a, b in zip(found, expected, strict=True))
    texts = batch.select(IDS)
    hasher = FieldHasher(tuple(map(Field.categorical, IDS)))
    pandas = _turns(lambda: _hash_by_pandas(texts), rounds)
    thread = Line(
        f"keys of 26 strings, {BATCH:,} rows, one thread",
        "pandas' hash_array of the same",
        "ms",
        None,
        pandas,
        _turns(lambda: hasher.rows(texts), rounds * TURNS),
    )
    return [line, thread], [Check("distinct keys or places that differ", wrong, 0)]


def _hash_by_pandas(batch: pa.RecordBatch) -> Any:
    columns = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
    return [pd.util.hash_array(column, categorize=False) for column in columns]


def _unique(rows: KeyRows) -> Any:
    return np.unique(rows.keys, return_inverse=True)


def _hashed(folder: str, rows: int, rounds: int) -> list[Line]:
    """Time transforms of a log in files, with reading; and reading alone."""
    from pyspark.ml.feature import FeatureHasher

    ours: list[float] = []
    theirs: list[float] = []
    reading: list[float] = []
    with local_spark("hashing", WORKERS, "2g") as spark:
        frame = spark.read.parquet(folder)
        hasher = KeyHasher(categoricalCols=list(IDS), bucketCols=list(NUMBERS))
        peer = FeatureHasher(inputCols=[*IDS, *NUMBERS], outputCol="features", numFeatures=SLOTS)
        for turn in range(rounds + 1):  # the first turn compiles Java's code
            found = [
                _seconds(lambda: _discard(hasher.transform(frame).select("keys", "values"))),
                _seconds(lambda: _discard(peer.transform(frame.fillna(0)).select("features"))),
                _seconds(lambda: _discard(frame.select(*IDS, *NUMBERS))),
            ]
            if turn:
                for figures, seconds in zip((ours, theirs, reading), found, strict=True):
                    figures.append(seconds * 1e6 / rows)
    return [
        Line("KeyHasher, Parquet to rows of keys", "pyspark.ml's FeatureHasher", "us a row", None, theirs, ours),
        Line("KeyHasher, Parquet to rows of keys", "reading the columns alone", "us a row", None, reading, ours),
    ]


def _discard(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _turns(call: Callable[[], object], count: int) -> list[float]:
    call()
    return [_seconds(call) * 1e3 for _ in range(count)]


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
