"""A look at a table before training: facts, faults of labels and weights, and how rows are dealt out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StructField, StructType

from ps2.algorithms import DeepWalk, FMRegressionModel, MatrixFactorization
from ps2.algorithms.frame.dealing import check_workers, deal
from ps2.algorithms.frame.frames import as_arrow_structs
from ps2.algorithms.frame.tables import check_columns, survey
from ps2.algorithms.frame.unlabelled import survey_rows
from ps2.algorithms.linear.model import Weights
from ps2.algorithms.linear.plan import Problem
from ps2.algorithms.training.faults import ColumnNames
from ps2.errors import ConfigError, InputError, SlotsError
from ps2.run.spark.backend_lookup import backend_of

COLUMNS = ColumnNames()
WEIGHTED = ColumnNames(weight="weight")


def table(spark, rows, types="label double, weight double", partitions=2):
    """Rows of (label, weight), with features beside them."""
    frame = spark.createDataFrame(rows, types).coalesce(1).repartition(partitions)
    return frame.withColumn("features", F.array(F.lit(1.0), F.lit(2.0)))


def counts(frame):
    sizes = frame.rdd.mapPartitions(lambda rows: [sum(1 for _ in rows)]).collect()
    return sorted(sizes)


def test_survey_when_labels_are_numbers_then_weighted_moments(spark):
    y, w = np.array([1000.5, 1001.0, 1004.0, 999.0]), np.array([1.0, 2.0, 0.5, 3.0])
    facts = survey(table(spark, list(zip(y.tolist(), w.tolist(), strict=True))), WEIGHTED, None).facts
    mean = np.average(y, weights=w)
    variance = w @ (y - mean) ** 2 / (w.sum() - (w**2).sum() / w.sum())
    assert facts.rows == 4
    np.testing.assert_allclose([facts.weight, facts.weight_squared], [w.sum(), (w**2).sum()])
    np.testing.assert_allclose([facts.label_mean, facts.label_std], [mean, math.sqrt(variance)], rtol=1e-10)


def test_survey_when_labels_are_classes_then_weighted_by_class(spark):
    result = survey(table(spark, [(0.0, 1.0), (2.0, 2.0), (2.0, 0.5)]), WEIGHTED, 0)
    assert result.facts.class_weights == (1.0, 0.0, 2.5)
    assert result.dim == 2
    assert result.rows == 3


@pytest.mark.parametrize(
    ("rows", "expected"), [([(0.0, 1.0)], (1.0, 0.0)), ([(0.0, 0.0), (2.0, 2.0)], (0.0, 0.0, 2.0))]
)
def test_survey_when_rows_are_of_one_class_then_lower_ones_exist(spark, rows, expected):
    assert survey(table(spark, rows), WEIGHTED, 0).facts.class_weights == expected


def test_survey_when_metadata_has_more_classes_then_counts_them(spark):
    frame = table(spark, [(0.0, 1.0), (1.0, 1.0)])
    nominal = F.col("label").alias("label", metadata={"ml_attr": {"type": "nominal", "vals": ["a", "b", "c"]}})
    assert survey(frame.select("features", nominal), COLUMNS, 0).facts.class_weights == (1.0, 1.0, 0.0)


def test_survey_when_rows_are_held_out_then_facts_exclude_them(spark):
    frame = table(spark, [(0.0, 1.0), (1.0, 1.0), (1.0, 5.0)]).withColumn("held", F.col("weight") > 2)
    assert survey(frame, ColumnNames(weight="weight", validation="held"), 2).facts.class_weights == (1.0, 1.0)


def test_deal_when_vectors_are_dense_then_lists_are_not_null(spark):
    vectors = [(0.0, Vectors.dense(1.0, 2.0)), (1.0, Vectors.sparse(2, [1], [3.0]))]
    frame = spark.createDataFrame(vectors, ["label", "features"])
    rows = deal(frame, COLUMNS, survey(frame, COLUMNS, 2), 1).frame.orderBy("label").collect()
    assert [tuple(row.features) for row in rows] == [(1, None, [], [1.0, 2.0]), (0, 2, [1], [3.0])]


def test_as_arrow_structs_when_a_vector_is_null_then_null(spark):
    frame = spark.createDataFrame([(None,)], StructType([StructField("v", VectorUDT())]))
    assert frame.select(as_arrow_structs(frame["v"]).alias("v")).head().v is None


def test_survey_when_vectors_have_metadata_then_dim_is_from_it(spark):
    frame = VectorAssembler(inputCols=["label", "weight"], outputCol="both").transform(table(spark, [(0.0, 1.0)] * 2))
    assert survey(frame, ColumnNames("both"), None).dim == 2


@pytest.fixture(scope="module")
def unsorted(spark, tmp_path_factory):
    """A vector whose indices do not ascend: Spark refuses to make it, other writers of files do not."""
    path = str(tmp_path_factory.mktemp("unsorted") / "rows")
    vector = "named_struct('type', 0Y, 'size', 4, 'indices', array(3, 0, 3), 'values', array(1D, 2D, .5D))"
    spark.sql(f"select 1D as label, {vector} as features").write.parquet(path)
    fields = [StructField("label", DoubleType()), StructField("features", VectorUDT())]
    return spark.read.schema(StructType(fields)).parquet(path)


def test_survey_when_indices_do_not_ascend_then_dim_is_known(unsorted):
    assert survey(unsorted, COLUMNS, None).dim == 4
    assert survey_rows(unsorted, ColumnNames(label=None)).dim == 4


def test_survey_when_a_row_is_faulty_then_its_vector_is_shown(unsorted):
    with pytest.raises(InputError, match=r"got 1 no such class in 1 rows; such a row: .*indices=\[3, 0, 3\]"):
        survey(unsorted.withColumn("label", F.lit(-1.0)), COLUMNS, 2)


def test_transform_when_indices_do_not_ascend_then_summed(unsorted):
    problem = Problem("fmSquared", 4, width=3)
    model = FMRegressionModel(Weights(problem, np.arange(12.0).reshape(4, 3), np.ones(1)))
    expected = model.predict(Vectors.sparse(4, [0, 3], [2.0, 1.5]))
    assert model.transform(unsorted).select("prediction").head()[0] == expected


BAD = [
    (
        [(None, 1.0), (1.0, 1.0), (math.nan, 1.0), (math.inf, 1.0)],
        None,
        "'label': expected a finite number, got 1 null, 1 NaN, 1 infinite in 4 rows; such a row: Row",
    ),
    (
        [(0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (0.5, 1.0), (-1.0, 1.0)],
        2,
        r"'label': expected a class, one of 0 to 1, got 3 no such class in 5 rows; such a row: Row.*; .*StringIndexer",
    ),
    ([(0.0, 1.0), (100.0, 1.0)], 0, r"one of 0 to 99 \(100 classes at most without metadata\), got 1 no such class"),
    (
        [(0.0, -1.0), (1.0, None), (1.0, math.nan), (1.0, 1.0)],
        2,
        "'weight': expected a finite weight that is not negative, got 1 null, 1 NaN, 1 negative in 4 rows",
    ),
    ([(0.0, 0.0), (1.0, 0.0)], None, "weights of which some are above 0, got 2 rows whose weights are all 0"),
    ([(1e200, 1.0), (0.0, 1.0)], None, "labels up to 1e[+]150, got 1e[+]200, whose square is too large"),
    ([(-1e308, 1.0), (0.0, 1.0)], None, "labels up to 1e[+]150, got -1e[+]308, whose square is too large"),
    ([(1e-200, 1.0), (0.0, 1.0)], None, "labels that differ by 1e-140 at least, got 0 to 1e-200"),
    ([(1e-300, 1.0), (1e-300, 1.0)], None, "labels that differ by 1e-140 at least, got 1e-300 to 1e-300"),
    ([(1e308, 1.0), (1.0, 1.0)], 0, "one of 0 to 99 .*, got 1 no such class in 2 rows"),
    ([(-1e19, 1.0), (1.0, 1.0)], 2, "one of 0 to 1, got 1 no such class in 2 rows"),
    ([], None, "expected rows to train on, got an empty DataFrame"),
]


@pytest.mark.parametrize(("rows", "classes", "message"), BAD)
def test_survey_when_labels_or_weights_are_bad_then_counts_them(spark, rows, classes, message):
    with pytest.raises(InputError, match=message):
        survey(table(spark, rows), WEIGHTED, classes)


@pytest.mark.parametrize("size", [5e-324, 1e-300, 1e200, 1e308])
def test_survey_when_squares_of_weights_are_none_then_has_a_unit(spark, size):
    """So it is of weights of which the largest is near 1; those of workers are multiplied by the same."""
    frame = table(spark, [(1.0, size), (3.0, size), (1e308, 0.0), (1.0, 0.0)])
    result = survey(frame, WEIGHTED, None)
    facts, unit = result.facts, result.weight_unit
    assert 2.0**-52 < unit * size < 1
    assert facts.weight == 2 * (unit * size)
    assert (facts.weight_squared, facts.label_mean) == (2 * (unit * size) ** 2, 2.0)
    assert facts.label_std == pytest.approx(math.sqrt(2 / (2 - 1)))
    dealt_rows = deal(frame, WEIGHTED, result, 1).frame
    assert dealt_rows.agg(F.max("weight")).head()[0] == unit * size


def test_survey_when_all_rows_are_held_out_then_it_is_an_error(spark):
    frame = table(spark, [(0.0, 1.0)]).withColumn("held", F.lit(True))
    with pytest.raises(InputError, match="all of them are held out"):
        survey(frame, ColumnNames(validation="held"), None)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (ColumnNames("other"), "there is no column 'other'; there are: label, weight, name, features"),
        (ColumnNames("name"), "'name': expected vectors of pyspark.ml or arrays of numbers, got string"),
        (ColumnNames(("weight", "name")), "'name': expected numbers as a feature, got string"),
        (ColumnNames(()), "featuresCols: expected the names of columns of numbers, got none"),
        (
            ColumnNames(label="name"),
            "'name': expected numbers as labels, got string; pyspark.ml's StringIndexer makes classes",
        ),
        (ColumnNames(weight="name"), "'name': expected numbers as weights, got string"),
        (ColumnNames(validation="weight"), "'weight': expected booleans, true for rows to hold out, got double"),
    ],
)
def test_check_columns_when_one_is_unusable_then_error_names_it(spark, columns, message):
    frame = table(spark, [(1.0, 1.0)]).select("label", "weight", F.lit("a").alias("name"), "features")
    with pytest.raises(InputError, match=message):
        check_columns(frame, columns)


def test_check_columns_when_the_label_is_a_feature_then_refuses(spark):
    with pytest.raises(
        ConfigError, match=r"labelCol: expected a column that is not an input of .*, got the input 'label'"
    ):
        check_columns(table(spark, [(1.0, 1.0)]), ColumnNames(("weight", "label")))


@pytest.mark.parametrize(
    ("partitions", "wanted", "expected"),
    [(2, None, [4, 4]), (4, 2, [4, 4]), (1, 2, [4, 4]), (8, None, [4, 4])],
)
def test_deal_when_rows_are_dealt_then_each_worker_has_its_share(spark, partitions, wanted, expected):
    frame = table(spark, [(float(i), 1.0) for i in range(8)], partitions=partitions)
    dealt_rows = deal(frame, COLUMNS, survey(frame, COLUMNS, None), wanted)
    assert (dealt_rows.workers, counts(dealt_rows.frame)) == (len(expected), expected)


def test_deal_when_partitions_are_empty_then_workers_have_rows(spark):
    frame = table(spark, [(float(i), 1.0) for i in range(8)], partitions=4).where(F.spark_partition_id() == 3)
    dealt_rows = deal(frame, COLUMNS, survey(frame, COLUMNS, None), 2)
    assert counts(dealt_rows.frame) == [1, 1]


def test_deal_when_cached_beside_empty_then_workers_have_rows(sc):
    frame = sc.parallelize([(0.0, 1.0), (1.0, 1.0)], 4).toDF(["label", "weight"])
    frame = frame.withColumn("features", F.array(F.lit(1.0), F.lit(2.0))).cache()
    assert counts(frame) == [0, 0, 1, 1]
    dealt_rows = deal(frame, COLUMNS, survey(frame, COLUMNS, None), 2)
    assert (dealt_rows.workers, counts(dealt_rows.frame)) == (2, [1, 1])


def test_deal_when_fewer_rows_than_workers_then_fewer_workers(spark):
    frame = table(spark, [(1.0, 1.0)])
    assert deal(frame, COLUMNS, survey(frame, COLUMNS, None), 2).workers == 1


def test_check_workers_when_too_few_slots_then_error_names_both(sc):
    with pytest.raises(SlotsError, match=r"numWorkers: 3 workers need a task slot each, and Spark at .* has 2"):
        check_workers(backend_of(sc), 3)


@pytest.mark.parametrize("other", ["label", "LABEL", "features"])
def test_columns_when_two_have_one_name_then_named(spark, other):
    frame = table(spark, [(0.0, 1.0)]).withColumnRenamed("weight", "more")
    same = frame.select("*", F.array("more").alias(other))
    name = other.lower()
    with pytest.raises(InputError, match=f"column '{name}': expected one column of that name, got 2: {name}, {other};"):
        check_columns(same, COLUMNS)


def test_columns_when_two_others_have_one_name_then_fine(spark):
    frame = table(spark, [(0.0, 1.0)])
    check_columns(frame.select("*", F.lit(1).alias("x"), F.lit(2).alias("x")), COLUMNS)
    check_columns(frame.select("*", "label"), COLUMNS)  # one column twice


def test_ids_when_two_columns_have_one_name_then_named(spark):
    frame = spark.range(2).select(F.col("id").alias("user"), F.col("id").alias("item"), F.lit(1).alias("item"))
    with pytest.raises(InputError, match="column 'item': expected one column of that name, got 2"):
        MatrixFactorization(maxIter=1).fit(frame)
    edges = frame.toDF("src", "dst", "src")
    with pytest.raises(InputError, match="column 'src': expected one column of that name, got 2"):
        DeepWalk(maxIter=1).fit(edges)
