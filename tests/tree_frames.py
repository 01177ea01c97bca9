"""DataFrames of few distinct values, and what xgboost makes of the same rows."""

from __future__ import annotations

import numpy as np
import xgboost
from pyspark.ml.linalg import Vectors
from training import schema_of

# Of a row in ``frame_of``, by turns.
WEIGHTS = (1.0, 2.0, 3.0)


def data(rows=240, seed=1):
    rng = np.random.default_rng(seed)
    x = rng.integers(-3, 4, size=(rows, 4)).astype(np.float32) / 2
    y = x[:, 0] * x[:, 1] + x[:, 2] + 0.2 * rng.normal(size=rows)
    return x, y


def frame_of(spark, x, y, held=None):
    held = np.zeros(len(y), bool) if held is None else held
    rows = [
        (Vectors.dense(row.tolist()), float(label), WEIGHTS[i % 3], bool(h))
        for i, (row, label, h) in enumerate(zip(x, y, held, strict=True))
    ]
    schema = schema_of(dict(zip(["features", "label", "w", "held"], rows[0], strict=True)))
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, 2), schema, verifySchema=False)


def xgboosts(x, y, rounds, weight=None, **params):
    given = {"tree_method": "exact", "lambda": 1.0, "nthread": 1, "base_score": 0.5, "eta": 0.5, "max_depth": 3}
    booster = xgboost.train(given | params, xgboost.DMatrix(x, y, weight=weight), rounds)
    return booster.predict(xgboost.DMatrix(x), output_margin=True)
