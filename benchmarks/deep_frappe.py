"""DeepFM on frappe: ten categorical fields, 5,382 ids; the validation file to train, the test file to test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.deep_part import Asked, Clicks, compare
from benchmarks.frame import Part, answer

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


def measure(asked: Asked) -> Part:
    (train, train_labels), (test, test_labels) = (
        _read(Path(asked.data_dir) / f"frappe.{name}.libfm") for name in ("validation", "test")
    )
    return compare(asked, "frappe", Clicks(train, test, train_labels, test_labels), SETTINGS)


def _read(path: Path) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int8]]:
    rows = [line.split() for line in path.read_text().splitlines()]
    keys = np.array([[int(part.partition(":")[0]) for part in row[1:]] for row in rows], np.int64)
    return keys, np.array([float(row[0]) > 0 for row in rows], np.int8)


if __name__ == "__main__":
    answer(Asked, measure)
