"""What the parts of ``benchmarks.deep`` share: the same rows and settings for PyTorch and for PS2, turn by turn."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.deep_auc import auc
from benchmarks.frame import Check, Part, tell
from benchmarks.local_spark import start_spark
from benchmarks.ml_part import Line
from ps2 import PS2Context

WORKERS = 2
GOAL, CLOSE = 0.5, 0.002
STALENESS = {"one step of all workers": 0, "steps of their own": 1}


@dataclass(frozen=True)
class Asked:
    """What to measure.

    Attributes:
        data_dir: folder of the data.
        rounds: turns that the medians are of.
        memory: of Spark's JVM.
    """

    data_dir: str
    rounds: int
    memory: str


@dataclass(frozen=True, eq=False)
class Clicks:
    """Rows of as many keys each, numbered from 0, and labels.

    Attributes:
        train, test: int64, shape (n, fields).
        train_labels, test_labels: 0 or 1.
    """

    train: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]
    train_labels: npt.NDArray[np.int8]
    test_labels: npt.NDArray[np.int8]

    @property
    def keys(self) -> int:
        return int(max(self.train.max(), self.test.max())) + 1


def compare(asked: Asked, name: str, clicks: Clicks, settings: Mapping[str, Any]) -> Part:
    """Train in PyTorch and on servers by turns.

    Args:
        settings: those of ``benchmarks/deep_torch.py``.
    """
    python = os.environ.get("TORCH_PYTHON", "")
    if not Path(python).is_file():
        tell("no PyTorch: TORCH_PYTHON names a Python that has it")
        return Part()
    rows = len(clicks.train)
    theirs: list[float] = []
    ours: dict[str, list[float]] = {way: [] for way in STALENESS}
    aucs: dict[str, list[float]] = {"PyTorch": [], **{way: [] for way in STALENESS}}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/rows.npz", keys=clicks.keys, **vars(clicks))
        _write(clicks, folder)
        spark = start_spark(f"local[{WORKERS}]", f"benchmarks.deep_{name}", {"spark.driver.memory": asked.memory})
        try:
            for turn in range(asked.rounds):
                of_turn = {**settings, "seed": turn}
                Path(f"{folder}/asked.json").write_text(json.dumps(of_turn))
                command = [python, "-m", "benchmarks.deep_torch", f"{folder}/rows.npz", f"{folder}/asked.json"]
                home = Path(__file__).resolve().parents[1]
                done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=home)
                found = json.loads(done.stdout)
                theirs.append(float(np.median(found["seconds"])) / rows)
                aucs["PyTorch"].append(found["auc"][-1])
                tell(f"PyTorch: {1 / theirs[-1]:,.0f} rows/s, AUC {aucs['PyTorch'][-1]:.4f}")
                with PS2Context.getOrCreate(spark, servers=1):
                    for way, staleness in STALENESS.items():
                        seconds, value = _fit(spark, folder, clicks, of_turn, staleness)
                        ours[way].append(seconds / rows)
                        aucs[way].append(value)
                        tell(f"{way}: {rows / seconds:,.0f} rows/s, AUC {value:.4f}")
        finally:
            spark.stop()
    lines = [Line(f"{name}: {way}", "PyTorch, 2 threads", "s/row", GOAL, theirs, found) for way, found in ours.items()]
    medians = {way: float(np.median(found)) for way, found in aucs.items()}
    checks = [Check(f"AUC, {way}", medians["PyTorch"] - medians[way], CLOSE) for way in STALENESS]
    facts = {"rows": f"{rows:,}", "workers": WORKERS, **{f"AUC {way}": f"{v:.4f}" for way, v in medians.items()}}
    return Part(lines, checks, facts={**facts, **{k: settings[k] for k in ("k", "hidden", "batch", "epochs")}})


def _write(clicks: Clicks, folder: str) -> None:
    for name, keys, labels in (
        ("train", clicks.train, clicks.train_labels),
        ("test", clicks.test, clicks.test_labels),
    ):
        ends = np.arange(len(keys) + 1, dtype=np.int32) * keys.shape[1]
        lists = pa.ListArray.from_arrays(pa.array(ends), pa.array(keys.reshape(-1)))
        pq.write_table(pa.table({"keys": lists, "label": labels.astype(float)}), f"{folder}/{name}.parquet")


def _fit(spark: Any, folder: str, clicks: Clicks, settings: Mapping[str, Any], staleness: int) -> tuple[float, float]:
    """Return the median seconds of an epoch, and the AUC of the test rows."""
    from ps2.algorithms import DeepFM

    estimator = DeepFM(
        keysCol="keys",
        keysPerRow=clicks.train.shape[1],
        factorSize=settings["k"],
        hiddenLayers=list(settings["hidden"]),
        dropoutRate=settings["dropout"],
        batchSize=settings["batch"],
        maxIter=settings["epochs"],
        stepSize=settings["lr"],
        optimizer="adagrad",
        embeddingStepSize=settings["table_lr"],
        initStd=settings["init_scale"],
        staleness=staleness,
        seed=settings["seed"],
        numWorkers=WORKERS,
    )
    model = estimator.fit(spark.read.parquet(f"{folder}/train.parquet"))
    found = model.transform(spark.read.parquet(f"{folder}/test.parquet")).select("label", "probability").collect()
    seconds = float(np.median(model.summary.stepSeconds))
    model.free()
    return seconds, auc(np.array([row[0] for row in found]), np.array([row[1][1] for row in found]))
