"""Estimators and models with pyspark.ml's API, trained on a fleet of servers (``public_names.py`` lists the names)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps2.algorithms.public_names import exports

if TYPE_CHECKING:  # type checkers do not run ``exports``, so they need the imports
    from ps2.algorithms.classification import *  # noqa: F403
    from ps2.algorithms.clustering import *  # noqa: F403
    from ps2.algorithms.clusters.model import KMeansClusters as KMeansClusters
    from ps2.algorithms.dictionary.model import SparseCoder as SparseCoder
    from ps2.algorithms.embeddings.model import Embedding as Embedding
    from ps2.algorithms.factors.model import MatrixFactors as MatrixFactors
    from ps2.algorithms.feature import *  # noqa: F403
    from ps2.algorithms.graph import *  # noqa: F403
    from ps2.algorithms.linear.model import FactorizationMachine as FactorizationMachine
    from ps2.algorithms.linear.model import LinearModel as LinearModel
    from ps2.algorithms.metric.model import Metric as Metric
    from ps2.algorithms.ranking import *  # noqa: F403
    from ps2.algorithms.recommendation import *  # noqa: F403
    from ps2.algorithms.regression import *  # noqa: F403
    from ps2.algorithms.topics.model import LDATopics as LDATopics
    from ps2.algorithms.trees.forests.random_forest import RandomForest as RandomForest
    from ps2.algorithms.trees.model import GBTModel as GBTModel
else:
    __all__, __getattr__, __dir__ = exports(__name__)
