"""Survey a DataFrame of rows without labels before training."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ps2.algorithms.estimators.dealing import cost_of
from ps2.algorithms.estimators.loads import PART, loads_of, sums_of
from ps2.algorithms.estimators.tables import TableSurvey, dim_of, first_row, in_one_partition_if_small
from ps2.algorithms.training.faults import ColumnNames


def survey_rows(frame: DataFrame, columns: ColumnNames) -> TableSurvey:
    """Survey rows; two Spark jobs, of which the first reads one row. The workers check values and weights.

    Args:
        frame: with columns that ``check_columns`` accepts.

    Raises:
        InputError: there is no row, or no feature.
    """
    dim = dim_of(frame, columns.features, first_row(frame, columns))
    rows = frame.select(F.spark_partition_id().alias(PART), cost_of(frame, columns.features).alias("stored"))
    found = in_one_partition_if_small(rows).groupBy(PART).agg(*sums_of(F.col("stored"))).collect()
    return TableSurvey(dim, loads_of(found))
