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
from ps2.algorithms.factors.top_k import Excluded
from ps2.algorithms.frame.arrow_batches import as_lists, frame_of_rows
from ps2.algorithms.frame.tables import column, field
from ps2.array_types import Int64s
from ps2.errors import InputError
from ps2.run.spark.backend_lookup import backend_of, with_python

# Returns the broadcast model, in the driver or in a task.
GetFactors = Callable[[], MatrixFactors]

# The column of recommendations in results, and the field of a recommendation's predicted rating.
RECOMMENDATIONS, RATING = "recommendations", "rating"
# The maximum number of recommendations in an Arrow batch.
BATCH_RECOMMENDATIONS = 1 << 20
# Recommendations for all users (or items): the minimum number of users per task, and the maximum number of tasks per
# task slot.
MIN_USERS, MAX_TASKS = 1024, 4
# The columns of pairs: the position of an id that gets recommendations, and that of an id that it does not get, or
# REQUEST, which sorts first, in a row that asks for recommendations.
RECEIVER, RECOMMENDED, REQUEST = "receiver", "recommended", -1
PAIRS = f"{RECEIVER} long, {RECOMMENDED} long"
# The minimum number of pairs from which a task computes recommendations at once.
MIN_PAIRS = 1 << 16


@dataclass(frozen=True)
class Direction:
    """The side that gets recommendations; ``id_column`` has its ids, and ``recommended_field`` the recommended ids."""

    for_users: bool
    id_column: str
    recommended_field: str

    def sides(self, factors: MatrixFactors) -> tuple[Side, Side]:
        """Return the side that gets recommendations, and the side that is recommended."""
        return (factors.user, factors.item) if self.for_users else (factors.item, factors.user)

    def schema(self, factors: MatrixFactors) -> StructType:
        """Return the schema of recommendations: that of pyspark.ml, except for the types of ids."""
        receivers, recommended = self.sides(factors)
        recommended_ids = StructField(self.recommended_field, from_arrow_type(recommended.id_type))
        recommendations = ArrayType(StructType([recommended_ids, StructField(RATING, FloatType())]))
        ids = StructField(self.id_column, from_arrow_type(receivers.id_type), False)
        return StructType([ids, StructField(RECOMMENDATIONS, recommendations)])


def factors_frame(spark: Any, get_factors: GetFactors, side: Side, for_users: bool) -> DataFrame:
    """Return the ids and vectors of users or items: columns id, features (array of floats) and, with biases, bias."""
    fields = [StructField("id", from_arrow_type(side.id_type), False)]
    fields.append(StructField("features", ArrayType(FloatType(), False)))
    if side.bias is not None:
        fields.append(StructField("bias", FloatType(), False))

    def make_batch(positions: Int64s) -> pa.RecordBatch:
        side = get_factors().user if for_users else get_factors().item
        columns = [side.ids(positions), as_lists(side.factors[positions])]
        if side.bias is not None:
            columns.append(pa.array(side.bias[positions]))
        return pa.record_batch(columns, names=[field.name for field in fields])

    return frame_of_rows(spark, len(side.names), make_batch, StructType(fields))


def extended_frame(spark: Any, get_factors: GetFactors, side: Side, for_users: bool) -> DataFrame:
    """Return ``MatrixFactors.extended`` of users or items, in the columns of pyspark.ml: id (int) and features."""
    fields = [StructField("id", IntegerType(), False), StructField("features", ArrayType(FloatType(), False))]

    def make_batch(positions: Int64s) -> pa.RecordBatch:
        factors = get_factors()
        side, vectors = (factors.user if for_users else factors.item), factors.extended()[0 if for_users else 1]
        ids = side.ids(positions).cast(pa.int32())
        return pa.record_batch([ids, as_lists(vectors[positions])], names=["id", "features"])

    return frame_of_rows(spark, len(side.names), make_batch, StructType(fields))


