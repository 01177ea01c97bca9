"""DeepFM on servers beside the same model in PyTorch, in one process with two threads.

``--torch-python`` is a Python that has torch. docs/performance/deep.md says how to read it.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import frame
from benchmarks.deep_torch import auc
from benchmarks.frame import Benchmark, Check, Line, Part, SkippedError, option, take_turns
from benchmarks.local_spark import WORKERS, start_spark
from ps2 import PS2Context

GOAL, CLOSE = 0.5, 0.002
PYTORCH = "PyTorch"
STALENESS = {"one step of all workers": 0, "steps of their own": 1}
SETTINGS = {
    "k": 16,
    "hidden": (128, 64),
    "dropout": 0.2,
    "batch": 1024,
    "epochs": 7,
    "lr": 0.001,
    "table_lr": 0.05,
    "init_scale": 0.01,
    "threads": 2,
    "sparse": False,
}


@dataclass(frozen=True)
class Args(frame.Args):
    torch_python: str = option(os.environ.get("TORCH_PYTHON", ""), "A Python that has torch.")


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


def frappe(args: Args) -> Part:
    """Compare on frappe: ten categorical fields, 5,382 ids; the validation file to train, the test file to test."""
    (train, train_labels), (test, test_labels) = (
        _read(Path(args.data_dir) / f"frappe.{name}.libfm") for name in ("validation", "test")
    )
    return _compared(args, Clicks(train, test, train_labels, test_labels), SETTINGS)


def movielens(args: Args) -> Part:
    """Compare on MovieLens 1M: ratings of 4 and 5 against the others; a tenth of the rows to test."""
    with gzip.open(Path(args.data_dir) / "ml-1m.ratings.txt.gz") as file:
        rows = np.loadtxt(file, np.int64)
    films = rows[:, 0].max() + 1
    keys, labels = np.stack([rows[:, 0], rows[:, 1] + films], axis=1), (rows[:, 2] >= 4).astype(np.int8)
    order = np.random.default_rng(0).permutation(len(rows))
    train, test = order[len(order) // 10 :], order[: len(order) // 10]
    clicks = Clicks(keys[train], keys[test], labels[train], labels[test])
    return _compared(args, clicks, {**SETTINGS, "batch": 4096, "epochs": 3})


def _read(path: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int8]]:
    rows = [line.split() for line in path.read_text().splitlines()]
    keys = np.array([[int(part.partition(":")[0]) for part in row[1:]] for row in rows], np.int64)
    return keys, np.array([float(row[0]) > 0 for row in rows], np.int8)


def _compared(args: Args, clicks: Clicks, settings: Mapping[str, Any]) -> Part:
    """Train in PyTorch and on servers by turns; seconds of a row are those of the median epoch."""
    if not Path(args.torch_python).is_file():
        raise SkippedError("no PyTorch: --torch-python names a Python that has it")
    rows = len(clicks.train)
    aucs: dict[str, list[float]] = {way: [] for way in (PYTORCH, *STALENESS)}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/rows.npz", keys=clicks.keys, **vars(clicks))
        _write(clicks, folder)
        spark = start_spark(f"local[{WORKERS}]", "deep", {"spark.driver.memory": args.memory})

        def pytorch() -> float:
            own = {**settings, "seed": len(aucs[PYTORCH])}
            Path(f"{folder}/settings.json").write_text(json.dumps(own))
            program = [
                args.torch_python,
                "-m",
                "benchmarks.deep_torch",
                f"{folder}/rows.npz",
                f"{folder}/settings.json",
            ]
            home = Path(__file__).resolve().parents[1]
            finished = subprocess.run(program, stdout=subprocess.PIPE, check=True, cwd=home)
            result = json.loads(finished.stdout)
            aucs[PYTORCH].append(result["auc"][-1])
            return float(np.median(result["seconds"])) / rows

        def ours(way: str) -> float:
            own = {**settings, "seed": len(aucs[way])}
            with PS2Context.getOrCreate(spark, servers=1):
                seconds, value = _fit(spark, folder, clicks, own, STALENESS[way])
            aucs[way].append(value)
            return seconds / rows

        variants: dict[str, Callable[[], float]] = {PYTORCH: pytorch, **{way: partial(ours, way) for way in STALENESS}}
        turns = take_turns(variants, args.rounds, warm_ups=0)
        spark.stop()
    rates = {way: [1 / one for one in taken] for way, taken in turns.items()}
    lines = [Line(way, "PyTorch, 2 threads", "rows/s", GOAL, rates[PYTORCH], rates[way]) for way in STALENESS]
    medians = {way: float(np.median(values)) for way, values in aucs.items()}
    checks = [Check(f"AUC, {way}: below PyTorch's", medians[PYTORCH] - medians[way], CLOSE) for way in STALENESS]
    facts = {"rows": rows, **{f"AUC {way}": value for way, value in medians.items()}}
    return Part(lines, checks, {**facts, **{name: settings[name] for name in ("k", "hidden", "batch", "epochs")}})


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
    result = model.transform(spark.read.parquet(f"{folder}/test.parquet")).select("label", "probability").collect()
    seconds = float(np.median(model.summary.stepSeconds))
    model.free()
    return seconds, auc(np.array([row[0] for row in result]), np.array([row[1][1] for row in result]))


BENCHMARK = Benchmark(
    "deep",
    Args,
    {"frappe": frappe, "movielens": movielens},
    {"frappe": "frappe.validation.libfm and frappe.test.libfm", "movielens": "ml-1m.ratings.txt.gz"},
)

if __name__ == "__main__":
    BENCHMARK.main()
