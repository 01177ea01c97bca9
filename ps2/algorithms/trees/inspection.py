"""Partial dependence, and permutation importance, of a model for the rows of a DataFrame.

Partial dependence: J. Friedman, "Greedy function approximation", 2001, section 8.2: the mean prediction over rows in
which a feature has one value. Permutation importance: L. Breiman, "Random forests", 2001, section 10.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from pyspark.ml.functions import vector_to_array
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType

from ps2.algorithms.frame.dealing import group_number
from ps2.algorithms.frame.frames import as_arrow_structs
from ps2.algorithms.frame.heads import Fitted, Head, predict_all
from ps2.algorithms.frame.tables import check_columns, column, field
from ps2.algorithms.training.faults import ColumnNames, Form, error_of
from ps2.algorithms.training.reading import read
from ps2.algorithms.training.streams.progressive import auc_of_bins
from ps2.algorithms.trees.ranking import RowGroups, sum_of_ndcg
from ps2.algorithms.trees.rows import with_all_columns
from ps2.array_types import Float64s, Int64s
from ps2.errors import ConfigError, InputError
from ps2.run.spark.backend_lookup import backend_of, in_one_wave, with_python
from ps2.run.spark.errors import plain_job_errors

# The grid of a feature with many values: quantiles between these.
LOWEST_QUANTILE, HIGHEST_QUANTILE = 0.05, 0.95
# Spark's quantiles are off by at most one of this many rows.
QUANTILE_ACCURACY = 10_000
# The temporary columns of the order of sampled rows, and of the task that a copy of a row is for.
ORDER, TASK = "ps2 order", "ps2 task"
# The columns that a task returns.
IMPORTANCES = [("feature", pa.int32()), ("mean", pa.float64()), ("stddev", pa.float64())]

Score = Callable[[dict[str, Float64s], Float64s, Float64s, Any], float]


@dataclass(frozen=True)
class Inspected:
    """A model, and the columns of the rows that it predicts.

    Attributes:
        load_fitted: returns the trained parameters in a task.
        names: the names of features that are known, by index.
        absent: the value of an entry that a sparse row does not store.
    """

    columns: ColumnNames
    load_fitted: Callable[[], Fitted]
    head: Head
    dim: int
    names: Mapping[int, str]
    absent: float

    def find_features(self, features: Iterable[int | str] | int | str) -> list[int]:
        """Return the indices of features; ConfigError: there is no such feature."""
        indices = {name: index for index, name in self.names.items()}
        numbers = []
        for feature in [features] if isinstance(features, (int, str)) else features:
            number = indices.get(feature, -1) if isinstance(feature, str) else int(feature)
            if not 0 <= number < self.dim:
                known = f" or one of {', '.join(list(indices)[:5])}" if indices else ""
                raise ConfigError(f"features: expected an index from 0 to {self.dim - 1}{known}, got {feature!r}")
            numbers.append(number)
        return numbers

    def read(self, batches: Iterable[pa.RecordBatch]) -> tuple[Any, sp.csr_array]:
        """Return rows in a task, and their features as a matrix; raise InputError if they have faults."""
        classes = self.head.classes if self.columns.label is not None else None
        reading = read(batches, self.columns, Form(self.dim, classes, missing=True))
        if error := error_of(reading.faults[None], self.columns):
            raise error
        return reading.training, with_all_columns(reading.training, self.dim)

    def predict(self, x: sp.csr_array, rows: Any) -> dict[str, Float64s]:
        """Return predictions of rows by kind; x: their features, some of which may have been changed."""
        offsets = 0.0 if rows.margins is None else rows.margins[:, None]
        return predict_all(self.load_fitted(), self.head, x, offsets, ())

    def select(self, frame: DataFrame) -> DataFrame:
        """Return the columns that ``read`` needs."""
        columns, features = self.columns, self.columns.features
        check_columns(frame, columns)
        names = [features] if isinstance(features, str) else list(features)
        selected = {name: column(name) for name in names}
        if isinstance(features, str) and not isinstance(field(frame, features).dataType, ArrayType):
            selected[features] = as_arrow_structs(column(features))
        numbers = (name for name in (columns.label, columns.weight, columns.margin) if name is not None)
        selected |= {name: column(name).cast("double") for name in numbers if name not in selected}
        if columns.group is not None:
            selected[columns.group] = group_number(frame, columns.group)
        return frame.select(*(value.alias(name) for name, value in selected.items()))


def with_feature(x: sp.csr_array, feature: int, values: Any) -> tuple[sp.csr_array, Int64s]:
    """Return rows with other values of a feature, one for each row or one for all, and the values' indices in ``data``.

    The columns of each row must be sorted.
    """
    is_other = x.indices != feature
    others, before = (np.append(0, np.cumsum(mask)) for mask in (is_other, x.indices < feature))
    begins = others[x.indptr[:-1]] + before[x.indptr[1:]] - before[x.indptr[:-1]]
    indices, data = np.insert(x.indices[is_other], begins, feature), np.insert(x.data[is_other], begins, values)
    rows = np.arange(len(begins) + 1)
    return sp.csr_array((data, indices, others[x.indptr] + rows), shape=x.shape), begins + rows[:-1]


def feature_values(x: sp.csr_array, feature: int, absent: float) -> Float64s:
    """Return the values of a feature, float64, shape (n,); absent: the value of an entry that is not stored."""
    values, positions = np.full(x.shape[0], absent), np.flatnonzero(x.indices == feature)
    values[np.searchsorted(x.indptr, positions, side="right") - 1] = x.data[positions]
    return values


# -- partial dependence ----------------------------------------------------------------------------------------------


def partial_dependence(
    frame: DataFrame, model: Inspected, features: Sequence[int], grid_points: int | Sequence[float]
) -> DataFrame:
    """Return the mean prediction by feature and value: see ``Ensemble.partialDependence``."""
    rows = model.select(frame)
    grids = _grids(frame, model.columns.features, features, grid_points)
    kind = "prediction" if model.head.classes is None else "probability"

    def sum_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        total = np.zeros(0)
        for batch in batches:
            sums = _sums_of_predictions(model, *model.read([batch]), grids, kind)
            total = sums + total if len(total) else sums
        yield pa.RecordBatch.from_pydict({"sums": pa.array([total.tolist()], pa.list_(pa.float64()))})

    with plain_job_errors():
        parts = with_python(in_one_wave(rows)).mapInArrow(sum_partition, "sums array<double>").collect()
    sums = np.array([part["sums"] for part in parts if part["sums"]])
    if not len(sums) or not sums[:, -1].sum() > 0:
        raise InputError("expected rows to predict, got none with a weight above 0")
    means = (sums[:, :-1].sum(axis=0) / sums[:, -1].sum()).reshape(sum(map(len, grids.values())), -1)
    points = [(feature, float(value)) for feature, grid in grids.items() for value in grid]
    out = [
        (feature, model.names.get(feature), value, mean.tolist() if kind == "probability" else float(mean[0]))
        for (feature, value), mean in zip(points, means, strict=True)
    ]
    last = "prediction double" if kind == "prediction" else "probability array<double>"
    return with_python(frame.sparkSession).createDataFrame(out, f"feature int, name string, value double, {last}")


def _sums_of_predictions(
    model: Inspected, rows: Any, x: sp.csr_array, grids: Mapping[int, Float64s], kind: str
) -> Float64s:
    """Return the weighted sum of predictions for each value of each grid, and last the sum of weights."""
    weights = np.ones(x.shape[0]) if rows.weights is None else rows.weights
    sums = []
    for feature, grid in grids.items():
        changed, positions = with_feature(x, feature, 0.0)
        for value in grid:
            changed.data[positions] = value
            sums.append(weights @ model.predict(changed, rows)[kind])
    return np.append(np.concatenate([np.atleast_1d(values) for values in sums]), weights.sum())


def _grids(
    frame: DataFrame, features: str | tuple[str, ...], indices: Sequence[int], grid_points: int | Sequence[float]
) -> dict[int, Float64s]:
    """Return the values at which each feature is evaluated: all values if they are few, else quantiles."""
    if not isinstance(grid_points, int):
        return {feature: np.array(grid_points, np.float64) for feature in indices}
    values = {feature: _numbers(frame, features, feature) for feature in indices}
    levels = np.linspace(LOWEST_QUANTILE, HIGHEST_QUANTILE, grid_points).tolist()
    measures = [F.percentile_approx(value, levels, QUANTILE_ACCURACY) for value in values.values()]
    counts = [F.approx_count_distinct(value) for value in values.values()]
    with plain_job_errors():
        row = list(frame.agg(*measures, *counts).head() or ())
        few = [feature for feature, count in zip(indices, row[len(indices) :], strict=True) if count <= grid_points]
        few_values = list(frame.agg(*(F.collect_set(values[feature]) for feature in few)).head() or ()) if few else []
    by_feature = dict(zip(indices, row[: len(indices)], strict=True)) | dict(zip(few, few_values, strict=True))
    return {feature: np.unique(np.array(grid or [], np.float64)) for feature, grid in by_feature.items()}


def _numbers(frame: DataFrame, features: str | tuple[str, ...], feature: int) -> Column:
    """Return a feature as a column of doubles, in which missing values are null."""
    if not isinstance(features, str):
        value = column(features[feature]).cast("double")
    elif isinstance(field(frame, features).dataType, ArrayType):
        value = column(features)[feature].cast("double")
    else:
        value = vector_to_array(column(features))[feature]
    return F.when(~F.isnan(value), value)


# -- permutation importance ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Permutations:
    """How often features are permuted, and what is measured: see ``Ensemble.permutationImportance``."""

    metric: str
    repeats: int
    seed: int
    max_rows: int


def permutation_importance(
    frame: DataFrame, model: Inspected, features: Sequence[int], plan: Permutations
) -> DataFrame:
    """Return the mean loss of a metric by feature: see ``Ensemble.permutationImportance``.

    Each task gets a copy of all sampled rows, in an order that depends only on their content, and permutes some of the
    features.
    """
    rows = model.select(frame)
    contents = F.xxhash64(F.lit(plan.seed), *(column(name) for name in rows.columns))
    group = [] if model.columns.group is None else [F.xxhash64(F.lit(plan.seed), column(model.columns.group))]
    sample = rows.withColumn(ORDER, F.array(*group, contents)).orderBy(ORDER).limit(plan.max_rows)
    tasks = max(min(len(features), backend_of(frame).total_slots()), 1)
    copies = sample.crossJoin(frame.sparkSession.range(tasks).withColumnRenamed("id", TASK)).repartition(tasks, TASK)

    def permute(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = list(batches)
        if not parts:
            return
        table = pa.Table.from_batches(parts)
        for task in np.unique(table[TASK].to_numpy()).tolist():
            copy = table.filter(pa.compute.equal(table[TASK], task))
            order = np.lexsort(np.stack(copy[ORDER].to_numpy())[:, ::-1].T)
            rows, x = model.read(copy.take(pa.array(order)).to_batches())
            numbers = list(features)[task::tasks]
            worse = _losses(model, rows, x, numbers, plan)
            for feature, values in zip(numbers, worse, strict=True):
                out = {"feature": [feature], "mean": [values.mean()], "stddev": [values.std()]}
                yield pa.RecordBatch.from_pydict(out, pa.schema(IMPORTANCES))

    with plain_job_errors():
        collected = with_python(copies).mapInArrow(permute, "feature int, mean double, stddev double").collect()
    if not collected and features:
        raise InputError("expected rows to predict, got an empty DataFrame")
    by_feature = {row["feature"]: row for row in collected}
    out = [(feature, model.names.get(feature), *by_feature[feature][1:]) for feature in features]
    return with_python(frame.sparkSession).createDataFrame(out, "feature int, name string, mean double, stddev double")


def _losses(model: Inspected, rows: Any, x: sp.csr_array, features: Sequence[int], plan: Permutations) -> Float64s:
    """Return how much worse the metric of rows with each feature permuted is, shape (features, repeats)."""
    score = SCORES[plan.metric]
    weights = np.ones(x.shape[0]) if rows.weights is None else rows.weights
    groups = None if rows.groups is None else RowGroups.in_row_order(rows.groups)
    base = score(model.predict(x, rows), rows.y, weights, groups)
    out = np.empty((len(features), plan.repeats))
    for i, feature in enumerate(features):
        values = feature_values(x, feature, model.absent)
        for repeat in range(plan.repeats):
            order = np.random.default_rng([plan.seed, feature, repeat]).permutation(len(values))
            changed, _ = with_feature(x, feature, values[order])
            out[i, repeat] = score(model.predict(changed, rows), rows.y, weights, groups) - base
    return -out if plan.metric in LARGER_IS_BETTER else out


def _log_loss(predictions: dict[str, Float64s], y: Float64s, weights: Float64s, groups: Any) -> float:
    probability = predictions["probability"][np.arange(len(y)), y.astype(int)]
    return float(np.average(-np.log(np.maximum(probability, np.finfo(np.float64).eps)), weights=weights))


def _auc(predictions: dict[str, Float64s], y: Float64s, weights: Float64s, groups: Any) -> float:
    _, ranks = np.unique(predictions["raw"][:, 1], return_inverse=True)
    return auc_of_bins(*(np.bincount(ranks, weights * (y == label)).astype(np.float64) for label in (0, 1)))


SCORES: Mapping[str, Score] = {
    "logloss": _log_loss,
    "auc": _auc,
    "error": lambda predictions, y, weights, _: float(np.average(predictions["prediction"] != y, weights=weights)),
    "rmse": lambda predictions, y, weights, _: math.sqrt(
        np.average((predictions["prediction"] - y) ** 2, weights=weights)
    ),
    "mae": lambda predictions, y, weights, _: float(np.average(abs(predictions["prediction"] - y), weights=weights)),
    "ndcg": lambda predictions, y, _, groups: sum_of_ndcg(predictions["prediction"], y, groups) / len(groups),
}
LARGER_IS_BETTER = ("auc", "ndcg")


def metric_names(classes: int | None, is_ranking: bool) -> tuple[str, ...]:
    """Return the names of the metrics that apply to a model; the first one is the default."""
    if is_ranking:
        return ("ndcg",)
    if classes is None:
        return "rmse", "mae"
    return ("logloss", "error", "auc") if classes == 2 else ("logloss", "error")
