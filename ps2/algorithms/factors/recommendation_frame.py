"""DataFrames of factors, of predictions and of recommendations, computed in tasks from a broadcast model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from ps2.algorithms.factors.model import MatrixFactors
from ps2.algorithms.factors.side import Side
from ps2.algorithms.frame.tables import column, field
from ps2.array_types import Int64s
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import backend_of, with_python

Share = Callable[[], MatrixFactors]

# Types of ids, in Arrow and in Spark.
TYPES: dict[pa.DataType, DataType] = {
    pa.int8(): ByteType(),
    pa.int16(): ShortType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.string(): StringType(),
}
INTEGERS = (ByteType, ShortType, IntegerType, LongType)
RECOMMENDATIONS, RATING = "recommendations", "rating"
# The number of vectors, and of recommendations, in a batch for Spark.
BATCH_VECTORS, MAX_RECOMMENDED = 4096, 1 << 20
# The minimum number of users of a task, and the maximum number of tasks of a slot.
MIN_USERS, MAX_TASKS = 1024, 4


@dataclass(frozen=True)
class Direction:
    """The side that gets recommendations, users or items, and the names of both columns of ids."""

    for_users: bool
    own: str
    other: str

    def sides(self, factors: MatrixFactors) -> tuple[Side, Side]:
        """Return the side that gets recommendations, and the recommended one."""
        return (factors.user, factors.item) if self.for_users else (factors.item, factors.user)

    def schema(self, factors: MatrixFactors) -> StructType:
        """Return the columns of recommendations: pyspark.ml's, but for the types of ids."""
        own, other = self.sides(factors)
        each = StructType([StructField(self.other, TYPES[other.kind]), StructField(RATING, FloatType())])
        ids = StructField(self.own, TYPES[own.kind], False)
        return StructType([ids, StructField(RECOMMENDATIONS, ArrayType(each))])


def factors_frame(spark: Any, share: Share, side: Side, for_users: bool) -> DataFrame:
    """Return the ids and vectors of one side: columns id, features (array of floats) and, with biases, bias."""
    fields = [StructField("id", TYPES[side.kind], False), StructField("features", ArrayType(FloatType(), False))]
    if side.bias is not None:
        fields.append(StructField("bias", FloatType(), False))

    def make_batch(positions: Int64s) -> pa.RecordBatch:
        own = share().user if for_users else share().item
        columns = [own.ids(positions), as_lists(own.factors[positions])]
        if own.bias is not None:
            columns.append(pa.array(own.bias[positions]))
        return pa.record_batch(columns, names=[each.name for each in fields])

    return _over_positions(spark, len(side), make_batch, fields)


def extended_frame(spark: Any, share: Share, side: Side, for_users: bool) -> DataFrame:
    """Return vectors whose products are the predictions, in pyspark.ml's form: id (int) and features."""
    fields = [StructField("id", IntegerType(), False), StructField("features", ArrayType(FloatType(), False))]

    def make_batch(positions: Int64s) -> pa.RecordBatch:
        factors = share()
        own, vectors = (factors.user if for_users else factors.item), factors.extended()[0 if for_users else 1]
        return pa.record_batch(
            [own.ids(positions).cast(pa.int32()), as_lists(vectors[positions])], names=["id", "features"]
        )

    return _over_positions(spark, len(side), make_batch, fields)


