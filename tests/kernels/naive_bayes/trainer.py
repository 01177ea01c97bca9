"""Multinomial naive Bayes, with its counts on the servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ps2 import DCV, DCVMatrix
from ps2.algorithms.frame.dealing import deal
from ps2.algorithms.frame.tables import survey
from ps2.algorithms.training.faults import ColumnNames, Form
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.run import FIRST_CLOCK, Training, run_training


@dataclass(frozen=True, eq=False)
class Counting:
    """What each worker does: in one clock, it adds the sums of its rows, class by class."""

    counts: DCVMatrix

    def __call__(self, worker: Any, reading: Reading) -> None:
        rows = reading.training
        assert rows.y is not None
        of_class = np.equal(rows.y, np.arange(self.counts.rows)[:, None])  # (classes, n)
        for _ in worker.clocks(FIRST_CLOCK + 1):
            self.counts.add(range(self.counts.rows), of_class.astype(float) @ rows.x, rows.keys)


def train(ps: Any, frame: Any, features: int, classes: int, smoothing: float = 1.0) -> npt.NDArray[np.float64]:
    """Return log P(feature | class), float64, shape (classes, features), of a DataFrame with labels and counts."""
    columns = ColumnNames()
    table = deal(frame, columns, survey(frame, columns, classes), None)
    vectors = [first := DCV.dense(features, classes, dtype="float64"), *(first.derive() for _ in range(classes - 1))]
    form = Form(features, classes, counts=True)
    run_training(ps, Training(table, form, Counting(first.matrix())))
    for vector in vectors:
        vector.zip().apply("log_shares", total=vector.sum() + smoothing * features, smoothing=smoothing)
    return np.stack([vector.pull() for vector in vectors])
