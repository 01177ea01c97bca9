"""Adds columns of predictions to a DataFrame whose rows become keys in the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType

from ps2.algorithms.frame.frames import check_frame
from ps2.algorithms.frame.heads import ClassHead
from ps2.algorithms.frame.key_hasher import check_key_columns
from ps2.array_types import Float64s
from ps2.data.hashing import FieldHasher
from ps2.data.key_rows import KeyRows
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import with_python
from ps2.run.spark.frames import map_in_arrow

# Called in a task with n rows of keys; returns their margins, float64 of shape (n,).
Margins = Callable[[KeyRows], Float64s]


def with_class_predictions(frame: DataFrame, hasher: FieldHasher, margins: Margins, params: Any) -> DataFrame:
    """Add the predictions of a classifier of labels 0 and 1; see ``with_key_predictions``."""
    names = [
        (params.getRawPredictionCol(), "raw"),
        (params.getProbabilityCol(), "probability"),
        (params.getPredictionCol(), "prediction"),
    ]
    head = ClassHead(2, "logistic", threshold=params.getThreshold())
    return with_key_predictions(frame, hasher, margins, head, names)


def with_key_predictions(
    frame: DataFrame, hasher: FieldHasher, margins: Margins, head: ClassHead | None, names: Sequence[tuple[str, str]]
) -> DataFrame:
    """Add columns of predictions. Tasks get whole rows as Arrow, so that no integer is rounded on the way.

    Without a head, predictions are the margins. ``names`` are (name, kind) of the columns; one named "" is not added.
    """
    check_frame(frame)
    check_key_columns(frame, hasher)
    outputs = [(name, what) for name, what in names if name]
    for name, _ in outputs:
        if name in frame.columns:
            raise InputError(f"column {name!r}: it is there already; choose another name for the predictions")
    if not outputs:
        return frame

    def predicted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        before = 0
        for batch in batches:
            predictions = _columns(margins(hasher.rows(batch, before)), head)
            before += batch.num_rows
            new = [predictions[what] for _, what in outputs]
            names_of_all = [*batch.schema.names, *(name for name, _ in outputs)]
            yield pa.RecordBatch.from_arrays([*batch.columns, *new], names=names_of_all)

    new = [StructField(name, _type(what), False) for name, what in outputs]
    whole = map_in_arrow(with_python(frame), predicted, StructType([*frame.schema.fields, *new]))
    # By number: columns that came twice, or that differ in case only, keep their names.
    numbered = whole.toDF(*(f"c{number}" for number in range(len(whole.columns))))
    columns = [F.col(f"c{number}").alias(name) for number, name in enumerate(frame.columns)]
    first = len(columns)
    added = [_described(F.col(f"c{first + number}"), name, what, head) for number, (name, what) in enumerate(outputs)]
    return numbered.select(*columns, *added)


def _type(what: str) -> Any:
    return DoubleType() if what == "prediction" else ArrayType(DoubleType(), False)


def _columns(margins: Float64s, head: ClassHead | None) -> dict[str, pa.Array]:
    if head is None:
        return {"prediction": pa.array(margins, pa.float64())}
    raw = head.raw(margins[:, None])
    probability = head.probability(raw)
    values_by_kind = {"raw": raw} if probability is None else {"raw": raw, "probability": probability}
    lists = {name: _lists(values) for name, values in values_by_kind.items()}
    return {**lists, "prediction": pa.array(head.prediction(raw), pa.float64())}


def _lists(values: Float64s) -> pa.Array:
    ends = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(values.reshape(-1)))


def _described(values: Column, name: str, what: str, head: ClassHead | None) -> Column:
    """Return a new column with pyspark.ml's type and metadata for its kind."""
    from pyspark.ml.functions import array_to_vector

    if what == "prediction":
        attributes = {"type": "nominal", "num_vals": 2} if head is not None else {}
        return values.alias(name, metadata={"ml_attr": attributes})
    vectors = array_to_vector(values)
    return F.coalesce(vectors, vectors).alias(name, metadata={"ml_attr": {"num_attrs": 2}})
