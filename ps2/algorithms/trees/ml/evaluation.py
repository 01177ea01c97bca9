"""Losses of a forest after each of its rounds, by the rows of a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from ps2.algorithms.estimators.dealing import group_number, shuffled_in_order
from ps2.algorithms.estimators.tables import check_columns, column
from ps2.algorithms.training.faults import ColumnNames, Form, error_of
from ps2.algorithms.training.reading import read
from ps2.algorithms.trees.gradients import NO_WEIGHTS, Objective
from ps2.algorithms.trees.model import GBTModel
from ps2.algorithms.trees.row_groups import RowGroups
from ps2.algorithms.trees.rows import with_all_columns
from ps2.algorithms.trees.starts import starting_margins
from ps2.algorithms.trees.tree import LossName
from ps2.array_types import Float64s
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import in_one_wave, with_python
from ps2.run.spark.errors import plain_job_errors


def losses_by_round(frame: DataFrame, columns: ColumnNames, model: GBTModel, loss: LossName) -> list[float]:
    """Return the mean loss of a model's first 1, 2, ... trees of each output.

    Args:
        loss: one that the model's margins are meant for.

    Raises:
        InputError: a column is missing or of another type, or rows cannot be used.
    """
    check_columns(frame, columns)
    features = [columns.features] if isinstance(columns.features, str) else list(columns.features)
    numbers = [name for name in (columns.label, columns.weight, columns.margin) if name is not None]
    chosen = [column(name) for name in features]
    chosen += [column(name).cast("double").alias(name) for name in numbers if name not in features]

    if columns.group is not None:
        chosen.append(group_number(frame, columns.group).alias(columns.group))

    def summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"sums": [_sums(batches, columns, model, loss).tolist()]})

    rows = frame.select(*chosen)
    if columns.group is not None:
        rows = shuffled_in_order(rows, column(columns.group))
    with plain_job_errors():
        parts = with_python(in_one_wave(rows)).mapInArrow(summed, "sums array<double>").collect()
    *losses, weight = np.sum([part["sums"] for part in parts], axis=0)
    if not weight > 0:
        raise InputError("expected rows to evaluate, got none with a weight above 0")
    return [float(loss / weight) for loss in losses]


def _sums(batches: Any, columns: ColumnNames, model: GBTModel, loss_name: LossName) -> Float64s:
    """Return the summed losses of each round, and the sum of weights."""
    forest, classes = model.forest, model.classes
    reading = read(batches, columns, Form(model.dim, classes, missing=True))
    if error := error_of(reading.faults[None], columns):
        raise error
    rows = reading.training
    assert rows.y is not None
    objective = Objective(loss_name, forest.width, forest.shape)
    weights = NO_WEIGHTS if rows.weights is None else rows.weights
    groups = None
    if rows.groups is not None:
        groups = RowGroups.in_order(rows.groups)
    given = (rows.y, weights, groups)
    nodes = model.nodes(with_all_columns(rows, model.dim))
    margins = starting_margins(rows, tuple(forest.base.tolist()), None)
    sums = []
    for number, tree in enumerate(forest.trees):
        margins[:, number % forest.width] += tree.value[nodes[:, number]]
        if number % forest.width == forest.width - 1:
            loss, weight = objective.losses(margins, *given)
            sums.append(loss)
    if not sums:
        weight = objective.losses(margins, *given)[1]
    return np.array([*sums, weight])
