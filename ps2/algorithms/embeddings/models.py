"""The public models of embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pyspark.ml import Model, feature
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from ps2.algorithms.embeddings.graph_frame import id_type
from ps2.algorithms.embeddings.model import Embedding
from ps2.algorithms.embeddings.sentence_frame import check_sentences
from ps2.algorithms.embeddings.settings import DeepWalkSettings, LINESettings, Node2VecSettings, Word2VecSettings
from ps2.algorithms.frame.arrow_batches import as_lists, frame_of_rows
from ps2.algorithms.frame.frames import check_frame
from ps2.algorithms.frame.models import FittedModel
from ps2.algorithms.frame.params import ByName
from ps2.algorithms.frame.scoring import PairScoring, WordScoring
from ps2.algorithms.frame.tables import column
from ps2.array_types import Int64s
from ps2.errors import InputError
from ps2.plot_extra import PlotPath
from ps2.run.spark.backend_lookup import active_session, backend_of, with_python
from ps2.run.spark.jvm import jvm_context, word2vec_model

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The column that ``score`` adds, and the schema of ``findSynonyms``.
SCORE, SYNONYMS = "score", "word string, similarity double not null"


class EmbeddingModel(FittedModel, Model):
    """A trained model with a vector for each word or vertex."""

    _ARRAYS = Embedding

    def __repr__(self) -> str:
        embedding = self.embedding
        return f"{type(self).__name__}: uid={self.uid}, n={len(embedding)}, vectorSize={embedding.dim}"

    @property
    def embedding(self) -> Embedding:
        """The vectors as arrays, usable without Spark."""
        embedding: Embedding = self._fitted
        return embedding

    def saveWord2Vec(self, path: str, binary: bool = False) -> None:
        """Write a file that gensim's ``KeyedVectors`` reads; see ``Embedding.saveWord2Vec``."""
        self.embedding.saveWord2Vec(path, binary)

    def exportVectors(self, path: str, form: str = "parquet") -> None:
        """Write names and vectors for an index or a database; see ``Embedding.exportVectors``."""
        self.embedding.exportVectors(path, form)

    def toPyspark(self) -> feature.Word2VecModel:
        """Return a pyspark.ml model with the same vectors; integer ids become strings."""
        context, embedding = jvm_context("toPyspark"), self.embedding
        rows = {str(name): row for row, name in enumerate(embedding.names.values.to_pylist())}
        java_model = word2vec_model(context, rows, embedding.vectors.tobytes())
        model = self._as_pyspark(feature.Word2VecModel, java_model)
        return model._set(vectorSize=embedding.dim)

    def plotEmbedding(
        self,
        path: PlotPath = None,
        classes: Mapping[Any, Any] | None = None,
        labels: Sequence[Any] | None = None,
        *,
        ax: Axes | None = None,
    ) -> Axes:
        """Plot the vectors in the plane of their two largest principal components; see ``Embedding.plotEmbedding``."""
        return self.embedding.plotEmbedding(path, classes, labels, ax=ax)

    def _frame_of(self, name: str) -> DataFrame:
        """Return all vectors: a column ``name`` of words or vertices, and the column ``vector``."""
        spark = active_session()
        embedding, get_embedding = self.embedding, self._share(backend_of(spark))
        kind: DataType = LongType() if embedding.names.are_integers else StringType()
        schema = StructType([StructField(name, kind), StructField("vector", VectorUDT())])

        def make_batch(rows: Int64s) -> pa.RecordBatch:
            names = get_embedding().names.values.take(pa.array(rows))
            return pa.record_batch([names, as_vectors(get_embedding().vectors[rows])], names=[name, "vector"])

        return frame_of_rows(spark, len(embedding), make_batch, schema)


class Word2VecParams(Word2VecSettings, ByName):
    """The params of Word2Vec, with pyspark.ml's default of ``outputCol``."""

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._setDefault(outputCol=f"{self.uid}__output")


