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
from ps2.algorithms.frame.key_params import check_key_columns
from ps2.array_types import Float64s
from ps2.data.hashing import FieldHasher
from ps2.data.key_rows import KeyRows
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import with_python
from ps2.run.spark.frames import map_in_arrow

# Called in a task with n rows of keys; returns their margins, float64 of shape (n,).
Margins = Callable[[KeyRows], Float64s]


def with_class_predictions(frame: DataFrame, hasher: FieldHasher, margins: Margins, params: Any) -> DataFrame:
    """Add the predictions of a classifier of labels 0 and 1; see ``with_key_predictions``.

    Args:
        params: the model, for its rawPredictionCol, probabilityCol, predictionCol and threshold.
    """
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

    Args:
        hasher: makes keys from columns.
        margins: pickled into the tasks.
        head: turns margins of label 1 into predictions; None: predictions are the margins.
        names: (name, kind) of each new column; the kind is "raw", "probability" or "prediction". A column whose name is
            "" is not added.

    Raises:
        InputError: the DataFrame lacks a column of the hasher, a column has another type, or a new column exists
            already. Wrong values in rows raise an error of Spark when the rows are read.
    """
    check_frame(frame)
    check_key_columns(frame, hasher)
    wanted = [(name, what) for name, what in names if name]
    for name, _ in wanted:
        if name in frame.columns:
            raise InputError(f"column {name!r}: it is there already; choose another name for the predictions")
    if not wanted:
        return frame

    def predicted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        before = 0
        for batch in batches:
            found = _columns(margins(hasher.rows(batch, before)), head)
            before += batch.num_rows
            new = [found[what] for _, what in wanted]
            names_of_all = [*batch.schema.names, *(name for name, _ in wanted)]
            yield pa.RecordBatch.from_arrays([*batch.columns, *new], names=names_of_all)

    new = [StructField(name, _type(what), False) for name, what in wanted]
    whole = map_in_arrow(with_python(frame), predicted, StructType([*frame.schema.fields, *new]))
    # By number: columns that came twice, or that differ in case only, keep their names.
    numbered = whole.toDF(*(f"c{number}" for number in range(len(whole.columns))))
    kept = [F.col(f"c{number}").alias(name) for number, name in enumerate(frame.columns)]
    first = len(kept)
    added = [_described(F.col(f"c{first + at}"), name, what, head) for at, (name, what) in enumerate(wanted)]
    return numbered.select(*kept, *added)


def _type(what: str) -> Any:
    return DoubleType() if what == "prediction" else ArrayType(DoubleType(), False)


def _columns(margins: Float64s, head: ClassHead | None) -> dict[str, pa.Array]:
    if head is None:
        return {"prediction": pa.array(margins, pa.float64())}
    raw = head.raw(margins[:, None])
    probability = head.probability(raw)
    found = {"raw": raw} if probability is None else {"raw": raw, "probability": probability}
    lists = {name: _lists(values) for name, values in found.items()}
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