def recommended(  # noqa: PLR0913 - the request's parts
    source: Any,
    get_factors: GetFactors,
    factors: MatrixFactors,
    direction: Direction,
    k: int,
    for_all: bool,
    exclude: DataFrame | None = None,
) -> DataFrame:
    """Return k recommendations for all ids of a side, ascending, or for each distinct known id of a DataFrame.

    ``source`` is the DataFrame or, with ``for_all``, the SparkSession. ``exclude`` has pairs that are not recommended.
    """
    receivers, _ = direction.sides(factors)
    slots = max(1, backend_of(source).total_slots())
    tasks = min(len(receivers.names), slots * min(MAX_TASKS, max(1, len(receivers.names) // (slots * MIN_USERS))))
    if for_all:
        ids = with_python(source).range(0, len(receivers.names), 1, tasks)
    else:
        check_ids(source, direction.id_column, receivers)
        ids = with_python(source.select(column(direction.id_column).alias("id")).distinct())

    def known_positions(batch: pa.RecordBatch) -> Int64s:
        names = direction.sides(get_factors())[0].names
        positions: Int64s = batch.column(0).to_numpy() if for_all else names.positions(batch.column(0))
        return positions[positions >= 0]

    def make_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from _recommend(get_factors(), direction, known_positions(batch), k)

    def make_requests(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _pairs(positions := known_positions(batch), np.full(len(positions), REQUEST))

    def make_without_excluded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for pairs in _whole_receivers(batches):
            requests = np.flatnonzero(pairs[1] == REQUEST)
            # The exclusions of ids that are not requested come before the first request, or after others' exclusions.
            owners = np.cumsum(pairs[1] == REQUEST) - 1
            is_own = owners >= 0
            is_own[is_own] = pairs[0][is_own] == pairs[0][requests[owners[is_own]]]
            excluded = Excluded.from_pairs(owners[is_own], pairs[1][is_own], len(requests))
            yield from _recommend(get_factors(), direction, pairs[0][requests], k, excluded)

    if exclude is None:
        frame: DataFrame = ids.mapInArrow(make_batches, direction.schema(factors))
        return frame
    pairs = _excluded_pairs(exclude, get_factors, factors, direction).union(ids.mapInArrow(make_requests, PAIRS))
    if not for_all:
        tasks = slots
    in_order = pairs.repartitionByRange(tasks, RECEIVER).sortWithinPartitions(RECEIVER, RECOMMENDED)
    without_excluded: DataFrame = with_python(in_order).mapInArrow(make_without_excluded, direction.schema(factors))
    return without_excluded


def _excluded_pairs(
    exclude: DataFrame, get_factors: GetFactors, factors: MatrixFactors, direction: Direction
) -> DataFrame:
    """Return the positions of the known pairs of a DataFrame, in the columns of ``PAIRS``."""
    names = direction.id_column, direction.recommended_field
    for name, side in zip(names, direction.sides(factors), strict=True):
        check_ids(exclude, name, side)

    def make_pairs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sides = direction.sides(get_factors())
            positions = [side.names.positions(batch.column(index)) for index, side in enumerate(sides)]
            is_known = np.minimum(*positions) >= 0
            yield _pairs(*(side_positions[is_known] for side_positions in positions))

    pairs: DataFrame = with_python(exclude.select(*map(column, names))).mapInArrow(make_pairs, PAIRS)
    return pairs


def _pairs(receivers: Int64s, positions: Int64s) -> pa.RecordBatch:
    return pa.record_batch([pa.array(receivers), pa.array(positions)], names=[RECEIVER, RECOMMENDED])


def _whole_receivers(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield sorted pairs again, in pieces that have all pairs of their receivers, and at least ``MIN_PAIRS`` each."""
    pieces: list[tuple[Int64s, Int64s]] = []
    for batch in batches:
        pieces.append((batch.column(0).to_numpy(), batch.column(1).to_numpy()))
        receivers = pieces[-1][0]
        if sum(len(piece[0]) for piece in pieces) < MIN_PAIRS or not len(receivers):
            continue
        last = int(np.searchsorted(receivers, receivers[-1]))
        if last:  # the last receiver may have more pairs in the next batch
            yield _concatenated([*pieces[:-1], (receivers[:last], pieces[-1][1][:last])])
            pieces = [(receivers[last:], pieces[-1][1][last:])]
    if pieces:
        yield _concatenated(pieces)


def _concatenated(pieces: list[tuple[Int64s, Int64s]]) -> tuple[Int64s, Int64s]:
    receivers, positions = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    return receivers, positions


def with_ratings(
    dataset: DataFrame, get_factors: GetFactors, factors: MatrixFactors, columns: tuple[str, str], name: str
) -> DataFrame:
    """Add a float column ``name`` of predictions, NaN for unknown ids and nulls; InputError: a column is of no ids.

    ``columns`` are those of users and items.
    """
    for id_column, side in zip(columns, (factors.user, factors.item), strict=True):
        check_ids(dataset, id_column, side)
    if name in with_python(dataset).columns:
        raise InputError(f"column {name!r}: it is there already; choose another name for the predictions")

    def predict(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
        for users, items in batches:
            yield pd.Series(get_factors().predict(pa.array(users), pa.array(items)))

    make_udf: Any = pandas_udf
    # Spark would call a deterministic function twice in a query that filters by its result.
    predict_udf = make_udf(predict, "float").asNondeterministic()
    # Pandas would convert integers beside nulls to floats, and Spark converts NaN from pandas to null.
    ids = [F.coalesce(column(id_column), F.lit(0).cast(field(dataset, id_column).dataType)) for id_column in columns]
    has_null = column(columns[0]).isNull() | column(columns[1]).isNull()
    predictions = F.coalesce(F.when(~has_null, predict_udf(*ids)), F.lit(math.nan).cast("float"))
    return dataset.select("*", predictions.alias(name))


def check_ids(frame: DataFrame, name: str, side: Side) -> None:
    """Raise InputError unless a column has ids of the type of the side's ids: integers or strings."""
    column_type = field(frame, name).dataType
    if not isinstance(column_type, IntegralType if side.names.are_integers else StringType):
        kind = "integers" if side.names.are_integers else "strings"
        raise InputError(
            f"column {name!r}: expected {kind}, as the {side.names.what}s that the model knows are, got "
            f"{column_type.simpleString()}"
        )


def _recommend(
    factors: MatrixFactors, direction: Direction, positions: Int64s, k: int, excluded: Excluded | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield batches of recommendations for users (or items) at these positions."""
    receivers, recommended = direction.sides(factors)
    k = min(k, len(recommended.names))
    step = max(1, BATCH_RECOMMENDATIONS // k)
    for begin in range(0, len(positions), step):
        selected = positions[begin : begin + step]
        hidden = None if excluded is None else excluded.cut(begin, begin + len(selected))
        scores, best = factors.best(selected, k, direction.for_users, hidden)
        exists = best >= 0
        columns = [recommended.ids(best[exists]), pa.array(scores[exists])]
        recommendations = pa.StructArray.from_arrays(columns, names=[direction.recommended_field, RATING])
        offsets = np.concatenate([[0], np.cumsum(exists.sum(axis=1))])
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), recommendations)
        yield pa.record_batch([receivers.ids(selected), lists], names=[direction.id_column, RECOMMENDATIONS])
