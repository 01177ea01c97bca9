"""Survey the ratings of a DataFrame in one pass, which also puts them into chunks for the workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ps2.algorithms.factors.chunks import CHUNKS, HELD, ITEM, RATING, USER, WEIGHT, join_batches
from ps2.algorithms.factors.plan import FittedFactors
from ps2.algorithms.factors.settings import MAX_VALUE, FactorizationSettings
from ps2.algorithms.factors.survey_rows import FAULTS, PARTS, Surveyor, SurveyResult, merge_parts
from ps2.algorithms.frame.arrow_batches import spark_schema
from ps2.array_types import Float64s, Int64s
from ps2.data.ids import UNKNOWN, Ids
from ps2.errors import InputError, LimitError
from ps2.run.spark.backend_lookup import in_one_wave, with_python

# The maximum number of users, and of items: their positions are int32.
MAX_IDS = 2**31 - 1
# What each column has, for messages.
ROLES = {USER: "user ids", ITEM: "item ids", RATING: "ratings", WEIGHT: "weights", HELD: "marks of held-out rows"}


@dataclass(frozen=True)
class RatingColumns:
    """The names of a DataFrame's columns; None: all ratings, or all weights, are 1, or no row is held out."""

    user: str = "user"
    item: str = "item"
    rating: str | None = "rating"
    weight: str | None = None
    validation: str | None = None

    @property
    def by_role(self) -> dict[str, str]:
        """The names of the columns by role: the names that tasks use, such as ``chunks.USER``."""
        names = {USER: self.user, ITEM: self.item, RATING: self.rating, WEIGHT: self.weight, HELD: self.validation}
        return {role: name for role, name in names.items() if name is not None}


@dataclass(frozen=True, eq=False)
class RatingsSurvey:
    """The statistics of ratings before the training.

    Attributes:
        users, items: the ids with ratings that are not held out, and the ids of the initial model.
        user_counts, item_counts: the number of ratings of each user and each item, without held-out ratings.
        user_penalties, item_penalties: the weight of each user's and each item's squared norm in the penalty, without
            ``regParam``. This is the summed weight of its ratings; with implicit feedback, of its ratings above 0.
        rows, held_out: the number of ratings without held-out ratings, and of held-out ratings.
        mean, std: the weighted mean and the population standard deviation of the ratings.
        chunks, cached: a DataFrame of ``CHUNKS``, and the DataFrame in Spark's cache that it reads; None in tests only.
    """

    columns: RatingColumns
    users: Ids
    items: Ids
    user_counts: Int64s
    item_counts: Int64s
    user_penalties: Float64s
    item_penalties: Float64s
    rows: int
    held_out: int
    mean: float
    std: float
    chunks: Any = None
    cached: Any = None

    def release(self) -> None:
        """Remove the chunks from Spark's cache. If they are needed again, the ratings are read again."""
        if self.cached is not None:
            self.cached.unpersist()

    def with_ids_of(self, model: FittedFactors | None) -> RatingsSurvey:
        """Add a model's ids, with counts of 0, to a copy; raise InputError if only one of both has integers as ids."""
        if model is None:
            return self
        users, *user_arrays = _unite("users", self.users, model.users, self.user_counts, self.user_penalties)
        items, *item_arrays = _unite("items", self.items, model.items, self.item_counts, self.item_penalties)
        counts = {"user_counts": user_arrays[0], "item_counts": item_arrays[0]}
        penalties = {"user_penalties": user_arrays[1], "item_penalties": item_arrays[1]}
        return replace(self, users=users, items=items, **counts, **penalties)