class Word2VecModel(Word2VecParams, EmbeddingModel):
    """A trained ``Word2Vec``."""

    __module__ = "ps2.algorithms.feature"

    def getVectors(self) -> DataFrame:
        """Return all vectors, in columns word and vector, the most frequent words first."""
        return self._frame_of("word")

    def findSynonyms(self, word: Any, num: int) -> DataFrame:
        """Return the words most similar to a word or a vector, in columns word and similarity (the cosine).

        Raises:
            InputError: the word has no vector.
            ConfigError: ``num`` is below 1.
        """
        return with_python(active_session()).createDataFrame(self.findSynonymsArray(word, num), SYNONYMS)

    def findSynonymsArray(self, word: Any, num: int) -> list[tuple[str, float]]:
        """Like ``findSynonyms``, but return a list of pairs."""
        return self.embedding.similar(word, num)

    def scoring(self) -> WordScoring:
        """Describe how ``transform`` scores rows, for scorers without Spark and servers."""
        return WordScoring(f"{Embedding.__module__}:Embedding", input_column(self), str(self.getOutputCol()))

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_frame(dataset)
        name, output = input_column(self), str(self.getOutputCol())
        check_sentences(dataset, name)
        if output in dataset.columns:
            raise InputError(f"column {output!r}: it is there already; choose another name for the vectors")
        sentence = column(name)
        fault = F.raise_error(F.lit(f"column {name!r}: expected arrays of strings, got null"))
        get_embedding: Callable[[], Embedding] = self._share(backend_of(with_python(dataset)))

        def take_means(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
            for sentences in batches:
                words = [() if sentence is None else sentence for sentence in sentences]
                yield pd.Series(list(get_embedding().means(pa.array(words, pa.list_(pa.string())))))

        make_udf: Any = pandas_udf
        mean = make_udf(take_means, "array<double>")(sentence)
        vector = array_to_vector(F.when(sentence.isNull(), fault.cast("array<double>")).otherwise(mean))
        metadata = {"ml_attr": {"num_attrs": self.embedding.dim}}
        return dataset.select("*", vector.alias(output, metadata=metadata))


class VertexModel(EmbeddingModel):
    """A trained model with a vector for each vertex."""

    if TYPE_CHECKING:  # methods of the subclasses' settings
        getSrcCol: Any
        getDstCol: Any
        getDirected: Any

    @property
    def vectors(self) -> DataFrame:
        """All vectors, in columns id and vector, the most frequent vertices first."""
        return self._frame_of("id")

    def similar(self, id: Any, n: int = 10) -> list[tuple[Any, float]]:
        """Return the most similar vertices and their cosines; see ``Embedding.similar``."""
        return self.embedding.similar(id, n)

    def score(self, pairs: DataFrame) -> DataFrame:
        """Add a column ``score``: a pair with a larger score is more likely an edge; see ``Embedding.score``.

        Args:
            pairs: a DataFrame with ids in ``srcCol`` and ``dstCol``; if ``directed``, scores are those of edges from
                source to target.

        Returns:
            ``pairs`` with the column ``score``, double; null if one of the two vertices has no vector.

        Raises:
            InputError: a column is missing or has ids of another type; or ``pairs`` already has a column ``score``.
        """
        check_frame(pairs)
        source, target = self.getSrcCol(), self.getDstCol()
        kind, names = id_type(pairs, source, target), self.embedding.names
        if isinstance(kind, StringType) == names.are_integers:
            expected = "integers" if names.are_integers else "strings"
            raise InputError(f"columns {source!r} and {target!r}: expected ids, {expected}, got {kind.simpleString()}")
        if SCORE in pairs.columns:
            raise InputError(f"column {SCORE!r}: it is there already; drop or rename it")
        get_embedding: Callable[[], Embedding] = self._share(backend_of(with_python(pairs)))
        directed = self.getDirected()

        def score(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
            for pair in batches:
                first, second = (get_embedding().names.positions(pa.array(ids)) for ids in pair)
                is_known = (first >= 0) & (second >= 0)
                values = np.full(len(first), np.nan)
                values[is_known] = get_embedding().expected(first[is_known], second[is_known], directed)
                yield pd.Series(values).where(is_known, None)

        make_udf: Any = pandas_udf
        ids = column(source), column(target)
        # pandas would convert integers with nulls to floats, which changes ids above 2**53.
        filler = F.lit("" if isinstance(kind, StringType) else 0)
        scores = make_udf(score, "double")(*(F.coalesce(id, filler) for id in ids))
        return pairs.withColumn(SCORE, F.when(ids[0].isNotNull() & ids[1].isNotNull(), scores))

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return self.score(dataset)

    def scoring(self) -> PairScoring:
        """Describe how ``transform`` scores rows, for scorers without Spark and servers."""
        loader, columns = f"{Embedding.__module__}:Embedding", (self.getSrcCol(), self.getDstCol())
        integers = self.embedding.names.are_integers
        return PairScoring(loader, *columns, SCORE, (integers, integers), self.getDirected())


class DeepWalkModel(DeepWalkSettings, VertexModel):
    """A trained ``DeepWalk``."""

    __module__ = "ps2.algorithms.graph"


class Node2VecModel(Node2VecSettings, VertexModel):
    """A trained ``Node2Vec``."""

    __module__ = "ps2.algorithms.graph"


class LINEModel(LINESettings, VertexModel):
    """A trained ``LINE``."""

    __module__ = "ps2.algorithms.graph"


def input_column(params: Word2VecParams) -> str:
    """Return the name of the column of sentences; raise InputError if the param is not set."""
    if not params.isSet(params.inputCol):
        raise InputError("inputCol: expected the name of a column of arrays of strings, and it is not set")
    return str(params.getInputCol())


def as_vectors(rows: npt.NDArray[Any]) -> pa.StructArray:
    """Return the rows of a matrix as dense vectors in Spark's encoding (``VectorUDT``)."""
    n = len(rows)
    types, sizes, indices = pa.array(np.ones(n, np.int8)), pa.nulls(n, pa.int32()), pa.nulls(n, pa.list_(pa.int32()))
    fields = [types, sizes, indices, as_lists(rows.astype(np.float64))]
    return pa.StructArray.from_arrays(fields, names=["type", "size", "indices", "values"])
