"""Estimators and models with pyspark.ml's API, trained on a fleet of servers.

The names below are imported on first use: they need pyspark, and other modules of this package do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps2.lazy_names import lazy_names

if TYPE_CHECKING:
    from ps2.algorithms.classification import (
        FMClassificationModel,
        FMClassifier,
        GBTClassificationModel,
        GBTClassifier,
        LinearSVC,
        LinearSVCModel,
        LogisticRegression,
        LogisticRegressionModel,
        RandomForestClassificationModel,
        RandomForestClassifier,
    )
    from ps2.algorithms.clustering import LDA, KMeans, KMeansModel, LDAModel
    from ps2.algorithms.clusters.model import KMeansClusters
    from ps2.algorithms.deep.ml.click_models import DeepFM, DeepFMModel, WideAndDeep, WideAndDeepModel
    from ps2.algorithms.deep.ml.towers import TwoTower, TwoTowerModel
    from ps2.algorithms.dictionary.model import SparseCoder
    from ps2.algorithms.embeddings.model import Embedding
    from ps2.algorithms.factors.model import MatrixFactors
    from ps2.algorithms.feature import (
        DictionaryLearning,
        DictionaryLearningModel,
        KeyHasher,
        MetricLearning,
        MetricLearningModel,
        Word2Vec,
        Word2VecModel,
    )
    from ps2.algorithms.graph import (
        LINE,
        DeepWalk,
        DeepWalkModel,
        LINEModel,
        Node2Vec,
        Node2VecModel,
        RandomWalks,
    )
    from ps2.algorithms.linear.model import FactorizationMachine, LinearModel
    from ps2.algorithms.metric.model import Metric
    from ps2.algorithms.online.ml.click_models import (
        OnlineFM,
        OnlineFMModel,
        OnlineLogisticRegression,
        OnlineLogisticRegressionModel,
    )
    from ps2.algorithms.ranking import GBTRanker, GBTRankerModel
    from ps2.algorithms.recommendation import MatrixFactorization, MatrixFactorizationModel
    from ps2.algorithms.regression import (
        FMRegressionModel,
        FMRegressor,
        GBTRegressionModel,
        GBTRegressor,
        LinearRegression,
        LinearRegressionModel,
        RandomForestRegressionModel,
        RandomForestRegressor,
    )
    from ps2.algorithms.topics.model import LDATopics
    from ps2.algorithms.trees.forests.random_forest import RandomForest
    from ps2.algorithms.trees.model import GBTModel

_HOME = {
    "DeepFM": "ps2.algorithms.deep.ml.click_models",
    "DeepFMModel": "ps2.algorithms.deep.ml.click_models",
    "DeepWalk": "ps2.algorithms.graph",
    "DeepWalkModel": "ps2.algorithms.graph",
    "DictionaryLearning": "ps2.algorithms.feature",
    "DictionaryLearningModel": "ps2.algorithms.feature",
    "Embedding": "ps2.algorithms.embeddings.model",
    "FMClassificationModel": "ps2.algorithms.classification",
    "FMClassifier": "ps2.algorithms.classification",
    "FMRegressionModel": "ps2.algorithms.regression",
    "FMRegressor": "ps2.algorithms.regression",
    "FactorizationMachine": "ps2.algorithms.linear.model",
    "GBTClassificationModel": "ps2.algorithms.classification",
    "GBTClassifier": "ps2.algorithms.classification",
    "GBTModel": "ps2.algorithms.trees.model",
    "GBTRanker": "ps2.algorithms.ranking",
    "GBTRankerModel": "ps2.algorithms.ranking",
    "GBTRegressionModel": "ps2.algorithms.regression",
    "GBTRegressor": "ps2.algorithms.regression",
    "KMeans": "ps2.algorithms.clustering",
    "KMeansClusters": "ps2.algorithms.clusters.model",
    "KMeansModel": "ps2.algorithms.clustering",
    "KeyHasher": "ps2.algorithms.feature",
    "LDA": "ps2.algorithms.clustering",
    "LDAModel": "ps2.algorithms.clustering",
    "LDATopics": "ps2.algorithms.topics.model",
    "LINE": "ps2.algorithms.graph",
    "LINEModel": "ps2.algorithms.graph",
    "LinearModel": "ps2.algorithms.linear.model",
    "LinearRegression": "ps2.algorithms.regression",
    "LinearRegressionModel": "ps2.algorithms.regression",
    "LinearSVC": "ps2.algorithms.classification",
    "LinearSVCModel": "ps2.algorithms.classification",
    "LogisticRegression": "ps2.algorithms.classification",
    "LogisticRegressionModel": "ps2.algorithms.classification",
    "MatrixFactorization": "ps2.algorithms.recommendation",
    "MatrixFactorizationModel": "ps2.algorithms.recommendation",
    "MatrixFactors": "ps2.algorithms.factors.model",
    "Metric": "ps2.algorithms.metric.model",
    "MetricLearning": "ps2.algorithms.feature",
    "MetricLearningModel": "ps2.algorithms.feature",
    "Node2Vec": "ps2.algorithms.graph",
    "Node2VecModel": "ps2.algorithms.graph",
    "OnlineFM": "ps2.algorithms.online.ml.click_models",
    "OnlineFMModel": "ps2.algorithms.online.ml.click_models",
    "OnlineLogisticRegression": "ps2.algorithms.online.ml.click_models",
    "OnlineLogisticRegressionModel": "ps2.algorithms.online.ml.click_models",
    "RandomForest": "ps2.algorithms.trees.forests.random_forest",
    "RandomForestClassificationModel": "ps2.algorithms.classification",
    "RandomForestClassifier": "ps2.algorithms.classification",
    "RandomForestRegressionModel": "ps2.algorithms.regression",
    "RandomForestRegressor": "ps2.algorithms.regression",
    "RandomWalks": "ps2.algorithms.graph",
    "SparseCoder": "ps2.algorithms.dictionary.model",
    "TwoTower": "ps2.algorithms.deep.ml.towers",
    "TwoTowerModel": "ps2.algorithms.deep.ml.towers",
    "WideAndDeep": "ps2.algorithms.deep.ml.click_models",
    "WideAndDeepModel": "ps2.algorithms.deep.ml.click_models",
    "Word2Vec": "ps2.algorithms.feature",
    "Word2VecModel": "ps2.algorithms.feature",
}

__all__ = [
    "LDA",
    "LINE",
    "DeepFM",
    "DeepFMModel",
    "DeepWalk",
    "DeepWalkModel",
    "DictionaryLearning",
    "DictionaryLearningModel",
    "Embedding",
    "FMClassificationModel",
    "FMClassifier",
    "FMRegressionModel",
    "FMRegressor",
    "FactorizationMachine",
    "GBTClassificationModel",
    "GBTClassifier",
    "GBTModel",
    "GBTRanker",
    "GBTRankerModel",
    "GBTRegressionModel",
    "GBTRegressor",
    "KMeans",
    "KMeansClusters",
    "KMeansModel",
    "KeyHasher",
    "LDAModel",
    "LDATopics",
    "LINEModel",
    "LinearModel",
    "LinearRegression",
    "LinearRegressionModel",
    "LinearSVC",
    "LinearSVCModel",
    "LogisticRegression",
    "LogisticRegressionModel",
    "MatrixFactorization",
    "MatrixFactorizationModel",
    "MatrixFactors",
    "Metric",
    "MetricLearning",
    "MetricLearningModel",
    "Node2Vec",
    "Node2VecModel",
    "OnlineFM",
    "OnlineFMModel",
    "OnlineLogisticRegression",
    "OnlineLogisticRegressionModel",
    "RandomForest",
    "RandomForestClassificationModel",
    "RandomForestClassifier",
    "RandomForestRegressionModel",
    "RandomForestRegressor",
    "RandomWalks",
    "SparseCoder",
    "TwoTower",
    "TwoTowerModel",
    "WideAndDeep",
    "WideAndDeepModel",
    "Word2Vec",
    "Word2VecModel",
]

if not TYPE_CHECKING:  # type checkers look for unknown names themselves
    __getattr__, __dir__ = lazy_names(__name__, _HOME)
