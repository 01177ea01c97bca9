"""Predictions: for vectors in the driver, and by a pandas UDF over the columns of a DataFrame."""

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

from ps2.algorithms.frame.frames import for_arrow
from ps2.algorithms.frame.heads import Fitted, Head, predicted
from ps2.algorithms.frame.row_matrices import as_rows
from ps2.algorithms.frame.tables import check_columns, column, field, known_dim
from ps2.algorithms.training.faults import ColumnNames
from ps2.array_types import Float64s
from ps2.data.columns import read_features, read_numbers
from ps2.data.plain_arrays import as_array, as_numbers
from ps2.data.sparse_rows import canonical
from ps2.errors import InputError, UsageError
from ps2.run.spark.backend_lookup import with_python

_WHOLE = "ps2 predictions"
# A field of the struct that a task gets; vectors have no field of this name.
MARGIN = "margin"
# Columns meanwhile.
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


def rows_of(value: Any, dim: int, missing: bool) -> sp.csr_array:
    """Return a vector of pyspark, an array or a list of numbers, or a sparse row of scipy, as a matrix of one row.

    Raise InputError or UsageError unless it has ``dim`` finite numbers, or with ``missing`` also NaN.
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
    share: Callable[[], Fitted],
    head: Head,
    names: Sequence[tuple[str, str]],
) -> DataFrame:
    """Add columns of predictions.

    Args:
        columns: the columns of features and, perhaps, of margins, which are added to the model's.
        dim: number of features.
        share: gives a task the trained parameters.
        names: the names of the new columns, each with its kind: "raw", "probability", "prediction" or, for trees,
            "leaf" and "contrib".

    Raises:
        InputError: there is no such feature column, its known size is not ``dim``, or one of the new columns exists
            already. Faults within rows raise an error of Spark when the rows are read.
    """
    features = columns.features
    check_columns(frame, columns)
    known = known_dim(frame, features)
    if known not in (None, dim):
        # Spark takes the number of features of a LIBSVM file from its largest index.
        read = f'; LIBSVM files are read by spark.read.format("libsvm").option("numFeatures", {dim})'
        more = read if isinstance(features, str) else ""
        raise InputError(f"column {_name(features)!r}: expected {dim} features as in training, got {known}{more}")
    for name, _ in names:
        if name in frame.columns:
            raise InputError(f"column {name!r}: it is there already; choose another name for the predictions")
    tree_outputs = {what for _, what in names} & {"leaf", "contrib"}
    whole = _vectorised(_predictor(share, head, columns, tree_outputs))(_input(with_python(frame), columns))
    with_all = frame.select("*", whole.alias(_WHOLE))
    new = [_described(_checked(what), what).alias(name, metadata=_metadata(what, head)) for name, what in names]
    return with_all.select("*", *new).drop(_WHOLE)


def compressed(frame: DataFrame, name: str) -> DataFrame:
    """Return the same rows, each vector of a column sparse where that takes less memory; the column becomes the last.

    Spark has no function that makes sparse vectors, but ``VectorAssembler`` makes the smaller form of each.
    """
    metadata = frame.schema[name].metadata
    assembler = VectorAssembler(inputCols=[DENSE], outputCol=SPARSE, handleInvalid="keep")
    assembled = assembler.transform(frame.select("*", column(name).alias(DENSE, metadata=metadata))).drop(name)
    return assembled.select("*", column(SPARSE).alias(name, metadata=metadata)).drop(DENSE, SPARSE)


def _vectorised(function: Any) -> Any:
    # The overloads of pandas_udf lack a struct type given as a string.
    make: Any = pandas_udf
    return make(function, _STRUCT)


def _checked(what: str) -> Column:
    """Return one part of the predictions; Spark itself raises an error for a faulty row, without a Python traceback."""
    whole = column(_WHOLE)
    return F.when(whole["fault"].isNotNull(), F.raise_error(whole["fault"])).otherwise(whole[what])


def _name(features: str | tuple[str, ...]) -> str:
    """Return the name of the features for messages."""
    return features if isinstance(features, str) else ", ".join(features[:3]) + ", ..." * (len(features) > 3)


def _described(value: Column, what: str) -> Column:
    """Return a column with pyspark.ml's type for its kind."""
    from pyspark.ml.functions import array_to_vector

    # A prediction is never null; coalesce tells Spark so.
    return F.coalesce(value, F.lit(math.nan)) if what == "prediction" else array_to_vector(value)


