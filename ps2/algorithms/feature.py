"""Features: pyspark.ml's Word2Vec, trained on a fleet of servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.ml import Estimator, Model
from pyspark.ml.functions import array_to_vector
from pyspark.ml.param.shared import HasInputCol, HasOutputCol
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

from ps2.algorithms.embeddings.ml.estimator import EmbeddingEstimator, workers_of
from ps2.algorithms.embeddings.ml.models import EmbeddingModel
from ps2.algorithms.embeddings.ml.training_params import Word2VecParams
from ps2.algorithms.embeddings.ml.words import ReadSentences, check_sentences, inspect_sentences
from ps2.algorithms.embeddings.model import Embedding
from ps2.algorithms.estimators.dealing import deal
from ps2.algorithms.estimators.frames import check_frame
from ps2.algorithms.estimators.params import setter
from ps2.algorithms.estimators.tables import column
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.record import TrainingHistory
from ps2.errors import InputError

SYNONYMS = "word string, similarity double not null"


class Word2Vec(EmbeddingEstimator, Word2VecParams, Estimator["Word2VecModel"]):
    """Vectors of words: ``pyspark.ml.feature.Word2Vec`` on servers, by skip-gram or CBOW with negative sampling.

    Example::

        model = Word2Vec(vectorSize=100, inputCol="words", outputCol="vector").fit(df)  # words: arrays of strings
        model.findSynonyms("oak", 5).show()
    """

    _KIND = "word2vec"

    @staticmethod
    def _MODEL(embedding: Embedding) -> Word2VecModel:
        return Word2VecModel(embedding)

    def _embedded(self, dataset: DataFrame, workers: int | None) -> tuple[Embedding, TrainingHistory]:
        name = _input_column(self)
        found = inspect_sentences(dataset, name, self.getMinCount())
        if workers is None and self.isSet(self.numPartitions):
            workers = self.getNumPartitions()
        workers = workers_of(dataset, workers, found.rows)
        table = deal(dataset, ColumnNames(name, label=None), found, workers)
        words = dataset.sparkSession.sparkContext.broadcast(found.words)
        settings = self._settings_for(
            found.dim,
            int(found.counts.sum()),
            window=self.getWindowSize(),
            architecture=self.getArchitecture(),
            sample=self.getSample(),
        )
        longest = self.getMaxSentenceLength()
        fitted = self._train(table, ReadSentences(words, longest), settings, found.counts, longest=longest)
        return Embedding(found.words, fitted.vectors, found.counts), fitted.history


class Word2VecModel(EmbeddingModel, Word2VecParams, Model):
    """What ``Word2Vec.fit`` returns."""

    setInputCol = setter(HasInputCol.inputCol)
    setOutputCol = setter(HasOutputCol.outputCol)

    def getVectors(self) -> DataFrame:
        """Return all vectors, the most frequent words first: columns word and vector."""
        return self._frame_of("word")

    def findSynonyms(self, word: Any, num: int) -> DataFrame:
        """Return the words most similar to a word or a vector: columns word and similarity (the cosine).

        Raises:
            InputError: the word has no vector.
            ConfigError: ``num`` is below 1.
        """
        return SparkSession.builder.getOrCreate().createDataFrame(self.findSynonymsArray(word, num), SYNONYMS)

    def findSynonymsArray(self, word: Any, num: int) -> list[tuple[str, float]]:
        """Like ``findSynonyms``, but return a list of pairs."""
        return self.embedding.similar(word, num)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_frame(dataset)
        name, output = _input_column(self), self.getOutputCol()
        check_sentences(dataset, name)
        if output in dataset.columns:
            raise InputError(f"column {output!r}: it is there already; choose another name for the vectors")
        sentence = column(name)
        fault = F.raise_error(F.lit(f"column {name!r}: expected arrays of strings, got null"))
        mean = _means(self._share(dataset.sparkSession.sparkContext))(sentence)
        vector = array_to_vector(F.when(sentence.isNull(), fault.cast("array<double>")).otherwise(mean))
        described = {"ml_attr": {"num_attrs": self.embedding.dim}}
        return dataset.select("*", vector.alias(output, metadata=described))


def _means(share: Callable[[], Embedding]) -> Any:
    def means(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        embedding = share()
        for sentences in batches:
            words = [() if sentence is None else sentence for sentence in sentences]
            yield pd.Series(list(embedding.means(pa.array(words, pa.list_(pa.string())))))

    make: Any = pandas_udf
    return make(means, "array<double>")


def _input_column(params: Word2VecParams) -> str:
    if not params.isSet(params.inputCol):
        raise InputError("inputCol: expected the name of a column of arrays of strings, and it is not set")
    return params.getInputCol()
