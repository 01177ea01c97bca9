"""The public names of ``ps2.algorithms`` in one table: public module -> defining module -> names.

A name is imported on its first use, so a program imports only the families that it uses, and pyspark only with them.
"""

from __future__ import annotations

from collections.abc import Callable

from ps2.lazy_names import lazy_names

ROOT = "ps2.algorithms"
# The public module "" stands for ``ps2.algorithms`` itself: only it exports these names, which need no pyspark.
PUBLIC_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "": {
        "clusters.model": ("KMeansClusters",),
        "dictionary.model": ("SparseCoder",),
        "embeddings.model": ("Embedding",),
        "factors.model": ("MatrixFactors",),
        "linear.model": ("FactorizationMachine", "LinearModel"),
        "metric.model": ("Metric",),
        "topics.model": ("LDATopics",),
        "trees.forests.random_forest": ("RandomForest",),
        "trees.model": ("GBTModel",),
    },
    "classification": {
        "deep.estimator": (
            *("AutoInt", "AutoIntModel", "DCNv2", "DCNv2Model", "DIN", "DINModel", "DeepFM", "DeepFMModel"),
            *("WideAndDeep", "WideAndDeepModel", "XDeepFM", "XDeepFMModel"),
        ),
        "linear.estimator": ("FMClassifier", "LinearSVC", "LogisticRegression"),
        "linear.models": ("FMClassificationModel", "LinearSVCModel", "LogisticRegressionModel"),
        "online.estimator": (
            *("OnlineFM", "OnlineFMModel", "OnlineLogisticRegression", "OnlineLogisticRegressionModel"),
        ),
        "trees.models": ("GBTClassificationModel", "RandomForestClassificationModel"),
        "trees.estimator": ("GBTClassifier",),
        "trees.forests.estimator": ("RandomForestClassifier",),
    },
    "clustering": {
        "topics.estimator": ("LDA", "LDAModel"),
        "clusters.estimator": ("KMeans", "KMeansModel"),
    },
    "feature": {
        "dictionary.estimator": ("DictionaryLearning", "DictionaryLearningModel"),
        "embeddings.estimator": ("Word2Vec",),
        "embeddings.models": ("Word2VecModel",),
        "frame.key_hasher": ("KeyHasher",),
        "metric.estimator": ("MetricLearning", "MetricLearningModel"),
    },
    "graph": {
        "embeddings.estimator": ("DeepWalk", "LINE", "Node2Vec", "RandomWalks"),
        "embeddings.models": ("DeepWalkModel", "LINEModel", "Node2VecModel"),
    },
    "ranking": {
        "trees.models": ("GBTRankerModel",),
        "trees.estimator": ("GBTRanker",),
    },
    "recommendation": {
        "deep.estimator": ("TwoTower", "TwoTowerModel"),
        "factors.estimator": ("MatrixFactorization", "MatrixFactorizationModel"),
    },
    "regression": {
        "linear.estimator": ("FMRegressor", "LinearRegression"),
        "linear.models": ("FMRegressionModel", "LinearRegressionModel"),
        "trees.models": ("GBTRegressionModel", "RandomForestRegressionModel"),
        "trees.estimator": ("GBTRegressor",),
        "trees.forests.estimator": ("RandomForestRegressor",),
    },
}


def exports(package: str) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a module; ``ps2.algorithms`` exports all names."""
    modules = {
        name: f"{ROOT}.{defining_module}"
        for module, names_by_module in PUBLIC_NAMES.items()
        if package in (ROOT, f"{ROOT}.{module}")
        for defining_module, names in names_by_module.items()
        for name in names
    }
    return sorted(modules), *lazy_names(package, modules)
