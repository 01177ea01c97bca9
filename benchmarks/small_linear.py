"""Linear models and factorization machines on small data, with pyspark.ml's defaults."""

from __future__ import annotations

from typing import Any

from pyspark.ml import classification as theirs_classification
from pyspark.ml import regression as theirs_regression

from benchmarks.frame import Part, answer
from benchmarks.small_part import Asked, Fit, compared, rows_of, small_spark
from ps2.algorithms import classification, regression


def measure(asked: Asked) -> Part:
    with small_spark("linear", asked.memory) as spark:
        frames = {name: rows_of(spark, asked, name) for name in ("a9a", "agaricus", "iris")}

        def fit(name: str, data: str, **params: Any) -> Fit:
            is_classifier = hasattr(classification, name)
            ours = getattr(classification if is_classifier else regression, name)(**params)
            theirs = getattr(theirs_classification if is_classifier else theirs_regression, name)(**params)
            words = "".join(f", {key} {value}" for key, value in params.items())
            return Fit(f"{name}, {data}{words}", frames[data], ours, theirs)

        fits = [
            fit(name, data)
            for name in ("LogisticRegression", "LinearSVC", "LinearRegression")
            for data in ("a9a", "agaricus", "iris")
            if (name, data) != ("LinearSVC", "iris")
        ]
        fits += [
            fit("LogisticRegression", "a9a", regParam=0.01, elasticNetParam=1.0),
            fit("LogisticRegression", "iris", regParam=0.01),
            fit("LinearRegression", "a9a", solver="l-bfgs", regParam=0.01),
            fit("LinearRegression", "a9a", regParam=0.01, elasticNetParam=0.5),
            fit("LinearRegression", "iris", loss="huber"),
            fit("FMClassifier", "a9a"),
            fit("FMClassifier", "agaricus"),
            fit("FMRegressor", "iris"),
        ]
        return compared(spark, asked, fits)


if __name__ == "__main__":
    answer(Asked, measure)
