"""``DictionaryLearning`` on real servers: dense and sparse rows, any fleet, bad input, and files."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import SparseVector, Vectors
from pyspark.sql import functions as F

from ps2.algorithms import DictionaryLearning, DictionaryLearningModel, SparseCoder
from ps2.errors import ConfigError, InputError

ROWS, DIM, ATOMS = 90, 400, 8


@pytest.fixture(scope="module")
def data():
    """Rows are sums of few of ten parts, whose features are few of all."""
    rng = np.random.default_rng(2)
    parts = rng.random((10, DIM)) * (rng.random((10, DIM)) < 0.05)
    return (rng.gamma(2.0, 1.0, (ROWS, 10)) * (rng.random((ROWS, 10)) < 0.3)) @ parts


@pytest.fixture(scope="module")
def frame(spark, data):
    """Every other row is sparse; some rows come twice."""
    rows = [
        (Vectors.sparse(DIM, np.flatnonzero(x), x[x != 0]) if number % 2 else Vectors.dense(x),)
        for number, x in enumerate([*data, *data[:5]])
    ]
    return spark.createDataFrame(rows, ["features"]).repartition(2).cache()


PARAMS = {"k": ATOMS, "regParam": 0.3, "maxIter": 6, "tol": 0.0, "seed": 3}


def test_fit_when_done_then_codes_and_files_are_the_models(ps, frame, data, tmp_path):
    model = DictionaryLearning(outputCol="found", via="servers", numWorkers=2, **PARAMS).fit(frame)
    assert (model.dictionary.shape, model.numFeatures) == ((ATOMS, DIM), DIM)
    history = model.summary.objectiveHistory
    assert len(history) == 7
    assert history[-1] < 0.9 * history[0]
    assert history[-1] == pytest.approx(model.coder.objective(np.vstack([data, data[:5]])), rel=1e-10)
    rows = model.transform(frame).collect()
    codes = np.array([row.found.toArray() for row in rows])
    np.testing.assert_allclose(codes, model.coder.transform([row.features.toArray() for row in rows]).toarray())
    assert isinstance(min(rows, key=lambda row: row.found.numNonzeros()).found, SparseVector)
    np.testing.assert_array_equal(model.code(rows[0].features).toArray(), codes[0])
    model.save(str(tmp_path / "m"))
    again = DictionaryLearningModel.load(str(tmp_path / "m"))
    np.testing.assert_array_equal(again.dictionary, model.dictionary)
    assert (again.getOutputCol(), again.coder.penalty) == ("found", 0.3)
    np.testing.assert_array_equal(SparseCoder.load(str(tmp_path / "m")).dictionary, model.dictionary)


@pytest.mark.parametrize(
    ("params", "rows", "error", "said"),
    [
        ({}, [[1.0, float("nan")], [2.0, 1.0]], InputError, "hold NaN or infinite"),
        ({"k": 3}, [[1.0, 2.0], [2.0, 1.0]], ConfigError, "k: expected at most the number of rows, 2, got 3"),
        ({"k": 0}, [[1.0, 2.0]], ConfigError, "k: expected at least 1, got 0"),
        ({"regParam": -1.0}, [[1.0, 2.0]], ConfigError, "regParam: expected a finite number that is not negative"),
        ({"via": "local", "numWorkers": 2}, [[1.0, 2.0], [2.0, 1.0]], ConfigError, "via: expected 'servers' or 'auto'"),
    ],
    ids=["nan", "k-rows", "k-0", "negative", "via"],
)
def test_fit_when_input_is_bad_then_error_says_how(ps, spark, params, rows, error, said):
    frame = spark.createDataFrame([(row,) for row in rows], "features array<double>")
    with pytest.raises(error, match=said):
        DictionaryLearning(**{"k": 1, "maxIter": 1, **params}).fit(frame)


def test_fit_when_values_are_huge_then_dictionary_is_finite(ps, spark):
    rows = [([1e308, 2e307],), ([-1e308, 1e308],), ([1e154, 3.0],)]
    frame = spark.createDataFrame(rows, "features array<double>").coalesce(1)
    model = DictionaryLearning(k=2, maxIter=3).fit(frame)
    assert np.isfinite(model.dictionary).all()
    assert not np.isnan(model.summary.objectiveHistory).any()
    three = VectorAssembler(inputCols=["codes", "one"], outputCol="features").transform(
        model.transform(frame).drop("features").withColumn("one", F.lit(1.0))
    )
    with pytest.raises(InputError, match="expected 2 features as in training, got 3"):
        model.setOutputCol("again").transform(three)
    with pytest.raises(InputError, match="features: expected a vector of size 2"):
        model.code([1.0, 2.0, 3.0])
