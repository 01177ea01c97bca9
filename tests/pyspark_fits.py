"""Fits of pyspark.ml that linear models are compared with: their tables, their params, and what pyspark.ml computes.

``python tests/pyspark_fits.py`` writes ``pyspark_fits.json``, which also says which pyspark has computed it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from array_fits import numbers
from pyspark.ml.linalg import DenseMatrix, Vectors

FILE = Path(__file__).with_name("pyspark_fits.json")
INF = np.inf
SCALES = np.array([1.0, 10.0, 0.1, 3.0])
EXACT = {"maxIter": 200, "tol": 1e-12}
Params = dict[str, Any]


def matrix(*rows: list[float]) -> DenseMatrix:
    return DenseMatrix(len(rows), len(rows[0]), np.ravel(rows), isTransposed=True)


# -- tables: columns by name, of which the features are a matrix -------------------------------------------------------


def scaled() -> dict[str, Any]:
    """Features of different scales, a third of them 0; labels of two and of three classes, and numbers; weights."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(80, 4)) * SCALES * (rng.random((80, 4)) < 0.7)
    value = x @ (np.array([1.0, -2.0, 0.5, 0.7]) / SCALES) + rng.normal(size=80) + 2
    weight = np.abs(value) + 0.1
    both = np.column_stack([x, weight, weight])
    three = np.where(value > 3, 2.0, np.where(value > 1, 1.0, 0.0))
    return {
        "features": x,
        "both": both,
        "value": value,
        "two": (value > 2).astype(float),
        "three": three,
        "weight": weight,
    }


MEANS, VARIANCES = [5.843, 3.057, 3.758, 10.199], [0.6856, 0.1899, 3.116, 0.001]
WEIGHTS = [[0, 0, 0, 0], [-0.57997, 0.912083, -0.371077, -0.819866], [-0.16624, -0.84355, -0.048509, -0.301789]]


def classes(rows: int, means: Any, variances: Any) -> dict[str, Any]:
    """Three classes and weights, as pyspark.ml's own tests of logistic regression have them."""
    rng = np.random.default_rng(42)
    x = rng.normal(size=(rows, 4)) * np.sqrt(variances) + means
    y = (x @ np.transpose(WEIGHTS) + [0, 2.688191, 4.170682] + rng.gumbel(size=(rows, 3))).argmax(axis=1)
    return {"features": x, "label": y.astype(float), "weight": 0.1 + np.arange(rows) % 10}


def rare() -> dict[str, Any]:
    """Rows whose last feature hardly varies."""
    return classes(3000, MEANS, VARIANCES)


# -- fits --------------------------------------------------------------------------------------------------------------

