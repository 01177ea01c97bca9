"""Clustering: KMeans and LDA with pyspark.ml's API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps2.algorithms.public_names import exports

if TYPE_CHECKING:
    from ps2.algorithms.clusters.estimator import KMeans as KMeans
    from ps2.algorithms.clusters.estimator import KMeansModel as KMeansModel
    from ps2.algorithms.topics.estimator import LDA as LDA
    from ps2.algorithms.topics.estimator import LDAModel as LDAModel
else:
    __all__, __getattr__, __dir__ = exports(__name__)
