"""Predict for one vector in the driver, and for the rows of a DataFrame by a pandas UDF."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy.sparse as sp
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import ArrayType

from ps2.algorithms.frame.frames import as_arrow_structs
from ps2.algorithms.frame.heads import Fitted, Head, predict_all
from ps2.algorithms.frame.row_matrices import as_rows
from ps2.algorithms.frame.tables import check_columns, check_new_columns, column, field, known_dim
from ps2.algorithms.training.faults import ColumnNames
from ps2.array_types import Float64s
from ps2.client.fleet import lending
from ps2.data.columns import read_features, read_numbers
from ps2.data.plain_arrays import as_array, as_numbers
from ps2.data.sparse_rows import canonical
from ps2.errors import InputError, UsageError
from ps2.run.spark.backend_lookup import backend_of, with_python

# The temporary column with a struct of all predictions of a row.
_PREDICTIONS = "ps2 predictions"
# The field of initial margins in the struct that a task receives; structs of vectors have no field of this name.
MARGIN = "margin"
# The temporary columns of ``compressed``.
DENSE, SPARSE = "ps2 dense", "ps2 sparse"
_ARRAYS = ("raw", "probability", "leaf", "contrib")
_STRUCT = ", ".join([*(f"{name} array<double>" for name in _ARRAYS), "prediction double", "fault string"])
_VECTOR = pa.struct(
    [
        ("type", pa.int8()),
        ("size", pa.int32()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)
_ARRAY = pa.list_(pa.float64())


def as_row(value: Any, dim: int, missing: bool) -> sp.csr_array:
    """Return a vector of pyspark, an array or a list of numbers, or a sparse row of scipy, as a matrix of one row.

    Raise InputError or UsageError unless it has ``dim`` finite numbers; ``missing`` allows NaN.
    """
    expected = f"features: expected a vector of {dim} numbers"
    if sp.issparse(value):
        row = as_rows("features", value.reshape(1, -1))
        columns, values, size = row.indices, row.data, row.shape[1]
    elif hasattr(value, "indices") and hasattr(value, "size"):
        columns, values, size = np.asarray(value.indices), np.asarray(value.values), int(value.size)
        if len(columns) != len(values) or (len(columns) and not 0 <= columns.min() <= columns.max() < size):
            raise InputError(f"{expected}, with as many indices as values, in [0, {size}), got {columns!s:.80}")
    else:
        array = as_array("features", value.toArray() if hasattr(value, "toArray") else value)
        try:
            values = as_numbers(array).astype(np.float64)
        except TypeError as error:
            raise InputError(f"{expected}, got {value!r:.100}") from error
        columns, size = np.arange(values.size), values.size
    if size != dim or values.ndim != 1:
        raise InputError(f"features: expected a vector of size {dim}, got {value!r:.100}")
    if not (np.isfinite(values) | (missing & np.isnan(values))).all():
        raise InputError(f"features: expected finite numbers, got {value!r:.100}")
    return canonical(sp.csr_array((values, columns, [0, len(values)]), shape=(1, dim)))


def with_predictions(
    frame: DataFrame,
    columns: ColumnNames,
    dim: int,
    load_fitted: Callable[[], Fitted],
    head: Head,
    names: Sequence[tuple[str, str]],
) -> DataFrame:
    """Add columns of predictions.

    Args:
        columns: the columns of features and, optionally, of initial margins, which are added to the model's margins.
        load_fitted: returns the trained parameters in a task.
        names: the new columns, each with its kind: "raw", "probability", "prediction" or, for trees, "leaf" and
            "contrib".

    Raises:
        InputError: there is no such feature column, its known size is not ``dim``, or one of the new columns exists
            already. Faults within rows raise an error of Spark when the rows are read.
    """
    features = columns.features
    check_columns(frame, columns)
    column_dim = known_dim(frame, features)
    if column_dim not in (None, dim):
        # Spark takes the number of features of a LIBSVM file from its largest index.
        option = f'; LIBSVM files are read by spark.read.format("libsvm").option("numFeatures", {dim})'
        advice = option if isinstance(features, str) else ""
        name = _text_of_features(features)
        raise InputError(f"column {name!r}: expected {dim} features as in training, got {column_dim}{advice}")
    check_new_columns(frame, (name for name, _ in names))
    udf: Any = pandas_udf  # its overloads lack a struct type given as a string
    tree_outputs = {kind for _, kind in names} & {"leaf", "contrib"}
    predict = udf(_predictor(load_fitted, head, columns, tree_outputs), _STRUCT)
    with lending(backend_of(frame).loan):
        with_struct = frame.select("*", predict(_udf_argument(with_python(frame), columns)).alias(_PREDICTIONS))
    added = [_prediction_column(kind).alias(name, metadata=metadata_of(kind, head.classes)) for name, kind in names]
    return with_struct.select("*", *added).drop(_PREDICTIONS)


def compressed(frame: DataFrame, name: str) -> DataFrame:
    """Return the rows with each vector of a column in its smaller form, sparse or dense.

    The column becomes the last column. Spark has no function for sparse vectors, so a ``VectorAssembler`` makes them.
    """
    metadata = frame.schema[name].metadata
    assembler = VectorAssembler(inputCols=[DENSE], outputCol=SPARSE, handleInvalid="keep")
    assembled = assembler.transform(frame.select("*", column(name).alias(DENSE, metadata=metadata))).drop(name)
    return assembled.select("*", column(SPARSE).alias(name, metadata=metadata)).drop(DENSE, SPARSE)


def _text_of_features(features: str | tuple[str, ...]) -> str:
    return features if isinstance(features, str) else ", ".join(features[:3]) + ", ..." * (len(features) > 3)


def _prediction_column(kind: str) -> Column:
    """Return a column with pyspark.ml's type for its kind. For a faulty row, Spark raises, without a traceback."""
    from pyspark.ml.functions import array_to_vector

    predictions = column(_PREDICTIONS)
    fault = predictions["fault"]
    value = F.when(fault.isNotNull(), F.raise_error(fault)).otherwise(predictions[kind])
    # A prediction is never null; after ``coalesce``, the schema says so.
    return F.coalesce(value, F.lit(math.nan)) if kind == "prediction" else array_to_vector(value)


