"""Predictions of rows whose columns are hashed to keys in the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType

from ps2.algorithms.frame.frames import check_frame
from ps2.algorithms.frame.heads import ClassHead
from ps2.algorithms.frame.key_hasher import check_key_columns
from ps2.algorithms.frame.predict import metadata_of
from ps2.algorithms.frame.tables import check_new_columns
from ps2.array_types import Float64s
from ps2.data.hashing import FieldHasher
from ps2.data.key_rows import KeyRows
from ps2.run.spark.backend_lookup import with_python
from ps2.run.spark.frames import map_in_arrow

# Called in a task with n rows of keys; returns their margins, float64 of shape (n,).
Margins = Callable[[KeyRows], Float64s]


def with_key_predictions(
    frame: DataFrame, hasher: FieldHasher, margins: Margins, head: ClassHead | None, names: Sequence[tuple[str, str]]
) -> DataFrame:
    """Add columns of predictions. Tasks receive rows as Arrow batches, so that no integer is rounded on the way.

    Args:
        head: turns margins into predictions; None: the predictions are the margins.
        names: the name and the kind of each new column; a column named "" is left out.
    """
    check_frame(frame)
    check_key_columns(frame, hasher)
    outputs = [(name, kind) for name, kind in names if name]
    new_names = [name for name, _ in outputs]
    check_new_columns(frame, new_names)
    if not outputs:
        return frame

    def predicted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        num_before = 0
        for batch in batches:
            predictions = _columns(margins(hasher.rows(batch, num_before)), head)
            num_before += batch.num_rows
            new = [predictions[kind] for _, kind in outputs]
            yield pa.RecordBatch.from_arrays([*batch.columns, *new], names=[*batch.schema.names, *new_names])

    types = [DoubleType() if kind == "prediction" else ArrayType(DoubleType(), False) for _, kind in outputs]
    new = [StructField(name, type, False) for name, type in zip(new_names, types, strict=True)]
    predictions = map_in_arrow(with_python(frame), predicted, StructType([*frame.schema.fields, *new]))
    # Columns are selected by number, as names can be equal, or differ in case only.
    numbered = predictions.toDF(*(f"c{number}" for number in range(len(predictions.columns))))
    columns = [F.col(f"c{number}").alias(name) for number, name in enumerate(frame.columns)]
    first = len(columns)
    added = [_described(F.col(f"c{first + number}"), name, kind, head) for number, (name, kind) in enumerate(outputs)]
    return numbered.select(*columns, *added)


def _columns(margins: Float64s, head: ClassHead | None) -> dict[str, pa.Array]:
    if head is None:
        return {"prediction": pa.array(margins, pa.float64())}
    raw = head.raw(margins[:, None])
    probability = head.probability(raw)
    values_by_kind = {"raw": raw} if probability is None else {"raw": raw, "probability": probability}
    lists = {name: _lists(values) for name, values in values_by_kind.items()}
    return {**lists, "prediction": pa.array(head.prediction(raw), pa.float64())}


def _lists(values: Float64s) -> pa.Array:
    offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.reshape(-1)))


def _described(values: Column, name: str, kind: str, head: ClassHead | None) -> Column:
    """Return a new column with pyspark.ml's type and metadata for its kind."""
    from pyspark.ml.functions import array_to_vector

    if kind != "prediction":
        vectors = array_to_vector(values)
        values = F.coalesce(vectors, vectors)
    return values.alias(name, metadata=metadata_of(kind, None if head is None else head.classes))
