"""A driver whose model learns from a stream of files and counts each key's rows; it prints what it has learned.

``python stream_app.py folder model servers workers batches replicas``: files are in ``folder/in``, a batch has a file
for each worker, and there is a snapshot after so many batches. Models: "linear"; "sums", whose weights stay 0, so that
what it adds up does not depend on the order; "deep". It goes on where an earlier one with the same folder was. At
SIGUSR1 it stops Spark's query, and starts another one. At the end it writes ``folder/result.npz``: how often each key
came and was counted, the model with its optimizer's state, and the tally of all rows.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FIELDS, IDS = 5, 40
# Of a worker for 50 rows; slow while somebody is left to harm, so that tasks are met on any machine.
PACE_S, SLOW_PACE_S = 0.05, 0.6
# A file in the stream's folder while so.
HARM_LEFT = "harm-left"
# More than the sizes of files with as many rows differ by.
PADDING_BYTES = 4096
SCHEMA = "label double, keys array<bigint>"
SNAPSHOTS = "ps2/snapshots"


def write_rows(folder, files, rows):
    """Write the files of a stream, the largest first: a batch that Spark plans anew may have two, and reads them so."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        rng = np.random.default_rng(number)
        ids = rng.integers(0, IDS, (rows, FIELDS)) + np.arange(FIELDS) * 10**12
        labels = (rng.random(rows) < 0.3).astype(float)
        table = pa.table({"label": labels, "keys": pa.array(list(ids))})
        table = table.replace_schema_metadata({"padding": "x" * (files - number) * PADDING_BYTES})
        pq.write_table(table, folder / f"{number:04}.parquet")
        # Spark reads files in the order of their times.
        os.utime(folder / f"{number:04}.parquet", (10**9 + number, 10**9 + number))


def table_of(folder):
    """Return the rows of all files, with the keys of each field as a column, too."""
    table = pa.concat_tables([pq.read_table(path) for path in sorted(folder.iterdir())])
    keys = table["keys"].combine_chunks().flatten().to_numpy().reshape(-1, FIELDS)
    for field in range(FIELDS):
        table = table.append_column(f"f{field}", pa.array(keys[:, field]))
    return table


def run(folder, kind, servers, workers, snapshot_batches, replicas):
    from faults import processes, stream_app
    from faults.sparks import sparking
    from pyspark import cloudpickle

    from ps2 import EmbeddingTable, PS2Context
    from ps2.algorithms import DeepFM, OnlineLogisticRegression
    from ps2.algorithms.online.program import number_rows
    from ps2.errors import NotFoundError

    @dataclass(frozen=True)
    class Counted:
        """The program of the model; it counts the rows of each key, too."""

        program: object
        counts: EmbeddingTable

        def advance(self, now_s):
            self.program.advance(now_s)

        def learn(self, found):
            time.sleep(SLOW_PACE_S if (folder / HARM_LEFT).exists() else PACE_S)
            margins = self.program.learn(found)
            rows = number_rows(found.rows, intercept=False)
            touched = np.bincount(rows.inverse, minlength=len(rows.keys)).astype(np.float32)
            self.counts.pushDistinct(rows.keys, -touched[:, None], wait=False)
            return margins

    class Counting(DeepFM if kind == "deep" else OnlineLogisticRegression):
        def _model_factory(self, frame, given):
            found = super()._model_factory(frame, given)
            return replace(found, program=lambda model: Counted(found.program(model), self._counts()))

        def _counts(self):
            like = EmbeddingTable(1, "sgd", lr=1.0, init="zeros")
            try:
                counts = EmbeddingTable.existing(PS2Context.getActive().vector("counts").matrix(), like.settings)
            except NotFoundError:
                counts = EmbeddingTable(1, "sgd", lr=1.0, init="zeros", name="counts")
            like.free()
            self.counts = counts
            return counts

    def state_of(model, keys):
        if kind == "deep":
            state = [model.table.matrix.pull(columns=keys), *model.fitted.layers.state()]
            return np.concatenate([one.ravel() for one in state])
        return model.table.matrix.pull(columns=keys)

    cloudpickle.register_pickle_by_value(stream_app)
    cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    with sparking("local[2,4]") as spark:
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", workers).parquet(str(folder / "in"))
        settings = {"batchSize": 50, "numServers": servers, "numWorkers": workers}
        if kind == "deep":
            stream = stream.selectExpr("label", *(f"keys[{field}] as f{field}" for field in range(FIELDS)))
            columns = [f"f{field}" for field in range(FIELDS)]
            estimator = Counting(**settings, categoricalCols=columns, factorSize=4, hiddenLayers=[8])
        else:
            estimator = Counting(**settings, l1=1e9 if kind == "sums" else 0.0)
        if replicas:
            PS2Context.getOrCreate(spark, servers, replicas=replicas)

        def stop_queries():
            for query in spark.streams.active:
                query.stop()

        # In a thread, which has its own connection to Java: a second signal would break into the call of the first.
        signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=stop_queries).start())

        def said(progress):
            # The test may kill one of these servers: with copies, only once all shards have theirs again.
            ps = PS2Context.getActive()
            is_behind = replicas and any(one.status is None or one.status.behind for one in ps.status().servers)
            servers = [] if is_behind else processes.servers_of(ps)
            print("batch", progress.batch, progress.rows, *servers, flush=True)

        rows, learned = table_of(folder / "in"), 0
        while learned < rows.num_rows:
            training = estimator.fitStream(
                *(stream, str(folder / "checkpoint")),
                snapshotEvery=f"{snapshot_batches} batches",
                trigger={"availableNow": True},
                onProgress=said,
            )
            training.awaitTermination()
            learned = training._learner.position.tally[0]
        hashed = estimator._hasher().rows(rows.combine_chunks().to_batches()[0])
        keys, came = np.unique(hashed.keys, return_counts=True)
        found = {"tally": training._learner.position.tally, "keys": keys, "came": came}
        found |= {"counts": estimator.counts.pull(keys)[:, 0], "state": state_of(training.model, keys)}
        print("done", training.restarts, training.learned, flush=True)
        np.savez(folder / "aside.npz", **found)
        os.replace(folder / "aside.npz", folder / "result.npz")
        PS2Context.getActive().stop()


if __name__ == "__main__":
    from faults.sparks import ENVIRONMENT

    os.environ.update(ENVIRONMENT)
    run(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:7]))