def metadata_of(kind: str, classes: int | None) -> dict[str, Any]:
    """Return pyspark.ml's metadata for a column of predictions."""
    if classes is None or kind in ("leaf", "contrib"):
        return {"ml_attr": {}}
    return {"ml_attr": {"type": "nominal", "num_vals": classes} if kind == "prediction" else {"num_attrs": classes}}


def _udf_argument(frame: DataFrame, columns: ColumnNames) -> Column:
    """Return the argument of the UDF: a struct, which becomes a pandas DataFrame."""
    features = columns.features
    margin = [] if columns.margin is None else [column(columns.margin).cast("double").alias(MARGIN)]
    if not isinstance(features, str):
        return F.struct(F.array(*(column(name).cast("double") for name in features)).alias("values"), *margin)
    if isinstance(field(frame, features).dataType, ArrayType):
        return F.struct(column(features).cast("array<double>").alias("values"), *margin)
    vectors = as_arrow_structs(column(features))
    return F.struct(*(vectors[item.name].alias(item.name) for item in _VECTOR), *margin) if margin else vectors


def _predictor(load_fitted: Callable[[], Fitted], head: Head, columns: ColumnNames, tree_outputs: set[str]) -> Any:
    """Return the function of the UDF, which predicts batches of rows in a task."""
    name = _text_of_features(columns.features)

    def predict(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        fitted = load_fitted()
        num_before = 0
        for batch in batches:
            try:
                x, offsets = _read_features(batch, name, num_before, fitted), _offsets(batch, columns, num_before)
                predictions = _as_frame(predict_all(fitted, head, x, offsets, tree_outputs), len(batch))
            except UsageError as error:
                predictions = _as_frame({}, len(batch), str(error))
            yield predictions
            num_before += len(batch)

    return predict


def _offsets(batch: pd.DataFrame, columns: ColumnNames, num_before: int) -> Any:
    """Return the initial margins of rows, shape (n, 1), or 0."""
    if columns.margin is None:
        return 0.0
    margins = pa.record_batch([pa.array(batch[MARGIN], pa.float64(), from_pandas=False)], [columns.margin])
    return read_numbers(margins, columns.margin, num_before)[:, None]


def _as_frame(predictions: dict[str, Float64s], rows: int, fault: str | None = None) -> pd.DataFrame:
    """Return a DataFrame with the fields of ``_STRUCT``; ``fault`` is the message for faulty rows."""
    values = predictions.get("prediction", np.full(rows, np.nan))
    frame = pd.DataFrame({**dict.fromkeys(_ARRAYS, [None] * rows), "prediction": values})
    for kind in predictions.keys() & set(_ARRAYS):
        frame[kind] = list(predictions[kind])
    frame["fault"] = fault
    return frame


def _read_features(batch: pd.DataFrame, name: str, num_before: int, fitted: Fitted) -> sp.csr_array:
    """Return a batch as a matrix. ``num_before``: the task's rows in earlier batches; messages number its rows."""
    if "type" in batch.columns:
        is_null = batch["type"].isna().to_numpy()
        # In pandas, a null vector has NaN for its numbers and None for its lists; NaN within a list is a value.
        arrays = [pa.array(batch[p.name], p.type, from_pandas=not pa.types.is_list(p.type)) for p in _VECTOR]
        vectors = pa.StructArray.from_arrays(arrays, fields=list(_VECTOR), mask=pa.array(is_null))
    else:
        vectors = pa.array(batch["values"], _ARRAY, from_pandas=False)
    dim, rows = fitted.dim, pa.record_batch([vectors], [name])
    features = read_features(rows, name, np.dtype(np.float64), num_before, dim, fitted.takes_missing)
    indptr = np.concatenate([[0], np.cumsum(features.lengths)])
    return sp.csr_array((features.values, features.columns, indptr), shape=(len(batch), dim))
