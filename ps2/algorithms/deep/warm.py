"""Compile the kernels of deep models before their first use (``python -m ps2.algorithms.deep.warm``)."""

from __future__ import annotations

import numpy as np

from ps2.algorithms.deep.architecture import KINDS, Architecture
from ps2.algorithms.deep.network import Pass, logistic_loss
from ps2.algorithms.deep.ops import step_of_gradient, step_of_sum
from ps2.algorithms.deep.worker import DeepRows
from ps2.data.key_rows import KeyRows


def warm() -> None:
    """Run a forward and a backward pass of each kind of model on two rows."""
    fields = np.array([0, 1, 0, 1], np.int32)
    rows = KeyRows(np.array([0, 2, 4]), np.array([3, 5, 3, 7]), np.ones(4, np.float32), fields, 2)
    worker_rows = DeepRows(rows, np.array([0.0, 1.0]))
    worker_rows.items(1, 2)
    minibatch = worker_rows.take(np.array([1, 0]))
    for kind in KINDS:
        architecture = Architecture(kind, 2, 2, 1 if kind == "two-tower" else 2, (2, 2), dropout=0.5)
        table = np.ones((len(minibatch.keys), architecture.width), np.float32)
        forward = Pass(architecture, architecture.initial(0), minibatch.batch, table, 1)
        _, slopes = logistic_loss(forward.margins(), minibatch.labels, None)
        forward.backward(slopes, lambda index, gradient: None)
    for dtype in (np.float32, np.float64):
        step_of_sum(np.zeros((5, 2), dtype), lr=0.1)
        step_of_gradient(np.zeros((5, 2), dtype), np.ones(2, dtype), lr=0.1)


if __name__ == "__main__":
    warm()