def survey_ratings(frame: Any, columns: RatingColumns, settings: FactorizationSettings) -> RatingsSurvey:
    """Survey ratings in one Spark job, which collects each task's distinct ids in the driver.

    The job also writes chunks of ratings to Spark's cache, from which ``deal_ratings`` sends them to the workers;
    ``train`` frees the cache. Raise InputError for invalid ratings, LimitError if there are too many users or items.
    """
    from pyspark.sql import functions as F

    schema = pa.unify_schemas([PARTS, CHUNKS])

    def survey(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context, surveyor = TaskContext.get(), surveyor_for(columns, settings)
        part = 0 if context is None else context.partitionId()
        for number, table in enumerate(join_batches(batches)):
            chunk = surveyor.add(table)
            if chunk is not None:
                yield pa.RecordBatch.from_pylist([chunk.to_row(part, number)], schema)
        if surveyor.rows:
            yield pa.RecordBatch.from_pylist([surveyor.to_row(part)], schema)

    rows = with_python(in_one_wave(cast_columns(frame, columns)))
    # The rows of CHUNKS, and a row of PARTS for each task.
    chunks = rows.mapInArrow(survey, spark_schema(schema)).persist()
    try:
        parts = chunks.where(F.col("sums").isNotNull()).select(*PARTS.names).collect()
        statistics = _checked(merge_parts(parts), columns, settings)
    except BaseException:
        chunks.unpersist()
        raise
    return replace(statistics, chunks=chunks.where(F.col("sums").isNull()).select(*CHUNKS.names), cached=chunks)


def surveyor_for(columns: RatingColumns, settings: FactorizationSettings) -> Surveyor:
    return Surveyor(columns.by_role, settings.nonnegative or settings.implicitPrefs, settings.implicitPrefs)


def cast_columns(frame: Any, columns: RatingColumns) -> Any:
    """Name columns by role, and cast ids to long or string, numbers to double; raise InputError for other types."""
    from pyspark.sql.types import BooleanType, IntegralType, NumericType, StringType

    from ps2.algorithms.frame.tables import column, field

    typed_columns = []
    for role, name in columns.by_role.items():
        kind, expression = field(frame, name).dataType, column(name)
        if role in (USER, ITEM):
            if not isinstance(kind, (IntegralType, StringType)):
                raise InputError(
                    f"column {name!r}: expected {ROLES[role]}, integers of at most 64 bits or strings, got "
                    f"{kind.simpleString()}; cast it to long or string"
                )
            expression = expression.cast("long" if isinstance(kind, IntegralType) else "string")
        elif role == HELD:
            if not isinstance(kind, BooleanType):
                raise InputError(
                    f"column {name!r}: expected booleans, true for rows to hold out, got {kind.simpleString()}"
                )
        elif isinstance(kind, (NumericType, BooleanType)):
            expression = expression.cast("double")
        else:
            raise InputError(f"column {name!r}: expected numbers as {ROLES[role]}, got {kind.simpleString()}")
        typed_columns.append(expression.alias(role))
    return frame.select(*typed_columns)


def _checked(survey: SurveyResult, columns: RatingColumns, settings: FactorizationSettings) -> RatingsSurvey:
    """Return the result of a survey; raise InputError or LimitError if its ratings cannot be trained on."""
    if not survey.rows:
        raise InputError("expected ratings, got an empty DataFrame")
    if survey.faults.any():
        _fail(survey, columns, settings)
    if not survey.sums.rows or survey.users is None or survey.items is None:
        raise InputError("expected ratings to train on, but all of them are held out (validationIndicatorCol)")
    if not survey.sums.weight > 0:
        raise InputError(f"column {columns.weight!r}: expected weights of which some are above 0, got zeros only")
    if settings.implicitPrefs and survey.sums.mean == 0:
        raise InputError(f"column {columns.rating!r}: expected ratings above 0 (implicitPrefs), got zeros only")
    sums, (users, user_counts, user_penalties) = survey.sums, survey.users
    items, item_counts, item_penalties = survey.items
    for name, ids in (("users", users), ("items", items)):
        if len(ids) > MAX_IDS:
            raise LimitError(f"{name}: expected at most {MAX_IDS:,}, got {len(ids):,}")
    std = float(np.sqrt(max(sums.squares, 0.0) / sums.weight))
    id_counts = (users, items, user_counts, item_counts, user_penalties, item_penalties)
    return RatingsSurvey(columns, *id_counts, sums.rows, sums.held_out, sums.mean, std)


def _fail(survey: SurveyResult, columns: RatingColumns, settings: FactorizationSettings) -> NoReturn:
    """Raise InputError with the faults of the first column that has any."""
    role = next(role for (role, _), count in zip(FAULTS, survey.faults, strict=True) if count)
    faults = ", ".join(
        f"{count} {fault}"
        for (fault_role, fault), count in zip(FAULTS, survey.faults, strict=True)
        if fault_role == role and count
    )
    sign = " that are not negative" if role == WEIGHT or _forbids_negative(settings) else ""
    expected = {
        RATING: f"finite ratings up to {MAX_VALUE:g}{sign}" + (f" ({_forbids_negative(settings)})" if sign else ""),
        WEIGHT: f"finite weights up to {MAX_VALUE:g}{sign}",
        HELD: "true or false",
    }.get(role, ROLES[role])
    raise InputError(
        f"column {columns.by_role[role]!r}: expected {expected}, got {faults} in {survey.rows} rows; such a row: "
        f"{survey.example}"
    )


def _forbids_negative(settings: FactorizationSettings) -> str:
    """Return the name of the param that forbids negative ratings; "": negative ratings are allowed."""
    return "implicitPrefs" if settings.implicitPrefs else "nonnegative" if settings.nonnegative else ""


def _unite(name: str, ids: Ids, model_ids: Ids, *arrays: npt.NDArray[Any]) -> tuple[Any, ...]:
    """Return the union of both ids, and ``arrays``, which have an element for each id, with zeros for new ids."""
    if ids.are_integers != model_ids.are_integers:
        kinds = ["integers" if side.are_integers else "strings" for side in (ids, model_ids)]
        raise InputError(f"{name}: the ids are {kinds[0]}, and those of the initial model are {kinds[1]}")
    is_new = ids.find(model_ids.values) == UNKNOWN
    if not is_new.any():
        return ids, *arrays
    union = Ids.from_values(pa.concat_arrays([ids.values, model_ids.values.filter(pa.array(is_new))]))
    indices, extended = union.numbers(ids.values), [np.zeros(len(union), array.dtype) for array in arrays]
    for target, array in zip(extended, arrays, strict=True):
        target[indices] = array
    return union, *extended
