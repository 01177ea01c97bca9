"""DeepFM's layers over slow links: gradients that leave while those below are computed, against one after the other.

Petuum's wait-free back-propagation. Each step's gradients of layers take so many bytes that they travel about as long
as they are computed. Under SSP, also against layers that never leave a worker: no average of workers' layers can save
more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.frame import Part, answer, tell
from benchmarks.links_part import WORKERS, Asked, moved, spark_and_fleet
from benchmarks.ml_part import Line
from ps2.algorithms.deep.architecture import Architecture
from ps2.algorithms.deep.ops import step_of_gradient
from ps2.algorithms.deep.options import DeepOptions
from ps2.algorithms.deep.shared_layers import ROWS, WEIGHT, LayerStep, SharedLayers
from ps2.algorithms.deep.trainer import DeepTable, train
from ps2.client.embedding_table import EmbeddingTable
from ps2.data.key_rows import KeyRows

FIELDS, KEYS, K = 26, 100_000, 16
HIDDEN = (400, 400, 400)
BATCH, STEPS = 4_096, 12
WAYS = {
    "one after the other": DeepOptions(epochs=2, batch=BATCH, overlap=False),
    "wait-free": DeepOptions(epochs=2, batch=BATCH),
    # Where each worker takes steps of its own, the batch is the worker's.
    "staleness=1": DeepOptions(epochs=2, batch=BATCH // WORKERS, staleness=1),
    "staleness=1, layers stay": DeepOptions(epochs=2, batch=BATCH // WORKERS, staleness=1),
}


class Keys:
    """Rows whose keys are numbers already."""

    def rows(self, batch: pa.RecordBatch, before: int = 0) -> KeyRows:
        keys = batch.column(batch.schema.get_field_index("keys"))
        return KeyRows.of(keys.flatten().to_numpy().reshape(len(keys), -1))


class LayersThatStay:
    """Layers of a worker's own, which never travel; stands for ``SharedLayers``."""

    def __init__(self, layers: SharedLayers) -> None:
        self._layers = layers
        self._blocks: list[npt.NDArray[np.float32]] = []

    def forget_gradients(self) -> None:
        self._layers.forget_gradients()

    def pull(self) -> list[npt.NDArray[np.float32]]:
        shapes = [layer.shape for layer in self._layers.layers]
        if not self._blocks:
            self._blocks = [np.zeros((ROWS, weight.size), np.float32) for weight in self._layers.pull()]
        return [block[WEIGHT].reshape(shape).copy() for block, shape in zip(self._blocks, shapes, strict=True)]

    def step_with(self, number: int, gradient: npt.NDArray[np.float32], step: LayerStep, wait: bool = False) -> None:
        step_of_gradient(self._blocks[number], gradient.reshape(-1), lr=step.lr, decay=step.decay)


def measure(asked: Asked) -> Part:
    turns: dict[str, list[float]] = {way: [] for way in WAYS}
    sizes = Architecture("deepfm", K, FIELDS, FIELDS, HIDDEN)
    sent_mb: dict[str, float] = {}
    with spark_and_fleet(asked, "layers") as (spark, ps):
        frame = _frame(spark)
        for turn in range(asked.rounds + 1):
            for way in WAYS:
                before = moved()
                seconds = _train(ps, frame, sizes, way)
                sent_mb[way] = (moved()[0] - before[0]) / 1e6 / (2 * STEPS)
                if turn:  # the first one compiles
                    turns[way].append(seconds)
                    tell(f"{way}: {seconds / STEPS:.3f} s a step")
        frame.unpersist()
    plain, wait_free, stale, stay = turns.values()
    what = f"a step's {BATCH:,} rows"
    lines = [
        Line(what, "gradients one after the other", "s", None, plain, wait_free),
        Line(f"{what}, staleness=1", "staleness=0", "s", None, wait_free, stale),
        Line(f"{what}, layers that stay", "staleness=1", "s", None, stale, stay),
    ]
    mb = {f"MB sent a step, {way}": f"{sent:.1f}" for way, sent in sent_mb.items()}
    return Part(lines, facts={"layers": HIDDEN, "links": asked.rate, "workers": WORKERS, **mb})


def _frame(spark: Any) -> Any:
    import pandas as pd

    rng = np.random.default_rng(0)
    count = BATCH * STEPS
    keys = list(rng.integers(0, KEYS, (count, FIELDS)))
    made = spark.createDataFrame(pd.DataFrame({"keys": keys, "label": rng.integers(0, 2, count).astype(float)}))
    frame = made.repartition(WORKERS).cache()
    frame.count()
    return frame


def _train(ps: Any, frame: Any, sizes: Architecture, way: str) -> float:
    """Return the seconds of the second of two epochs."""
    layers = SharedLayers.new(sizes, sizes.initial(0))
    table = EmbeddingTable(sizes.width, "adagrad", zeroColumns=1, init="normal")
    count = BATCH * STEPS
    rows = DeepTable(frame, Keys(), "label", None, WORKERS, count, float(count))
    taken: Any = LayersThatStay(layers) if way == "staleness=1, layers stay" else layers
    history = train(ps, rows, (sizes, taken, table), WAYS[way])
    layers.free()
    table.free()
    return history.seconds[-1]


if __name__ == "__main__":
    answer(Asked, measure)