def _metadata(what: str, head: Head) -> dict[str, Any]:
    """Return pyspark.ml's metadata for a column of predictions."""
    if head.classes is None or what in ("leaf", "contrib"):
        return {"ml_attr": {}}
    if what == "prediction":
        return {"ml_attr": {"type": "nominal", "num_vals": head.classes}}
    return {"ml_attr": {"num_attrs": head.classes}}


def _input(frame: DataFrame, columns: ColumnNames) -> Column:
    """Return the argument of the UDF: a struct, which pandas holds as columns."""
    features = columns.features
    margin = [] if columns.margin is None else [column(columns.margin).cast("double").alias(MARGIN)]
    if not isinstance(features, str):
        return F.struct(F.array(*(column(name).cast("double") for name in features)).alias("values"), *margin)
    if isinstance(field(frame, features).dataType, ArrayType):
        return F.struct(column(features).cast("array<double>").alias("values"), *margin)
    vectors = for_arrow(column(features))
    return F.struct(*(vectors[part.name].alias(part.name) for part in _VECTOR), *margin) if margin else vectors


def _predictor(share: Callable[[], Fitted], head: Head, columns: ColumnNames, of_trees: set[str]) -> Any:
    name = _name(columns.features)

    def predict(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        fitted = share()
        before = 0
        for batch in batches:
            try:
                x = _read(batch, name, before, fitted)
                predictions = _as_frame(predicted(fitted, head, x, _starts(batch, columns, before), of_trees))
            except UsageError as error:
                predictions = _faulty(len(batch), str(error))
            yield predictions
            before += len(batch)

    return predict


def _starts(batch: pd.DataFrame, columns: ColumnNames, before: int) -> Any:
    """Return the margins that rows begin with, shape (n, 1), or 0."""
    if columns.margin is None:
        return 0.0
    numbers = pa.record_batch([pa.array(batch[MARGIN], pa.float64(), from_pandas=False)], [columns.margin])
    return read_numbers(numbers, columns.margin, before)[:, None]


def _as_frame(predictions: dict[str, Float64s]) -> pd.DataFrame:
    values = predictions["prediction"]
    frame = pd.DataFrame({**dict.fromkeys(_ARRAYS, [None] * len(values)), "prediction": values})
    for what in predictions.keys() & set(_ARRAYS):
        frame[what] = list(predictions[what])
    frame["fault"] = None
    return frame


def _faulty(rows: int, fault: str) -> pd.DataFrame:
    none = [None] * rows
    return pd.DataFrame({**dict.fromkeys(_ARRAYS, none), "prediction": np.full(rows, np.nan), "fault": fault})


def _read(batch: pd.DataFrame, name: str, before: int, fitted: Fitted) -> sp.csr_array:
    """Return the rows of a batch as a matrix."""
    if "type" in batch.columns:
        missing = batch["type"].isna().to_numpy()
        # In pandas, a missing vector has NaN for its numbers and None for its lists; NaN within a list is a value.
        parts = [pa.array(batch[p.name], p.type, from_pandas=not pa.types.is_list(p.type)) for p in _VECTOR]
        whole = pa.StructArray.from_arrays(parts, fields=list(_VECTOR), mask=pa.array(missing))
    else:
        whole = pa.array(batch["values"], _ARRAY, from_pandas=False)
    dim, rows = fitted.dim, pa.record_batch([whole], [name])
    features = read_features(rows, name, np.dtype(np.float64), before, dim, fitted.takes_missing)
    indptr = np.concatenate([[0], np.cumsum(features.lengths)])
    return sp.csr_array((features.values, features.columns, indptr), shape=(len(batch), dim))
