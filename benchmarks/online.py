"""Online logistic regression from a stream beside Vowpal Wabbit's: rows a second, and progressive log loss.

The rows are generated clicks: 13 numbers and 26 ids, 10 million ids, which drift. Both sides read each row once,
predict it and learn it, with FTRL-Proximal and the same alpha and beta. Vowpal Wabbit reads a text file, made before,
whose numbers are intervals already; ours reads Parquet files through Spark, hashes strings and cuts numbers into
intervals. docs/performance/online.md says how to read the figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import frame
from benchmarks.frame import Benchmark, Check, Line, Part, SkippedError, option, tell
from benchmarks.local_spark import DAEMON, spark_and_servers
from examples.generated_clicks import IDS, NUMBERS, ClickLog
from ps2.algorithms import OnlineLogisticRegression

FILES, FILES_A_BATCH, ALPHA, BETA, BITS = 16, 4, 0.1, 1.0, 24
# Spark's default writes its checkpoint through a class of Hadoop's that starts processes (readlink) for each file in a
# local folder.
FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
# Times of VW's that ours may take, and how much larger its log loss may be.
GOAL, MAX_LOSS = 0.5, 1.005
VW = """
import json, sys, time
from vowpalwabbit import Workspace
began_s = time.monotonic()
vw = Workspace(sys.argv[1])
seconds = time.monotonic() - began_s
print(json.dumps([seconds, vw.get_sum_loss() / vw.get_weighted_examples(), vw.get_weighted_examples()]))
"""


@dataclass(frozen=True)
class Args(frame.Args):
    rounds: int = option(1, "Turns that the medians are of.", least=1)
    rows: int = option(1_000_000, "Rows of the stream.", least=10_000)
    batch: int = option(16_384, "Rows between two requests of a task.", least=100)
    servers: int = option(1, "Servers of the fleet.", least=1)
    vw: str = option(sys.executable, "Python that has vowpalwabbit (PyPI).")


def online(args: Args) -> Part:
    """Compare a stream's training with Vowpal Wabbit's."""
    settings = {
        **DAEMON,
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(args.batch),
        # Else Spark adds up the sizes of all columns after each row (docs/run.md).
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
    }
    if subprocess.run([args.vw, "-c", "import vowpalwabbit"], stderr=subprocess.DEVNULL, check=False).returncode:
        raise SkippedError(f"no vowpalwabbit in {args.vw}: --vw names a Python that has it")
    turns: list[tuple[tuple[float, float], tuple[float, float]]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder, args.rows)
        with spark_and_servers("online", "3g", settings=settings, servers=args.servers) as (spark, _):
            for turn in range(args.rounds):
                ours = _stream(spark, folder, folder / f"checkpoint-{turn}", args.batch)
                turns.append((_vw(args.vw, folder), ours))
    theirs_s, ours_s = ([turn[side][0] for turn in turns] for side in (0, 1))
    their_loss, our_loss = (median(turn[side][1] for turn in turns) for side in (0, 1))
    check = Check("progressive log loss over Vowpal Wabbit's", our_loss / their_loss, MAX_LOSS)
    facts = {"alpha": ALPHA, "beta": BETA, "VW's bits": BITS}
    return Part([Line("stream of clicks", "Vowpal Wabbit", "s", GOAL, theirs_s, ours_s)], [check], facts)


def _vw(python: str, folder: Path) -> tuple[float, float]:
    """Return seconds and progressive log loss of Vowpal Wabbit."""
    options = f"--loss_function logistic --ftrl --ftrl_alpha {ALPHA} --ftrl_beta {BETA} -b {BITS} --quiet"
    finished = subprocess.run(
        [python, "-c", VW, f"-d {folder / 'train.vw'} {options}"], capture_output=True, text=True, check=True
    )
    seconds, loss, _ = json.loads(finished.stdout.splitlines()[-1])
    tell(f"Vowpal Wabbit: {seconds:.2f} s, log loss {loss:.5f}")
    return seconds, loss


def _stream(spark: Any, folder: Path, checkpoint: Path, batch: int) -> tuple[float, float]:
    """Return seconds and progressive log loss of ours: from the start of the query to its end, with the snapshots."""
    estimator = OnlineLogisticRegression(
        categoricalCols=list(IDS), bucketCols=list(NUMBERS), batchSize=batch, alpha=ALPHA, beta=BETA
    )
    files = folder / "in" / "day=0"
    schema = spark.read.parquet(str(files)).schema
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES_A_BATCH).parquet(str(files))
    began_s = time.monotonic()
    training = estimator.fitStream(rows, str(checkpoint), trigger={"availableNow": True})
    training.awaitTermination()
    seconds = time.monotonic() - began_s
    result = training.lastProgress
    assert result is not None
    tell(f"ours: {seconds:.2f} s, log loss {result.total.logLoss:.5f}; the last batch: {result}, {result.taskSeconds}")
    training.model.free()
    return seconds, result.total.logLoss


def _write(folder: Path, rows: int) -> None:
    """Write the rows as Parquet files, and as Vowpal Wabbit's text."""
    with open(folder / "train.vw", "w") as text:
        for path in ClickLog().write(folder / "in", 0, rows, FILES):
            table = pq.read_table(path).combine_chunks()
            labels = pa.array(np.where(table["label"].to_numpy() > 0, "1 |", "-1 |"))
            parts = [labels]
            for name in NUMBERS:
                interval = pc.cast(pc.floor(pc.log2(pc.add(pc.cast(table[name], "float64"), 1.0))), "string")
                parts.append(pc.fill_null(pc.binary_join_element_wise(f"{name}_", interval, ""), ""))
            parts += [pc.binary_join_element_wise(f"{name}_", table[name], "") for name in IDS]
            lines = pc.binary_join_element_wise(*[_whole(part) for part in parts], " ")
            text.write("\n".join(lines.to_pylist()) + "\n")
    tell(f"{rows:,} rows written")


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


BENCHMARK = Benchmark("online", Args, {"online": online})

if __name__ == "__main__":
    BENCHMARK.main()
