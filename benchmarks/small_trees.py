"""Boosted trees and random forests on small data, with pyspark.ml's defaults."""

from __future__ import annotations

from pyspark.ml import classification as theirs_classification
from pyspark.ml import regression as theirs_regression

from benchmarks.frame import Part, answer
from benchmarks.small_part import Asked, Fit, compared, rows_of, small_spark
from ps2.algorithms import classification, regression


def measure(asked: Asked) -> Part:
    with small_spark("trees", asked.memory) as spark:
        a9a, agaricus, iris = (rows_of(spark, asked, name) for name in ("a9a", "agaricus", "iris"))
        fits = [
            Fit("GBTClassifier, a9a", a9a, classification.GBTClassifier(), theirs_classification.GBTClassifier()),
            Fit(
                *("GBTClassifier, agaricus", agaricus),
                *(classification.GBTClassifier(), theirs_classification.GBTClassifier()),
            ),
            Fit("GBTRegressor, iris", iris, regression.GBTRegressor(), theirs_regression.GBTRegressor()),
            Fit(
                *("RandomForestClassifier, a9a", a9a),
                *(classification.RandomForestClassifier(), theirs_classification.RandomForestClassifier()),
            ),
        ]
        return compared(spark, asked, fits)


if __name__ == "__main__":
    answer(Asked, measure)