LOGISTIC: dict[str, Params] = {
    "two": {"labelCol": "two", "regParam": 0.1},
    "two, unscaled": {"labelCol": "two", "regParam": 0.1, "standardization": False},
    "two, elastic": {"labelCol": "two", "regParam": 0.05, "elasticNetParam": 0.5},
    "two, elastic, unscaled": {
        "labelCol": "two",
        "regParam": 0.05,
        "elasticNetParam": 0.5,
        "standardization": False,
        "weightCol": "weight",
    },
    "two, through 0": {"labelCol": "two", "regParam": 0.1, "fitIntercept": False},
    "two, multinomial": {"labelCol": "two", "regParam": 0.1, "family": "multinomial"},
    "three": {"labelCol": "three", "regParam": 0.1, "weightCol": "weight"},
    "three, elastic": {"labelCol": "three", "regParam": 0.05, "elasticNetParam": 0.3},
    "three, free": {"labelCol": "three", "regParam": 0.0},
}
LINEAR: dict[str, Params] = {
    "ridge": {"regParam": 0.3, "weightCol": "weight"},
    "ridge, unscaled": {"regParam": 0.3, "standardization": False},
    "elastic": {"regParam": 0.3, "elasticNetParam": 0.5},
    "through 0": {"regParam": 0.2, "fitIntercept": False},
    "huber": {"regParam": 0.3, "loss": "huber"},
}
NORMAL: dict[str, Params] = {
    "normal": {"regParam": 0.0, "weightCol": "weight"},
    "normal, through 0": {"regParam": 0.0, "fitIntercept": False},
    "normal, ridge": {"regParam": 0.3, "weightCol": "weight"},
    "normal, unscaled": {"regParam": 0.3, "standardization": False},
    "normal, elastic": {"regParam": 0.3, "elasticNetParam": 0.5},
    "normal, elastic, unscaled": {
        "regParam": 0.3,
        "elasticNetParam": 0.5,
        "standardization": False,
        "weightCol": "weight",
    },
}
TWICE = {"labelCol": "value", "featuresCol": "both"}
BOUNDED: dict[str, Params] = {
    "lower": {"labelCol": "two", "lowerBoundsOnCoefficients": matrix([0.0, 0.0, -INF, 0.1])},
    "upper": {
        "labelCol": "two",
        "upperBoundsOnCoefficients": matrix([0.2, INF, 0.5, 0.0]),
        "weightCol": "weight",
    },
    "intercept": {"labelCol": "two", "upperBoundsOnIntercepts": Vectors.dense(-0.5), "standardization": False},
    "box": {
        "labelCol": "two",
        "lowerBoundsOnCoefficients": matrix([-0.05] * 4),
        "upperBoundsOnCoefficients": matrix([0.05] * 4),
        "lowerBoundsOnIntercepts": Vectors.dense(0.3),
    },
    "upper, through 0": {"labelCol": "two", "fitIntercept": False, "upperBoundsOnCoefficients": matrix([0.1] * 4)},
    "upper, unscaled": {
        "labelCol": "two",
        "standardization": False,
        "upperBoundsOnCoefficients": matrix([0.02] * 4),
    },
    "three": {
        "labelCol": "three",
        "lowerBoundsOnCoefficients": matrix([0.0] * 4, [-INF] * 4, [-0.1] * 4),
        "upperBoundsOnCoefficients": matrix([0.3] * 4, [0.2, -0.01, 0.2, 0.2], [INF] * 4),
    },
    "three, intercepts": {
        "labelCol": "three",
        "lowerBoundsOnIntercepts": Vectors.dense(0.1, 0.2, -INF),
        "upperBoundsOnIntercepts": Vectors.dense(0.3, 0.2, INF),
    },
}
RARE: dict[str, tuple[Params, Params]] = {
    "free": ({}, {"tol": 1e-12, "maxIter": 500}),
    "unscaled": ({"standardization": False}, {"tol": 1e-12, "maxIter": 500}),
    "ridge": ({"elasticNetParam": 0.0001, "regParam": 0.5}, {}),
    "lasso": ({"elasticNetParam": 1.0, "regParam": 0.05, "tol": 1e-5, "maxIter": 160}, {}),
    "elastic, unscaled": ({"elasticNetParam": 0.5, "regParam": 0.1, "tol": 1e-5, "standardization": False}, {}),
    "bounds": (
        {
            "lowerBoundsOnCoefficients": DenseMatrix(3, 4, [1.0] * 12),
            "lowerBoundsOnIntercepts": Vectors.dense([1.0] * 3),
            "upperBoundsOnCoefficients": DenseMatrix(3, 4, [2.0] * 12),
            "upperBoundsOnIntercepts": Vectors.dense([2.0] * 3),
        },
        {},
    ),
}
# Label, number of classes in the metadata, and params.
ONE_CLASS: dict[str, tuple[float, int | None, Params]] = {
    "4 of 5": (4.0, None, {"family": "multinomial"}),
    "4 of 6": (4.0, 6, {"family": "multinomial"}),
    "1, multinomial": (1.0, None, {"family": "mulTinomIAl"}),
    "0, multinomial": (0.0, None, {"family": "multinomial"}),
    "0, through 0": (0.0, None, {"family": "multinomial", "fitIntercept": False}),
    "0 of 2": (0.0, 2, {"family": "multinomial"}),
    "1": (1.0, None, {"family": "AuTo"}),
    "0": (0.0, None, {"family": "biNoMial"}),
}
ONE_X = np.repeat([[0.0], [1.0], [2.0]], 5, axis=1)
# Name of the class, and params.
MACHINES: dict[str, tuple[str, Params]] = {
    f"{name}, {solver}": (
        name,
        {"labelCol": label, "solver": solver, "factorSize": 2, "initStd": 0.05, "seed": 5},
    )
    for name, label in (("FMClassifier", "two"), ("FMRegressor", "value"))
    for solver in ("adamW", "gd")
}
STEPS = {"stepSize": 0.02, "regParam": 0.03, "maxIter": 6}
# Matrices of so many rows and columns, with every number of entries that are not 0.
SHAPES = [(rows, width) for rows in range(1, 6) for width in range(1, 7)]


