"""Features: Word2Vec with pyspark.ml's API, metric learning, dictionary learning, and columns hashed to keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps2.algorithms.public_names import exports

if TYPE_CHECKING:
    from ps2.algorithms.dictionary.estimator import DictionaryLearning as DictionaryLearning
    from ps2.algorithms.dictionary.estimator import DictionaryLearningModel as DictionaryLearningModel
    from ps2.algorithms.embeddings.estimator import Word2Vec as Word2Vec
    from ps2.algorithms.embeddings.models import Word2VecModel as Word2VecModel
    from ps2.algorithms.frame.key_hasher import KeyHasher as KeyHasher
    from ps2.algorithms.metric.estimator import MetricLearning as MetricLearning
    from ps2.algorithms.metric.estimator import MetricLearningModel as MetricLearningModel
else:
    __all__, __getattr__, __dir__ = exports(__name__)
