"""Deep models on servers beside the same models in PyTorch, in one process with two threads.

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

GOAL, CLOSE, SAME = 0.5, 0.002, 0.001
PYTORCH, ABSENT = "PyTorch", -1
FRAPPE_FILES = "frappe.validation.libfm and frappe.test.libfm"
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


# The estimators with an interaction: the kind, the estimator, and its own settings.
INTERACTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "dcn": ("DCNv2", {"crossLayers": 3}),
    "xdeepfm": ("XDeepFM", {"cinLayers": [16, 16]}),
    "autoint": ("AutoInt", {"interactingLayers": 2, "numHeads": 2, "headSize": 8}),
}
# Smaller than above, and without dropout, whose random numbers differ.
QUALITY = {**SETTINGS, "k": 8, "hidden": (64, 32), "dropout": 0.0, "epochs": 3, "threads": 1}


@dataclass(frozen=True)
class Args(frame.Args):
    torch_python: str = option(os.environ.get("TORCH_PYTHON", ""), "A Python that has torch.")


@dataclass(frozen=True, eq=False)
class Clicks:
    """Rows of as many keys each, numbered from 0, and labels.

    Attributes:
        train, test: int64, shape (n, fields).
        train_labels, test_labels: 0 or 1.
        history: the first column of a history, whose candidate is the column before it; 0: there is none. Histories
            that are shorter than others end with ``ABSENT``.
    """

    train: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]
    train_labels: npt.NDArray[np.int8]
    test_labels: npt.NDArray[np.int8]
    history: int = 0

    @property
    def columns(self) -> dict[str, Any]:
        """The params of an estimator that name the columns of the files."""
        if not self.history:
            return {"keysCol": "keys", "keysPerRow": self.train.shape[1]}
        names = [f"field{index}" for index in range(self.history)]
        return {"categoricalCols": names, "historyCols": {"history": names[-1]}}

    @property
    def keys(self) -> int:
        return int(max(self.train.max(), self.test.max())) + 1


def frappe(args: Args) -> Part:
    """Compare on frappe: ten categorical fields, 5,382 ids; the validation file to train, the test file to test."""
    return _compared(args, _frappe(args), SETTINGS)


def interactions_frappe(args: Args) -> Part:
    """Compare the AUC of models with an interaction on frappe."""
    return _quality(args, _frappe(args), INTERACTIONS)


def interactions_generated(args: Args) -> Part:
    """Compare their AUC on a day of ``examples/generated_clicks.py`` and the next one: 26 fields of ids."""
    from examples.generated_clicks import IDS, LABEL, ClickLog

    log, parts = ClickLog(ids=20_000), []
    for day, rows in ((0, 40_000), (1, 20_000)):
        parts.append(pa.Table.from_batches(log.day(day, rows)))
    columns = [pa.chunked_array([part[name].combine_chunks() for part in parts]).dictionary_encode() for name in IDS]
    codes = [column.combine_chunks().indices.to_numpy().astype(np.int64) for column in columns]
    firsts = np.cumsum([0, *(column.max() + 1 for column in codes)])[:-1]
    keys, labels = np.stack(codes, axis=1) + firsts, np.concatenate([part[LABEL].to_numpy() for part in parts])
    cut = len(parts[0])
    return _quality(args, Clicks(keys[:cut], keys[cut:], labels[:cut], labels[cut:]), INTERACTIONS)


def histories(args: Args) -> Part:
    """Compare the AUC of DIN on generated clicks, each with a user's history of up to 12 items.

    Items have vectors. A user has two interests, by which the history is drawn; the log-odds of a click are those of
    the item's own weight and of its likeness to the nearer interest.
    """
    rng = np.random.default_rng(0)
    users, items, rows, cut = 1_000, 2_000, 60_000, 40_000
    vectors = rng.normal(size=(items, 4))
    interests, user, item = (
        rng.integers(0, items, (users, 2)),
        rng.integers(0, users, rows),
        rng.integers(0, items, rows),
    )
    likeness = vectors @ vectors.T
    near = np.argsort(-likeness, axis=1)[:, :40]
    clicked = near[interests[user[:, None], rng.integers(0, 2, (rows, 12))], rng.integers(0, 40, (rows, 12))]
    clicked[np.arange(12) >= rng.integers(1, 13, rows)[:, None]] = ABSENT
    best = likeness[interests[user], item[:, None]].max(axis=1)
    odds = 0.6 * best + rng.normal(size=items)[item] - 1.5
    labels = (rng.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.int8)
    keys = np.column_stack([user + items, item, clicked])
    clicks = Clicks(keys[:cut], keys[cut:], labels[:cut], labels[cut:], history=2)
    return _quality(args, clicks, {"din": ("DIN", {"attentionLayers": [36]})})


def _frappe(args: Args) -> Clicks:
    (train, train_labels), (test, test_labels) = (
        _read(Path(args.data_dir) / f"frappe.{name}.libfm") for name in ("validation", "test")
    )
    return Clicks(train, test, train_labels, test_labels)


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
            result = _pytorch(args, folder, {**settings, "seed": len(aucs[PYTORCH])})
            aucs[PYTORCH].append(result["auc"][-1])
            return float(np.median(result["seconds"])) / rows

        def ours(way: str) -> float:
            own = {**settings, "seed": len(aucs[way])}
            with PS2Context.getOrCreate(spark, servers=1):
                seconds, value = _fit(
                    spark, folder, own, {**clicks.columns, "staleness": STALENESS[way], "numWorkers": WORKERS}
                )
            aucs[way].append(value)
            return seconds / rows

        variants: dict[str, Callable[[], float]] = {PYTORCH: pytorch, **{way: partial(ours, way) for way in STALENESS}}
        turns = take_turns(variants, args.rounds, warm_ups=0)
        spark.stop()
    rates = {way: [1 / one for one in seconds] for way, seconds in turns.items()}
    lines = [Line(way, "PyTorch, 2 threads", "rows/s", GOAL, rates[PYTORCH], rates[way]) for way in STALENESS]
    medians = {way: float(np.median(values)) for way, values in aucs.items()}
    checks = [Check(f"AUC, {way}: below PyTorch's", medians[PYTORCH] - medians[way], CLOSE) for way in STALENESS]
    facts = {"rows": rows, **{f"AUC {way}": value for way, value in medians.items()}}
    return Part(lines, checks, {**facts, **{name: settings[name] for name in ("k", "hidden", "batch", "epochs")}})


def _quality(args: Args, clicks: Clicks, kinds: Mapping[str, tuple[str, Mapping[str, Any]]]) -> Part:
    """Compare the mean AUC of the test rows over ``args.rounds`` seeds, after each epoch, and after the last one.

    One worker takes the same steps as PyTorch does. Each seed has initial weights and an order of rows of its own.
    """
    if not Path(args.torch_python).is_file():
        raise SkippedError("no PyTorch: --torch-python names a Python that has it")
    table, checks = [], []
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/rows.npz", keys=clicks.keys, **vars(clicks))
        _write(clicks, folder)
        spark = start_spark("local[1]", "deep", {"spark.driver.memory": args.memory})
        for kind, (estimator, sizes) in kinds.items():
            aucs: dict[str, list[float]] = {PYTORCH: [], estimator: []}
            seconds: dict[str, list[float]] = {PYTORCH: [], estimator: []}
            for seed in range(args.rounds):
                settings = {**QUALITY, **sizes, "kind": kind, "seed": seed}
                if clicks.history:
                    settings |= {"fields": clicks.history, "candidate": clicks.history - 1}
                result = _pytorch(args, folder, settings)
                aucs[PYTORCH].append(result["auc"][-1])
                seconds[PYTORCH].append(float(np.median(result["seconds"])))
                with PS2Context.getOrCreate(spark, servers=1):
                    own = {**clicks.columns, **sizes, "numWorkers": 1}
                    fit_s, auc_of_seed = _fit(spark, folder, settings, own, estimator)
                aucs[estimator].append(auc_of_seed)
                seconds[estimator].append(fit_s)
            means = {side: float(np.mean(values)) for side, values in aucs.items()}
            checks.append(Check(f"AUC, {estimator}: below PyTorch's", means[PYTORCH] - means[estimator], SAME))
            for side, values in aucs.items():
                rate = len(clicks.train) / float(np.median(seconds[side]))
                spread = max(values) - min(values)
                table.append({"model": estimator, "side": side, "AUC": means[side], "spread": spread, "rows/s": rate})
        spark.stop()
    sizes = {name: QUALITY[name] for name in ("k", "hidden", "batch", "epochs")}
    return Part(checks=checks, table=table, facts={"rows": len(clicks.train), "seeds": args.rounds, **sizes})


def _pytorch(args: Args, folder: str, settings: Mapping[str, Any]) -> Any:
    """Train in PyTorch; return the seconds of each epoch, and the AUC after it."""
    Path(f"{folder}/settings.json").write_text(json.dumps(settings))
    program = [args.torch_python, "-m", "benchmarks.deep_torch", f"{folder}/rows.npz", f"{folder}/settings.json"]
    home = Path(__file__).resolve().parents[1]
    finished = subprocess.run(program, stdout=subprocess.PIPE, check=True, cwd=home)
    return json.loads(finished.stdout)


def _write(clicks: Clicks, folder: str) -> None:
    for name, keys, labels in (
        ("train", clicks.train, clicks.train_labels),
        ("test", clicks.test, clicks.test_labels),
    ):
        columns: dict[str, Any] = {"label": labels.astype(float)}
        if clicks.history:
            columns |= {f"field{index}": keys[:, index] for index in range(clicks.history)}
        listed = keys[:, clicks.history :]
        ends = np.concatenate([[0], np.cumsum((listed != ABSENT).sum(axis=1))])
        lists = pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), pa.array(listed[listed != ABSENT]))
        columns["history" if clicks.history else "keys"] = lists
        pq.write_table(pa.table(columns), f"{folder}/{name}.parquet")


def _fit(
    spark: Any,
    folder: str,
    settings: Mapping[str, Any],
    own: Mapping[str, Any],
    name: str = "DeepFM",
) -> tuple[float, float]:
    """Return the median seconds of an epoch, and the AUC of the test rows; ``own``: params of the estimator."""
    from ps2 import algorithms

    estimator = getattr(algorithms, name)(
        factorSize=settings["k"],
        hiddenLayers=list(settings["hidden"]),
        dropoutRate=settings["dropout"],
        batchSize=settings["batch"],
        maxIter=settings["epochs"],
        stepSize=settings["lr"],
        optimizer="adagrad",
        embeddingStepSize=settings["table_lr"],
        initStd=settings["init_scale"],
        seed=settings["seed"],
        **own,
    )
    model = estimator.fit(spark.read.parquet(f"{folder}/train.parquet"))
    result = model.transform(spark.read.parquet(f"{folder}/test.parquet")).select("label", "probability").collect()
    seconds = float(np.median(model.summary.stepSeconds))
    model.free()
    return seconds, auc(np.array([row[0] for row in result]), np.array([row[1][1] for row in result]))


BENCHMARK = Benchmark(
    "deep",
    Args,
    {
        "frappe": frappe,
        "movielens": movielens,
        "interactions-frappe": interactions_frappe,
        "interactions-generated": interactions_generated,
        "histories": histories,
    },
    {
        "frappe": FRAPPE_FILES,
        "interactions-frappe": FRAPPE_FILES,
        "movielens": "ml-1m.ratings.txt.gz",
    },
)

if __name__ == "__main__":
    BENCHMARK.main()
