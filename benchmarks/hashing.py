"""Columns of a generated click log to rows of keys, against pyspark.ml's FeatureHasher; distinct keys against NumPy's.

docs/performance/online.md says how to read it.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from benchmarks import frame
from benchmarks.frame import Benchmark, Check, Line, Pair, Part, option, seconds_of, take_turns
from benchmarks.local_spark import WORKERS, start_spark
from examples.generated_clicks import IDS, NUMBERS, ClickLog
from ps2.algorithms.feature import KeyHasher
from ps2.data.hashing import Field, FieldHasher

# Rows that a worker pushes at once; slots of FeatureHasher, by default.
BATCH, SLOTS = 8192, 1 << 18


@dataclass(frozen=True)
class Args(frame.Args):
    rows: int = option(500_000, "Rows of the log.", least=BATCH)
    ids: int = option(10_000_000, "Distinct ids of the log at a time.", least=1)


def hashing(args: Args) -> Part:
    """Compare hashing with FeatureHasher's, and distinct keys with numpy.unique's."""
    log = ClickLog(ids=args.ids)
    batch = next(log.day(0, BATCH))
    rows = FieldHasher((*map(Field.categorical, IDS), *map(Field.buckets, NUMBERS))).rows(batch)
    texts = batch.select(IDS)
    hasher = FieldHasher(tuple(map(Field.categorical, IDS)))
    wrong = sum(int((a != b).sum()) for a, b in zip(rows.distinct(), _unique(rows.keys), strict=True))
    pairs = [
        Pair(f"distinct keys of {BATCH:,} rows", "numpy.unique", "ms", None,
             lambda _: _unique(rows.keys), lambda _: rows.distinct()),
        Pair(f"keys of 26 strings, {BATCH:,} rows, one thread", "pandas' hash_array of the same", "ms", None,
             lambda _: _hash_by_pandas(texts), lambda _: hasher.rows(texts)),
    ]  # fmt: skip
    lines = [pair.measure(5 * args.rounds) for pair in pairs]
    with tempfile.TemporaryDirectory() as folder:
        log.write(folder, 0, args.rows, files=WORKERS)
        lines += _from_files(folder, args)
    checks = [Check("distinct keys or places that differ", wrong, 0)]
    return Part(lines, checks, {"fields": len(IDS) + len(NUMBERS)})


def _unique(keys: Any) -> Any:
    return np.unique(keys, return_inverse=True)


def _hash_by_pandas(batch: pa.RecordBatch) -> Any:
    columns = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
    return [pd.util.hash_array(column, categorize=False) for column in columns]


def _from_files(folder: str, args: Args) -> list[Line]:
    """Time transforms of a log in files, with reading; and reading alone."""
    from pyspark.ml.feature import FeatureHasher

    spark = start_spark(f"local[{WORKERS}]", "hashing")
    rows = spark.read.parquet(folder)
    hasher = KeyHasher(categoricalCols=list(IDS), bucketCols=list(NUMBERS))
    peer = FeatureHasher(inputCols=[*IDS, *NUMBERS], outputCol="features", numFeatures=SLOTS)
    frames = {
        "KeyHasher": hasher.transform(rows).select("keys", "values"),
        "pyspark.ml's FeatureHasher": peer.transform(rows.fillna(0)).select("features"),
        "reading the columns alone": rows.select(*IDS, *NUMBERS),
    }

    def microseconds(one: Any) -> float:
        return 1e6 / args.rows * seconds_of(one.write.format("noop").mode("overwrite").save)

    turns = take_turns({name: partial(microseconds, one) for name, one in frames.items()}, args.rounds)
    spark.stop()
    ours = turns.pop("KeyHasher")
    what = "KeyHasher, Parquet to rows of keys"
    return [Line(what, name, "us a row", None, theirs, ours) for name, theirs in turns.items()]


BENCHMARK = Benchmark("hashing", Args, {"hashing": hashing})

if __name__ == "__main__":
    BENCHMARK.main()