def entries(rows: int, width: int, count: int) -> Any:
    """Return a matrix with so many entries that are not 0."""
    order = np.random.default_rng([rows, width, count]).permutation(rows * width)
    return np.where(order < count, 1.5, 0.0).reshape(rows, width)


def described(classes: int | None) -> Params:
    """Return the metadata of a label with so many classes."""
    return {} if classes is None else {"ml_attr": {"type": "nominal", "num_vals": classes}}


def form(of: Any) -> str:
    """Return "D" or "S" of a dense or sparse matrix, and "r" or "c" if it holds rows or columns."""
    return type(of).__name__[0] + ("r" if of.isTransposed else "c")


def head(model: Any, vector: Any) -> list[Any]:
    """Return what a logistic model predicts for a row."""
    return [list(model.predictRaw(vector)), list(model.predictProbability(vector)), model.predict(vector)]


# -- pyspark.ml --------------------------------------------------------------------------------------------------------


def frame(spark: Any, columns: Mapping[str, Any]) -> Any:
    """Return a table as a DataFrame."""
    names = list(columns)
    rows = [
        tuple(Vectors.dense(value) if np.ndim(value) else float(value) for value in row)
        for row in zip(*columns.values(), strict=True)
    ]
    return spark.createDataFrame(rows, names).coalesce(2).cache()


def computed(spark: Any) -> dict[str, Any]:
    """Return what pyspark.ml computes."""
    from pyspark.ml import classification, regression
    from pyspark.ml.common import _java2py, _py2java
    from pyspark.sql import functions as F

    table, weighted = frame(spark, scaled()), frame(spark, rare())

    def logistic(df: Any, **params: Any) -> Params:
        model = classification.LogisticRegression(**params).fit(df)
        return {"numbers": numbers(model).tolist(), "objective": model.summary.objectiveHistory[-1]}

    def linear(**params: Any) -> Params:
        model = regression.LinearRegression(**{"labelCol": "value", **EXACT, **params}).fit(table)
        result = {"numbers": numbers(model).tolist()}
        if params.get("solver") is None and "elasticNetParam" not in params and params.get("featuresCol") is None:
            result["errors"] = model.summary.coefficientStandardErrors
        return result

    def one_class(label: float, classes: int | None, params: Params) -> Params:
        rows = frame(spark, {"features": ONE_X, "label": np.full(3, label)})
        rows = rows.withColumn("label", F.col("label").alias("label", metadata=described(classes)))
        model = classification.LogisticRegression(**params).fit(rows)
        return {
            "form": form(model.coefficientMatrix),
            "intercepts": list(model.interceptVector),
            "heads": [head(model, Vectors.dense(x)) for x in ONE_X],
        }

    def machine(name: str, **params: Any) -> list[float]:
        package = classification if name == "FMClassifier" else regression
        return numbers(getattr(package, name)(**params).fit(table)).tolist()

    def compressed(of: Any) -> str:
        dense = _py2java(sc, DenseMatrix(*of.shape, of.reshape(-1), True))
        return form(_java2py(sc, dense.compressed()))

    sc = spark.sparkContext
    return {
        "logistic": {name: logistic(table, **EXACT, **params) for name, params in LOGISTIC.items()},
        "linear": {name: linear(solver="l-bfgs", **params) for name, params in LINEAR.items()},
        "normal": {name: linear(**params) for name, params in NORMAL.items()},
        "twice": linear(**TWICE),
        "bounded": {name: logistic(table, regParam=0.02, **EXACT, **params) for name, params in BOUNDED.items()},
        "rare": {
            name: logistic(weighted, **{"weightCol": "weight", **params, **exact})
            for name, (params, exact) in RARE.items()
        },
        "one class": {name: one_class(*case) for name, case in ONE_CLASS.items()},
        "machines": {
            name: [machine(kind, **params, maxIter=0), machine(kind, **params, **STEPS)]
            for name, (kind, params) in MACHINES.items()
        },
        "forms": {
            f"{rows} x {width}": [compressed(entries(rows, width, count)) for count in range(rows * width + 1)]
            for rows, width in SHAPES
        },
    }


def recorded() -> dict[str, Any]:
    """Return what pyspark.ml computed when the file was written."""
    return dict(json.loads(FILE.read_text()))


if __name__ == "__main__":
    import pyspark
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    parts = {"pyspark": pyspark.__version__, **computed(session)}
    lines = [f"{json.dumps(name)}: {json.dumps(part)}" for name, part in parts.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    session.stop()
