"""DeepFM on MovieLens 1M: user and film, ratings of 4 and 5 against the others; a tenth of the rows to test."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from benchmarks.deep_frappe import SETTINGS
from benchmarks.deep_part import Asked, Clicks, compare
from benchmarks.frame import Part, answer


def measure(asked: Asked) -> Part:
    with gzip.open(Path(asked.data_dir) / "ml-1m.ratings.txt.gz") as file:
        rows = np.loadtxt(file, np.int64)
    films = rows[:, 0].max() + 1
    keys, labels = np.stack([rows[:, 0], rows[:, 1] + films], axis=1), (rows[:, 2] >= 4).astype(np.int8)
    order = np.random.default_rng(0).permutation(len(rows))
    train, test = order[len(order) // 10 :], order[: len(order) // 10]
    clicks = Clicks(keys[train], keys[test], labels[train], labels[test])
    return compare(asked, "ml-1m", clicks, {**SETTINGS, "batch": 4096, "epochs": 3})


if __name__ == "__main__":
    answer(Asked, measure)
