"""Estimators of linear models fitted to arrays: all that ``fit`` does beside Spark's part of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from in_process import ArrayTable, training_context
from pyspark.ml.linalg import VectorUDT
from pyspark.sql.types import DoubleType, StructField, StructType

from ps2.algorithms.frame.labels import PART_COLUMN, Labels, ReadAndSurvey
from ps2.algorithms.frame.tables import Survey, field, survey_of
from ps2.algorithms.linear.fit import NO_TRAINING, LinearEstimator
from ps2.algorithms.linear.model import Weights
from ps2.algorithms.linear.trainer import AfterSurvey, Task, train
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.only_worker import result_of
from ps2.algorithms.training.reading import Reading
from ps2.algorithms.training.table import Table
from ps2.protocol.plain_data import decode

SERVERS = 2


def fit_arrays(
    estimator: LinearEstimator, x: Any, workers: int = 2, metadata: dict[str, Any] | None = None, **columns: Any
) -> Any:
    """Fit an estimator on two servers of this process, or as its only worker does ("local"); return its model.

    Args:
        x: the features, an array or a sparse matrix.
        metadata: of the column of labels.
        columns: other columns by name, numbers or booleans.
    """
    estimator._check()
    plan, names = estimator._plan(), estimator._columns()

    def table(unit: float) -> ArrayTable:
        scaled = {name: values * unit if name == names.weight else values for name, values in columns.items()}
        return ArrayTable.of(x, workers=workers, columns=names, **scaled)

    reading, survey, frame = _survey(estimator, table(1.0), metadata)
    problem, plan = estimator._objective(plan, survey)
    weights, history = estimator._trivial_weights(problem, survey), NO_TRAINING
    if weights is None and estimator.getVia() == "local":
        task = decode(Task(problem, plan, survey.facts).message().encoded)
        outcome = AfterSurvey(replace(table(1.0), frame=None), SERVERS)((reading, None), task)
        weights, history = result_of(outcome, lambda step: None)
    elif weights is None:
        with training_context(SERVERS) as ps:
            model = train(ps, table(survey.weight_unit), problem, plan, survey.facts)
            weights, history = Weights.from_servers(problem, model.weight, model.biases), model.history
    return estimator._finish_model(estimator._model(weights), frame, history)


def _survey(estimator: LinearEstimator, table: Table, metadata: dict[str, Any] | None) -> tuple[Reading, Survey, Any]:
    """Survey a table as a fit's only worker does; return its rows and a stand-in for the DataFrame, too."""
    names = table.columns
    assert names.label is not None
    batches = [
        batch.append_column(PART_COLUMN, pa.array(np.full(batch.num_rows, rank, np.int32)))
        for rank, shard in enumerate(table.frame_for_run)
        for batch in shard
    ]
    types = {"features": VectorUDT()}
    fields = [
        StructField(name, types.get(name, DoubleType()), metadata=metadata if name == names.label else None)
        for name in batches[0].schema.names
    ]
    frame: Any = SimpleNamespace(schema=StructType(fields), columns=batches[0].schema.names)
    labels = Labels(names.label, estimator._CLASSES, field(frame, names.label))
    reading, survey = ReadAndSurvey(names, Form(), labels.classes, labels.limit, 1 << 30)(None, batches)
    assert survey is not None, "rows with faults"
    groups = survey.groups()
    return reading, survey_of(frame, names, labels, groups, survey.dim, survey.shift, survey.unit), frame


def numbers(model: Any) -> Any:
    """Return all numbers of a model, ours or pyspark.ml's, one after the other."""
    if hasattr(model, "linear"):
        return np.array([model.intercept, *model.linear, *model.factors.toArray().reshape(-1)])
    if hasattr(model, "coefficientMatrix"):
        return np.concatenate([model.coefficientMatrix.toArray().reshape(-1), model.interceptVector.toArray()])
    return np.array([*model.coefficients, model.intercept, *([model.scale] if hasattr(model, "scale") else [])])