def recommended_to_all(spark: Any, share: Share, factors: MatrixFactors, direction: Direction, k: int) -> DataFrame:
    """Return the k best of the other side for all ids of a side, in order of the ids."""
    own, _ = direction.sides(factors)
    slots = max(1, backend_of(spark).total_slots())
    tasks = min(len(own), slots * min(MAX_TASKS, max(1, len(own) // (slots * MIN_USERS))))

    def make_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from _recommended(share(), direction, batch.column(0).to_numpy(), k)

    frame: DataFrame = (
        with_python(spark).range(0, len(own), 1, tasks).mapInArrow(make_batches, direction.schema(factors))
    )
    return frame


def recommended_to_some(
    dataset: DataFrame, share: Share, factors: MatrixFactors, direction: Direction, k: int
) -> DataFrame:
    """Return the k best of the other side for each id of a DataFrame that the model knows, once."""
    check_ids(dataset, direction.own, direction.sides(factors)[0])
    ids = dataset.select(column(direction.own).alias("id")).distinct()

    def make_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            positions = direction.sides(share())[0].names.positions(batch.column(0))
            yield from _recommended(share(), direction, positions[positions >= 0], k)

    return with_python(ids).mapInArrow(make_batches, direction.schema(factors))


def with_ratings(
    dataset: DataFrame, share: Share, factors: MatrixFactors, columns: tuple[str, str], name: str
) -> DataFrame:
    """Add a column of predictions: float, NaN for unknown ids.

    A null id raises an error of Spark when the rows are read; other faults of columns raise InputError at once.
    """
    for each, side in zip(columns, (factors.user, factors.item), strict=True):
        check_ids(dataset, each, side)
    if name in with_python(dataset).columns:
        raise InputError(f"column {name!r}: it is there already; choose another name for the predictions")
    make: Any = pandas_udf
    # Spark would compute it twice to filter by it.
    ratings = make(_rater(share), "float").asNondeterministic()
    # pandas has no null but NaN, which Spark takes for null.
    predictions = F.coalesce(ratings(*(_not_null(each) for each in columns)), F.lit(math.nan).cast("float"))
    return dataset.select("*", predictions.alias(name))


def check_ids(frame: DataFrame, name: str, side: Side) -> None:
    """Raise InputError unless a column has ids of the type that a side has."""
    column_type = field(frame, name).dataType
    if not isinstance(column_type, INTEGERS if side.names.are_integers else StringType):
        kind = "integers" if side.names.are_integers else "strings"
        raise InputError(
            f"column {name!r}: expected {kind}, as the {side.names.what}s that the model knows are, got "
            f"{column_type.simpleString()}"
        )


def id_kind(frame: DataFrame, name: str) -> pa.DataType:
    """Return the Arrow type of a column of ids, which are integers or strings."""
    column_type = field(frame, name).dataType
    return next(kind for kind, spark_type in TYPES.items() if isinstance(column_type, type(spark_type)))


def as_lists(rows: npt.NDArray[np.float32]) -> pa.ListArray:
    """Return the rows of a matrix as lists."""
    n, dim = rows.shape
    offsets = pa.array(np.arange(n + 1) * dim, pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(np.ascontiguousarray(rows).reshape(-1)))


def _not_null(name: str) -> Any:
    fault = F.raise_error(F.lit(f"column {name!r}: expected ids, got null"))
    return F.when(column(name).isNull(), fault).otherwise(column(name))


def _rater(share: Share) -> Any:
    def rated(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
        factors = share()
        for users, items in batches:
            yield pd.Series(factors.predict(pa.array(users), pa.array(items)))

    return rated


def _recommended(factors: MatrixFactors, direction: Direction, positions: Int64s, k: int) -> Iterator[pa.RecordBatch]:
    """Yield recommendations for positions of the own side, some at a time."""
    own, other = direction.sides(factors)
    k = min(k, len(other))
    step = max(1, MAX_RECOMMENDED // k)
    for begin in range(0, len(positions), step):
        some = positions[begin : begin + step]
        scores, best = factors.best(some, k, direction.for_users)
        each = pa.StructArray.from_arrays(
            [other.ids(best.reshape(-1)), pa.array(scores.reshape(-1))], names=[direction.other, RATING]
        )
        lists = pa.ListArray.from_arrays(pa.array(np.arange(len(some) + 1) * k, pa.int32()), each)
        yield pa.record_batch([own.ids(some), lists], names=[direction.own, RECOMMENDATIONS])


def _over_positions(
    spark: Any, count: int, make_batch: Callable[[Int64s], pa.RecordBatch], fields: list[StructField]
) -> DataFrame:
    """Return the DataFrame of the batches that tasks make of positions."""

    def make_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            positions = batch.column(0).to_numpy()
            for begin in range(0, len(positions), BATCH_VECTORS):
                yield make_batch(positions[begin : begin + BATCH_VECTORS])

    parts = max(1, min(backend_of(spark).total_slots(), count // BATCH_VECTORS))
    frame: DataFrame = with_python(spark).range(0, count, 1, parts).mapInArrow(make_batches, StructType(fields))
    return frame
