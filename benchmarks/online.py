"""Online logistic regression from a stream beside Vowpal Wabbit's: rows a second, and progressive log loss.

    python -m benchmarks.online [--vw PYTHON]

The rows are generated clicks: 13 numbers and 26 ids, 10 million ids, which drift. Both sides read each row once,
predict it and learn it, with FTRL-Proximal and the same alpha and beta. Vowpal Wabbit reads a text file, made before,
whose numbers are intervals already; ours reads Parquet files through Spark, hashes strings and cuts numbers into
intervals. ``--vw`` is a Python that has vowpalwabbit (PyPI). docs/performance/online.md says how to read the figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark

from benchmarks.compared import print_compared
from benchmarks.frame import Check, Part, command, exit_code, machine, print_parts, publish, tell
from benchmarks.local_spark import start_spark
from benchmarks.ml_part import Line
from ps2 import PS2Context
from ps2.algorithms import OnlineLogisticRegression

SLOTS, FILES, FILES_A_BATCH, ALPHA, BETA, BITS = 2, 16, 4, 0.1, 1.0, 24
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


@command(
    click.option("--rounds", type=click.IntRange(1), default=1, help="Turns that the medians are of."),
    click.option("--rows", type=click.IntRange(10_000), default=1_000_000, help="Rows of the stream."),
    click.option("--batch", type=click.IntRange(100), default=16_384, help="Rows between two requests of a task."),
    click.option("--servers", type=click.IntRange(1), default=1, help="Servers of the fleet."),
    click.option("--vw", default=sys.executable, help="Python that has vowpalwabbit.", show_default=False),
    click.option("--strict", is_flag=True, help="Exit with 1 if a goal is missed, too."),
)
def main(
    rounds: int, rows: int, batch: int, servers: int, vw: str, strict: bool, form: str, output: Path | None
) -> None:
    """Compare a stream's training with Vowpal Wabbit's."""
    settings = {
        "spark.python.daemon.module": "ps2.run.daemon",
        "spark.driver.memory": "3g",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(batch),
        # Else Spark adds up the sizes of all columns after each row (docs/run.md).
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
    }
    theirs: list[tuple[float, float]] = []
    ours: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        _write(at, rows)
        spark = start_spark(f"local[{SLOTS}]", "benchmarks.online", settings)
        try:
            with PS2Context.getOrCreate(spark, servers=servers):
                for round_ in range(rounds):
                    theirs.append(_vw(vw, at))
                    ours.append(_stream(spark, at, at / f"checkpoint-{round_}", batch))
        finally:
            spark.stop()
    seconds = Line("stream of clicks", "Vowpal Wabbit", "s", GOAL, [s for s, _ in theirs], [s for s, _ in ours])
    loss = median(loss for _, loss in ours) / median(loss for _, loss in theirs)
    facts = {"rows": rows, "batch": batch, "servers": servers, "alpha": ALPHA, "beta": BETA, "VW's bits": BITS}
    part = Part([seconds], [Check("progressive log loss over Vowpal Wabbit's", loss, MAX_LOSS)], facts)
    report = {
        "machine": machine(pyspark=pyspark.__version__),
        "rounds": rounds,
        "parts": {"online": part.as_json()},
    }
    publish(report, form, output, lambda: print_parts(report, print_compared))
    sys.exit(exit_code(report, strict))


def _vw(python: str, folder: Path) -> tuple[float, float]:
    """Return seconds and progressive log loss of Vowpal Wabbit."""
    options = f"--loss_function logistic --ftrl --ftrl_alpha {ALPHA} --ftrl_beta {BETA} -b {BITS} --quiet"
    done = subprocess.run(
        [python, "-c", VW, f"-d {folder / 'train.vw'} {options}"], capture_output=True, text=True, check=True
    )
    seconds, loss, _ = json.loads(done.stdout.splitlines()[-1])
    tell(f"Vowpal Wabbit: {seconds:.2f} s, log loss {loss:.5f}")
    return seconds, loss


def _stream(spark: Any, folder: Path, checkpoint: Path, batch: int) -> tuple[float, float]:
    """Return seconds and progressive log loss of ours: from the start of the query to its end, with the snapshots."""
    numbers, ids = _columns()
    estimator = OnlineLogisticRegression(
        categoricalCols=ids, bucketCols=numbers, batchSize=batch, alpha=ALPHA, beta=BETA
    )
    files = folder / "in" / "day=0"
    schema = spark.read.parquet(str(files)).schema
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", FILES_A_BATCH).parquet(str(files))
    began_s = time.monotonic()
    training = estimator.fitStream(rows, str(checkpoint), trigger={"availableNow": True})
    training.awaitTermination()
    seconds = time.monotonic() - began_s
    found = training.lastProgress
    assert found is not None
    tell(f"ours: {seconds:.2f} s, log loss {found.total.logLoss:.5f}; the last batch: {found}, {found.taskSeconds}")
    training.model.free()
    return seconds, found.total.logLoss


def _columns() -> tuple[list[str], list[str]]:
    generated = _generated()
    return list(generated.NUMBERS), list(generated.IDS)


def _generated() -> Any:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
    return import_module("generated_clicks")


def _write(folder: Path, rows: int) -> None:
    """Write the rows as Parquet files, and as Vowpal Wabbit's text."""
    numbers, ids = _columns()
    with open(folder / "train.vw", "w") as text:
        for path in _generated().ClickLog().write(folder / "in", 0, rows, FILES):
            table = pq.read_table(path).combine_chunks()
            labels = pa.array(np.where(table["label"].to_numpy() > 0, "1 |", "-1 |"))
            parts = [labels]
            for name in numbers:
                interval = pc.cast(pc.floor(pc.log2(pc.add(pc.cast(table[name], "float64"), 1.0))), "string")
                parts.append(pc.fill_null(pc.binary_join_element_wise(f"{name}_", interval, ""), ""))
            parts += [pc.binary_join_element_wise(f"{name}_", table[name], "") for name in ids]
            lines = pc.binary_join_element_wise(*[_whole(part) for part in parts], " ")
            text.write("\n".join(lines.to_pylist()) + "\n")
    tell(f"{rows:,} rows written")


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


if __name__ == "__main__":
    main()
