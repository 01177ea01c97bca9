"""Models as version 0.1 saves them.

``PYTHONPATH=tests python tests/saved_models.py`` trains one of each class on a few rows, and writes them with what they
predict to ``saved_models.zip``. A later version reads that file (``tests/spark/test_saved_models.py``).
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ps2 import algorithms
from ps2.mlflow.predicting import FeaturePredictor, PairPredictor, RatingPredictor, WordPredictor

ARCHIVE = Path(__file__).with_suffix(".zip")
ROWS = 24
TREES = {"maxDepth": 2, "seed": 1}
WALKS = {"vectorSize": 4, "maxIter": 1, "seed": 1}
DEEP = {"categoricalCols": ["user", "item"], "factorSize": 2, "hiddenLayers": [4], "maxIter": 1, "seed": 1}
# Each estimator with params that differ from its defaults.
ESTIMATORS: dict[str, dict[str, Any]] = {
    "DictionaryLearning": {"k": 2, "maxIter": 3, "seed": 1},
    "FMClassifier": {"factorSize": 2, "maxIter": 3, "seed": 1},
    "FMRegressor": {"factorSize": 2, "maxIter": 3, "seed": 1, "labelCol": "y"},
    "GBTClassifier": {**TREES, "maxIter": 2, "leafCol": "leaf"},
    "GBTRanker": {**TREES, "maxIter": 2, "groupCol": "user", "labelCol": "grade"},
    "GBTRegressor": {**TREES, "maxIter": 2, "labelCol": "y", "contribCol": "contributions"},
    "KMeans": {"k": 2, "seed": 1},
    "LDA": {"k": 2, "maxIter": 2, "seed": 1},
    "LinearRegression": {"labelCol": "y", "regParam": 0.1},
    "LinearSVC": {"maxIter": 5},
    "LogisticRegression": {"maxIter": 5, "labelCol": "grade", "family": "multinomial"},
    "MetricLearning": {"rank": 2, "labelCol": "grade", "maxIter": 2, "seed": 1},
    "RandomForestClassifier": {**TREES, "numTrees": 2, "labelCol": "grade"},
    "RandomForestRegressor": {**TREES, "numTrees": 2, "labelCol": "y"},
    "DeepWalk": {**WALKS, "srcCol": "user", "dstCol": "item", "walkLength": 4},
    "Node2Vec": {**WALKS, "srcCol": "user", "dstCol": "item", "walkLength": 4, "p": 0.5},
    "LINE": {**WALKS, "srcCol": "user", "dstCol": "item"},
    "Word2Vec": {**WALKS, "inputCol": "words", "minCount": 1},
    "MatrixFactorization": {"rank": 2, "maxIter": 2, "seed": 1, "ratingCol": "y"},
    "OnlineLogisticRegression": {"categoricalCols": ["user", "item"], "maxIter": 1},
    "OnlineFM": {"categoricalCols": ["user", "item"], "factorSize": 2, "maxIter": 1},
    "DeepFM": DEEP,
    "WideAndDeep": {**DEEP, "crosses": ["user:item"]},
    "DCNv2": {**DEEP, "crossLayers": 2},
    "XDeepFM": {**DEEP, "cinLayers": [3, 2]},
    "AutoInt": {**DEEP, "interactingLayers": 2, "headSize": 2},
    "DIN": {**DEEP, "historyCols": {"words": "item"}, "attentionLayers": [3]},
    "TwoTower": {**DEEP, "userCols": ["user"]},
}
PREDICTORS = {"WordScoring": WordPredictor, "FeatureScoring": FeaturePredictor}


def table() -> pd.DataFrame:
    """Return rows that every estimator above finds its columns in."""
    rng = np.random.default_rng(1)
    user, item = rng.integers(0, 6, ROWS), rng.integers(0, 5, ROWS) + 10
    features = rng.integers(0, 5, (ROWS, 3)).astype(float)
    features[:, 0] += 1
    return pd.DataFrame(
        {
            "user": user,
            "item": item,
            "features": features.tolist(),
            "label": (features[:, 1] > 2).astype(float),
            "grade": (features[:, 1] // 2).astype(float),
            "y": features @ [1.0, -0.5, 0.25],
            "words": [[f"w{word}" for word in row] for row in rng.integers(0, 6, (ROWS, 4))],
        }
    ).sort_values("user", ignore_index=True)


def predictions(model: Any, frame: Any) -> np.ndarray[Any, Any]:
    """Return what a model predicts for the table, a row each: columns one after the other."""
    if hasattr(model, "export") and hasattr(model, "table"):
        result = model.transform(frame).select(model.getPredictionCol()).toPandas()
    else:
        scoring = model.scoring()
        kind = type(scoring).__name__
        pairs = RatingPredictor if isinstance(model, algorithms.MatrixFactorizationModel) else PairPredictor
        result = PREDICTORS.get(kind, pairs)(scoring, model.fitted).predict(table())
    return np.column_stack([np.vstack(result[name].tolist()) for name in result.columns]).astype(float)


def fits(frame: Any) -> Iterator[tuple[str, Any]]:
    """Train each model."""
    for name, params in ESTIMATORS.items():
        yield name, getattr(algorithms, name)(**params).fit(frame)


def write(folder: Path) -> None:
    """Train, save, and keep what is predicted."""
    from faults.sparks import ENVIRONMENT, sparking

    os.environ.update(ENVIRONMENT)
    with sparking("local[2]") as spark:
        frame = spark.createDataFrame(table()).coalesce(1).cache()
        for name, model in fits(frame):
            model.save(f"{folder}/{name}/model")
            getattr(algorithms, name)(**ESTIMATORS[name]).save(f"{folder}/{name}/estimator")
            np.save(folder / name / "predictions.npy", predictions(model, frame))
        from ps2 import PS2Context

        PS2Context.getActive().stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch))
        with zipfile.ZipFile(ARCHIVE, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(scratch).rglob("*")):
                if path.is_file() and not path.name.endswith(".crc"):
                    archive.write(path, path.relative_to(scratch))
