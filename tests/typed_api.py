"""What a type checker finds in programs that use PS2; ``make check`` runs mypy on this file, nothing runs the file.

An ignored error that mypy does not find is an error of its own (``warn_unused_ignores``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ps2.algorithms import (
    GBTClassifier,
    KeyHasher,
    KMeans,
    KMeansModel,
    LDAModel,
    LogisticRegression,
    RandomWalks,
    Word2Vec,
)
from ps2.algorithms.classification import LinearSVC
from ps2.torch import TorchEstimator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def right_keywords() -> None:
    LogisticRegression(regParam=0.1, maxIter=10, featuresCol=["a", "b"], thresholds=[0.2, 0.8])
    GBTClassifier(maxDepth=5, absentAsMissing=True, interactionConstraints=[[0, 1], [2]], featureWeights=np.ones(3))
    KeyHasher(categoricalCols=["user"], crosses=["user:ad", ["user", "hour"]])
    GBTClassifier(initialModel=GBTClassifier(), objective=print).setCustomMetric(print).setMaximize(True)
    KMeans(k=5, distanceMeasure="cosine")
    RandomWalks(walkLength=10)
    Word2Vec(inputCol="words").setVectorSize(100).setSeed(1).setVia("local")
    TorchEstimator(print, print, inputCols=["keys"], batchSize=4096, lr=0.01).setEpochs(2)


def wrong_keywords() -> None:
    LogisticRegression(regParm=0.1)  # type: ignore[call-arg]
    LogisticRegression(regParam="0.1")  # type: ignore[arg-type]
    LinearSVC(maxIter=1.5)  # type: ignore[arg-type]
    GBTClassifier(thresholds=0.5)  # type: ignore[arg-type]
    GBTClassifier(_initial=None)  # type: ignore[call-arg]
    KMeans(k="5")  # type: ignore[arg-type]
    TorchEstimator(print, print, batchsize=4096)  # type: ignore[call-arg]
    TorchEstimator(print, print, epochs=1.5)  # type: ignore[arg-type]


def wrong_setters() -> None:
    LogisticRegression().setMaxIter("10")  # type: ignore[arg-type]
    LogisticRegression().setMaxIters(10)  # type: ignore[attr-defined]


def types_of_results(df: DataFrame) -> None:
    rate: float = LogisticRegression().setRegParam(0.1).getRegParam()
    name: str = LogisticRegression().getRegParam()  # type: ignore[assignment]
    walks: DataFrame = RandomWalks().transform(df)
    model: KMeansModel = KMeans(k=5).fit(df)
    other: LDAModel = KMeans(k=5).fit(df)  # type: ignore[assignment]
    print(rate, name, walks, model, other)
