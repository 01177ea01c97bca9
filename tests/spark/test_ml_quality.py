"""What factorization machines are for: interactions that no linear model can learn."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.ml.evaluation import BinaryClassificationEvaluator, RegressionEvaluator

from ps2.algorithms import FMClassifier, FMRegressor, LogisticRegression

ROWS, FEATURES = 600, 8
FM = {"factorSize": 4, "initStd": 0.1, "stepSize": 0.05, "maxIter": 150, "seed": 3}


@pytest.fixture(scope="module")
def halves(spark, ps):
    """Rows of signs, to train on and to test with: the label is the product of the first two."""
    x = np.sign(np.random.default_rng(7).standard_normal((ROWS, FEATURES)))
    product = x[:, 0] * x[:, 1]
    rows = [(float(y > 0), float(y), row.tolist()) for y, row in zip(product, x, strict=True)]
    frame = spark.createDataFrame(rows, "label double, product double, features array<double>").coalesce(2)
    marked = frame.selectExpr("*", "monotonically_increasing_id() % 2 as odd").cache()
    return marked.where("odd = 0"), marked.where("odd = 1")


def test_fm_classifier_when_label_is_interaction_then_learns_it(halves):
    train, test = halves
    area = BinaryClassificationEvaluator()
    assert area.evaluate(LogisticRegression(regParam=0.01).fit(train).transform(test)) < 0.65
    assert area.evaluate(FMClassifier(**FM).fit(train).transform(test)) > 0.95


def test_fm_regressor_when_label_is_interaction_then_explains_it(halves):
    train, test = halves
    found = FMRegressor(labelCol="product", **FM).fit(train).transform(test)
    assert RegressionEvaluator(labelCol="product", metricName="r2").evaluate(found) > 0.95
