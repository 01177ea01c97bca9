"""DataFrames of factors, of predictions and of recommendations, computed in tasks from a broadcast model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, FloatType, IntegerType, IntegralType, StringType, StructField, StructType

from ps2.algorithms.factors.model import MatrixFactors, Side
from ps2.algorithms.frame.arrow_batches import as_lists, frame_of_rows
from ps2.algorithms.frame.tables import column, field
from ps2.array_types import Int64s
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import backend_of, with_python

Share = Callable[[], MatrixFactors]

# Names in the result: the column of recommendations, and the field of their predicted ratings.
RECOMMENDATIONS, RATING = "recommendations", "rating"
# The maximum number of recommendations in a batch for Spark.
BATCH_RECOMMENDATIONS = 1 << 20
# The minimum number of users for which a task computes recommendations, and the maximum number of tasks per task slot.
MIN_USERS, MAX_TASKS = 1024, 4


@dataclass(frozen=True)
class Direction:
    """The side that gets recommendations, users or items.

    Attributes:
        for_users: whether users get recommendations of items; else items get recommendations of users.
        own: the name of the column with the ids of this side.
        other: the name of the field with the recommended ids.
    """

    for_users: bool
    own: str
    other: str

    def sides(self, factors: MatrixFactors) -> tuple[Side, Side]:
        """Return the side that gets recommendations, and the recommended one."""
        return (factors.user, factors.item) if self.for_users else (factors.item, factors.user)

    def schema(self, factors: MatrixFactors) -> StructType:
        """Return the columns of recommendations: those of pyspark.ml, except for the types of ids."""
        own, other = self.sides(factors)
        recommended_ids = StructField(self.other, from_arrow_type(other.id_type))
        recommendations = ArrayType(StructType([recommended_ids, StructField(RATING, FloatType())]))
        ids = StructField(self.own, from_arrow_type(own.id_type), False)
        return StructType([ids, StructField(RECOMMENDATIONS, recommendations)])


def factors_frame(spark: Any, share: Share, side: Side, for_users: bool) -> DataFrame:
    """Return the ids and vectors of one side: columns id, features (array of floats) and, with biases, bias."""
    fields = [StructField("id", from_arrow_type(side.id_type), False)]
    fields.append(StructField("features", ArrayType(FloatType(), False)))
    if side.bias is not None:
        fields.append(StructField("bias", FloatType(), False))

    def make_batch(positions: Int64s) -> pa.RecordBatch:
        own = share().user if for_users else share().item
        columns = [own.ids(positions), as_lists(own.factors[positions])]
        if own.bias is not None:
            columns.append(pa.array(own.bias[positions]))
        return pa.record_batch(columns, names=[each.name for each in fields])

    return frame_of_rows(spark, len(side.names), make_batch, StructType(fields))


def extended_frame(spark: Any, share: Share, side: Side, for_users: bool) -> DataFrame:
    """Return vectors whose products are the predictions, in pyspark.ml's form: id (int) and features."""
    fields = [StructField("id", IntegerType(), False), StructField("features", ArrayType(FloatType(), False))]

    def make_batch(positions: Int64s) -> pa.RecordBatch:
        factors = share()
        own, vectors = (factors.user if for_users else factors.item), factors.extended()[0 if for_users else 1]
        ids = own.ids(positions).cast(pa.int32())
        return pa.record_batch([ids, as_lists(vectors[positions])], names=["id", "features"])

    return frame_of_rows(spark, len(side.names), make_batch, StructType(fields))


def recommended(
    source: Any, share: Share, factors: MatrixFactors, direction: Direction, k: int, for_all: bool
) -> DataFrame:
    """Return k recommendations for each id of a side, in order of the ids, or for each known id of a DataFrame, once.

    ``source`` is the DataFrame or, with ``for_all``, the SparkSession.
    """
    own, _ = direction.sides(factors)
    if for_all:
        slots = max(1, backend_of(source).total_slots())
        tasks = min(len(own.names), slots * min(MAX_TASKS, max(1, len(own.names) // (slots * MIN_USERS))))
        ids = with_python(source).range(0, len(own.names), 1, tasks)
    else:
        check_ids(source, direction.own, own)
        ids = with_python(source.select(column(direction.own).alias("id")).distinct())

    def make_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            names = direction.sides(share())[0].names
            positions = batch.column(0).to_numpy() if for_all else names.positions(batch.column(0))
            yield from _recommended(share(), direction, positions[positions >= 0], k)

    frame: DataFrame = ids.mapInArrow(make_batches, direction.schema(factors))
    return frame


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

    def predict(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
        for users, items in batches:
            yield pd.Series(share().predict(pa.array(users), pa.array(items)))

    make: Any = pandas_udf
    # A deterministic function would run twice in a query that filters by its result.
    ratings = make(predict, "float").asNondeterministic()
    # Spark turns the NaN of pandas into null.
    predictions = F.coalesce(ratings(*(_not_null(each) for each in columns)), F.lit(math.nan).cast("float"))
    return dataset.select("*", predictions.alias(name))


def check_ids(frame: DataFrame, name: str, side: Side) -> None:
    """Raise InputError unless a column has ids of the type that a side has."""
    column_type = field(frame, name).dataType
    if not isinstance(column_type, IntegralType if side.names.are_integers else StringType):
        kind = "integers" if side.names.are_integers else "strings"
        raise InputError(
            f"column {name!r}: expected {kind}, as the {side.names.what}s that the model knows are, got "
            f"{column_type.simpleString()}"
        )


def _not_null(name: str) -> Any:
    fault = F.raise_error(F.lit(f"column {name!r}: expected ids, got null"))
    return F.when(column(name).isNull(), fault).otherwise(column(name))


def _recommended(factors: MatrixFactors, direction: Direction, positions: Int64s, k: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of recommendations for the side that gets them, given the positions of its ids."""
    own, other = direction.sides(factors)
    k = min(k, len(other.names))
    step = max(1, BATCH_RECOMMENDATIONS // k)
    for begin in range(0, len(positions), step):
        block = positions[begin : begin + step]
        scores, best = factors.best(block, k, direction.for_users)
        columns = [other.ids(best.reshape(-1)), pa.array(scores.reshape(-1))]
        recommendations = pa.StructArray.from_arrays(columns, names=[direction.other, RATING])
        lists = pa.ListArray.from_arrays(pa.array(np.arange(len(block) + 1) * k, pa.int32()), recommendations)
        yield pa.record_batch([own.ids(block), lists], names=[direction.own, RECOMMENDATIONS])
