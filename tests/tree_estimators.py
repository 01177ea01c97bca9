"""``fit`` of estimators of trees without Spark: rows are arrays, servers and workers live in the test's process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
import xgboost
from pyspark.ml.linalg import VectorUDT
from pyspark.sql.types import DoubleType, StructField, StructType

from ps2.algorithms.frame.labels import PART_COLUMN, Labels, ReadAndSurvey
from ps2.algorithms.frame.placement import Cores
from ps2.algorithms.frame.tables import Survey, survey_of
from ps2.algorithms.training.faults import Form
from ps2.algorithms.training.table import Facts
from ps2.algorithms.trees import estimator as boosted
from ps2.algorithms.trees.forests import estimator as forests
from ps2.algorithms.trees.label_statistics import LabelSums
from tests.in_process import ArrayTable, training_context, vectors


def fit(
    estimator: Any,
    x: Any,
    y: Any,
    *,
    servers: int = 2,
    memory_limit_bytes: int = 1 << 30,
    categories: Mapping[int, int] | None = None,
    classes: int = 0,
    validation_sets: tuple[str, ...] = (),
    **others: Any,
) -> Any:
    """Fit as ``estimator.fit`` does; return the model.

    Args:
        x: features, an array or a sparse matrix, in a column "features".
        y: labels, in a column "label".
        categories: number of categories by feature.
        classes: number of classes that the labels' metadata list; 0: they list none.
        validation_sets: the names of validation sets, whose numbers are in the column of held-out rows.
        others: further columns by name.
    """
    columns = estimator._columns()
    result = _survey(estimator, x, y, categories or {}, classes, others)

    def dealt(workers: int | None = None) -> ArrayTable:
        return ArrayTable.of(x, np.asarray(y, float), workers or 2, columns, **others)

    workers = estimator._requested_workers or 2
    dealt.cores = Cores(2, workers, max(2 // workers, 1))  # type: ignore[attr-defined]
    with ExitStack() as patches, training_context(servers, memory_limit_bytes) as ps:
        for owner, name, value in (
            (estimator, "_check_frame", lambda rows: None),
            (estimator, "_one_job", lambda plan, rows: None),
            (estimator, "_survey_and_deal", lambda rows: (replace(result(), validation_sets=validation_sets), dealt)),
            (estimator, "_train_in_context", lambda table, steps, train: train(ps, lambda report: None)),
            (boosted, "label_sums", _label_sums),
            (forests, "label_sums", _label_sums),
            (boosted, "label_quantile", _label_quantile),
        ):
            patches.enter_context(mock.patch.object(owner, name, value))
        return estimator._fit(None)


def _survey(estimator: Any, x: Any, y: Any, categories: Mapping[int, int], classes: int, others: Any) -> Any:
    """Return a function that surveys the rows; their features, which workers check, need not be fine."""
    attributes = [{"idx": feature, "num_vals": count} for feature, count in categories.items()]
    nominal = {"ml_attr": {"attrs": {"nominal": attributes}, "num_attrs": x.shape[1]}} if categories else {}
    listed = {"ml_attr": {"type": "nominal", "num_vals": classes}} if classes else {}
    fields = [
        StructField("features", VectorUDT(), metadata=nominal),
        StructField("label", DoubleType(), metadata=listed),
    ]

    def survey() -> Survey:
        columns = replace(estimator._columns(), margin=None, group=None)
        labels = Labels("label", estimator._CLASSES, fields[1])
        numbers = {"label": np.asarray(y, float), **others, PART_COLUMN: np.zeros(x.shape[0], np.int32)}
        features = vectors(x if sp.issparse(x) else np.ones(x.shape))
        batch = pa.RecordBatch.from_arrays(
            [features, *(pa.array(np.asarray(values)) for values in numbers.values())], ["features", *numbers]
        )
        read = ReadAndSurvey(columns, Form(missing=True), estimator._CLASSES, labels.limit, 1 << 40)
        result = read(None, [batch])[1]
        assert result is not None, "labels or weights have faults, which Spark would survey"
        schema = SimpleNamespace(schema=StructType(fields), columns=["features", "label"])
        return survey_of(schema, columns, labels, result.groups(), result.dim, result.shift, result.unit)

    return survey


def _labels(table: ArrayTable) -> tuple[Any, Any]:
    """Return the labels and weights of the rows to train on."""
    columns = table.columns
    rows = pa.Table.from_batches([batch.drop_columns(["features"]) for shard in table.frame for batch in shard])
    y = rows["label"].to_numpy()
    w = np.ones(len(y)) if columns.weight is None else rows[columns.weight].to_numpy().astype(float)
    used = w > 0
    if columns.validation is not None:
        used &= rows[columns.validation].to_numpy() == 0
    return y[used], w[used]


def _label_sums(table: ArrayTable, of_classes: bool) -> LabelSums:
    y, w = _labels(table)
    weight = sum(map(Fraction, w.tolist()))
    mean = sum(map(Fraction, (w * y).tolist())) / weight
    by_class = {int(label): float(w[y == label].sum()) for label in np.unique(y)} if of_classes else {}
    return LabelSums(float(weight), float(mean), by_class)


def _label_quantile(table: ArrayTable, share: float, facts: Facts) -> float:
    y, w = _labels(table)
    order = np.argsort(y, kind="stable")
    below = np.cumsum(w[order])
    return float(y[order][np.searchsorted(below, share * below[-1])])


def data(rows: int = 240, seed: int = 1) -> tuple[Any, Any]:
    """Return rows of few distinct values, and labels."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, size=(rows, 4)).astype(np.float32) / 2
    y = x[:, 0] * x[:, 1] + x[:, 2] + 0.2 * rng.normal(size=rows)
    return x, y


def xgboosts(x: Any, y: Any, rounds: int, weight: Any = None, margin: Any = None, **params: Any) -> Any:
    """Return the margins that xgboost learns."""
    inputs = {"tree_method": "exact", "lambda": 1.0, "nthread": 1, "base_score": 0.5, "eta": 0.5, "max_depth": 3}
    rows = xgboost.DMatrix(x, y, weight=weight, base_margin=margin)
    return xgboost.train(inputs | params, rows, rounds).predict(rows, output_margin=True)


def same_trees(*models: Any) -> bool:
    """Return whether models have the same trees, in words."""
    return len({model.toDebugString.split("\n", 1)[1] for model in models}) == 1
