"""A driver whose model learns from a stream of files and counts each key's rows; it prints what it has learned.

``python stream_app.py folder servers workers batches``: files are in ``folder/in``, and there is a snapshot after so
many batches. It goes on where an earlier one with the same folder was. At SIGUSR1 it stops Spark's query, and starts
another one. At the end it writes ``folder/result.npz``: keys, their counts, their weights, and the tally of all rows.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FIELDS, IDS = 5, 40
# Of a worker for 50 rows: most kills come in the middle of a task.
PACE_S = 0.1
SCHEMA = "label double, keys array<bigint>"
SNAPSHOTS = "ps2/snapshots"


def write_rows(folder, files, rows):
    """Write the files of a stream."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        rng = np.random.default_rng(number)
        ids = rng.integers(0, IDS, (rows, FIELDS)) + np.arange(FIELDS) * 10**12
        labels = (rng.random(rows) < 0.3).astype(float)
        table = pa.table({"label": labels, "keys": pa.array(list(ids))})
        pq.write_table(table, folder / f"{number:04}.parquet")
        # Spark reads files in the order of their times.
        os.utime(folder / f"{number:04}.parquet", (10**9 + number, 10**9 + number))


def expected_counts(folder):
    """Return the keys of all files, ascending, and how often each comes."""
    keys = np.concatenate([pq.read_table(path)["keys"].combine_chunks().flatten() for path in sorted(folder.iterdir())])
    return np.unique(keys, return_counts=True)


def run(folder, servers, workers, snapshot_batches):
    from faults import stream_app
    from faults.sparks import sparking
    from pyspark import cloudpickle

    from ps2 import EmbeddingTable, PS2Context
    from ps2.algorithms import OnlineLogisticRegression
    from ps2.algorithms.online.program import numbered
    from ps2.errors import NotFoundError

    @dataclass(frozen=True)
    class Counted:
        """The program of the model; it counts the rows of each key, too."""

        program: object
        counts: EmbeddingTable

        def advance(self, now_s):
            self.program.advance(now_s)

        def learn(self, found):
            time.sleep(PACE_S)
            margins = self.program.learn(found)
            rows = numbered(found.rows, intercept=False)
            touched = np.bincount(rows.places, minlength=len(rows.keys)).astype(np.float32)
            self.counts.push_distinct(rows.keys, -touched[:, None], wait=False)
            return margins

    class Counting(OnlineLogisticRegression):
        def _program(self, model):
            like = EmbeddingTable(1, "sgd", lr=1.0, init="zeros")
            try:
                counts = EmbeddingTable.known(PS2Context.getActive().vector("counts").matrix(), like.settings)
            except NotFoundError:
                counts = EmbeddingTable(1, "sgd", lr=1.0, init="zeros", name="counts")
            like.free()
            self.counts = counts
            return Counted(super()._program(model), counts)

    cloudpickle.register_pickle_by_value(stream_app)
    cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    with sparking("local[2,4]") as spark:
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
        estimator = Counting(batchSize=50, numServers=servers, numWorkers=workers)

        signal.signal(signal.SIGUSR1, lambda *_: [query.stop() for query in spark.streams.active])

        def said(progress):
            print("batch", progress.batch, progress.rows, *PS2Context.getActive()._fleet.launcher.pids(), flush=True)

        keys, counts = expected_counts(folder / "in")
        rows, learned = counts.sum() / FIELDS, 0
        while learned < rows:
            training = estimator.fitStream(
                *(stream, str(folder / "checkpoint")),
                snapshotEvery=f"{snapshot_batches} batches",
                trigger={"availableNow": True},
                onProgress=said,
            )
            training.awaitTermination()
            learned = training._learner.position.tally[0]
        total = training._learner.position.tally
        found = {"counts": estimator.counts.pull(keys)[:, 0], "weights": training.model.weights(keys)[:, 0]}
        print("done", training.restarts, training.learned, flush=True)
        np.savez(folder / "aside.npz", keys=keys, tally=total, **found)
        os.replace(folder / "aside.npz", folder / "result.npz")
        PS2Context.getActive().stop()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from faults.sparks import ENVIRONMENT

    os.environ.update(ENVIRONMENT)
    run(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
