"""DeepFM's layers over slow links: gradients that leave while those below are computed, against one after the other.

Petuum's wait-free back-propagation. Each step's gradients of layers take so many bytes that they travel about as long
as they are computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.frame import Part, answer, tell
from benchmarks.links_part import WORKERS, Asked, moved, spark_and_fleet
from benchmarks.ml_part import Line
from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.options import DeepOptions
from ps2.algorithms.deep.shared_layers import SharedLayers
from ps2.algorithms.deep.trainer import DeepTable, train
from ps2.client.embedding_table import EmbeddingTable
from ps2.data.key_rows import KeyRows

FIELDS, KEYS, K = 26, 100_000, 16
HIDDEN = (400, 400, 400)
BATCH, STEPS = 4_096, 12
WAYS = {"one after the other": False, "wait-free": True}


class Keys:
    """Rows whose keys are numbers already."""

    def rows(self, batch: pa.RecordBatch, before: int = 0) -> KeyRows:
        keys = batch.column(batch.schema.get_field_index("keys"))
        return KeyRows.of(keys.flatten().to_numpy().reshape(len(keys), -1))


def measure(asked: Asked) -> Part:
    turns: dict[str, list[float]] = {way: [] for way in WAYS}
    sizes = Architecture("deepfm", K, FIELDS, FIELDS, HIDDEN)
    sent_mb = 0.0
    with spark_and_fleet(asked, "layers") as (spark, ps):
        frame = _frame(spark)
        for turn in range(asked.rounds + 1):
            for way, overlap in WAYS.items():
                before = moved()
                seconds = _train(ps, frame, sizes, overlap)
                sent_mb = (moved()[0] - before[0]) / 1e6 / (2 * STEPS)
                if turn:  # the first one compiles
                    turns[way].append(seconds)
                    tell(f"{way}: {seconds / STEPS:.3f} s a step")
        frame.unpersist()
    plain, wait_free = turns.values()
    line = Line(f"a step's {BATCH:,} rows", "gradients one after the other", "s", None, plain, wait_free)
    facts = {"layers": HIDDEN, "links": asked.rate, "workers": WORKERS, "MB sent a step": f"{sent_mb:.1f}"}
    return Part([line], facts=facts)


def _frame(spark: Any) -> Any:
    import pandas as pd

    rng = np.random.default_rng(0)
    count = BATCH * STEPS
    keys = list(rng.integers(0, KEYS, (count, FIELDS)))
    made = spark.createDataFrame(pd.DataFrame({"keys": keys, "label": rng.integers(0, 2, count).astype(float)}))
    frame = made.repartition(WORKERS).cache()
    frame.count()
    return frame


def _train(ps: Any, frame: Any, sizes: Architecture, overlap: bool) -> float:
    """Return the seconds of the second of two epochs."""
    layers = SharedLayers.new(sizes, sizes.initial(0))
    table = EmbeddingTable(sizes.width, "adagrad", zeroColumns=1, init="normal")
    count = BATCH * STEPS
    rows = DeepTable(frame, Keys(), "label", None, WORKERS, count, float(count))
    history = train(ps, rows, (sizes, layers, table), DeepOptions(epochs=2, batch=BATCH, overlap=overlap))
    layers.free()
    table.free()
    return history.seconds[-1]


if __name__ == "__main__":
    answer(Asked, measure)
