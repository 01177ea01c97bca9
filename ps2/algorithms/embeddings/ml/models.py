"""Base of the models of embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.ml import feature
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from ps2.algorithms.embeddings.ml.training_params import EmbeddingParams
from ps2.algorithms.embeddings.model import Embedding
from ps2.algorithms.estimators.models import FittedModel
from ps2.algorithms.estimators.summaries import HistorySummary
from ps2.algorithms.training.record import TrainingHistory
from ps2.plot_extra import PlotPath
from ps2.run.spark.backend_lookup import active_session, backend_of, with_python
from ps2.run.spark.jvm import jvm_context, word2vec_model

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Vectors of a batch for Spark.
SOME = 4096


class EmbeddingModel(FittedModel, EmbeddingParams):
    """A vector for each name."""

    def __repr__(self) -> str:
        embedding = self.embedding
        return f"{type(self).__name__}: uid={self.uid}, n={len(embedding)}, vectorSize={embedding.dim}"

    @property
    def embedding(self) -> Embedding:
        """The vectors as arrays, usable without Spark."""
        found: Embedding = self._fitted
        return found

    def saveWord2Vec(self, path: str, binary: bool = False) -> None:
        """Write a file that gensim's ``KeyedVectors`` reads; see ``Embedding.saveWord2Vec``."""
        self.embedding.saveWord2Vec(path, binary)

    def toPyspark(self) -> feature.Word2VecModel:
        """Return a pyspark.ml model with the same vectors; ids become strings."""
        context, embedding = jvm_context("toPyspark"), self.embedding
        rows = {str(name): at for at, name in enumerate(embedding.names.values.to_pylist())}
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
        """Return all vectors: a column of names, and ``vector``."""
        spark, embedding = _session(), self.embedding
        share = self._share(backend_of(spark))
        schema = StructType([StructField(name, self._name_type), StructField("vector", VectorUDT())])

        def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found: Embedding = share()
            for batch in batches:
                places = batch.column(0).to_numpy()
                for begin in range(0, len(places), SOME):
                    some = places[begin : begin + SOME]
                    names = found.names.values.take(pa.array(some))
                    yield pa.record_batch([names, as_vectors(found.vectors[some])], names=[name, "vector"])

        parts = max(1, min(backend_of(spark).total_slots(), len(embedding) // SOME))
        frame: DataFrame = with_python(spark).range(0, len(embedding), 1, parts).mapInArrow(made, schema)
        return frame

    @property
    def _name_type(self) -> DataType:
        return LongType() if self.embedding.names.are_integers else StringType()

    # -- files, summaries, plots -----------------------------------------------------------------------------------

    def _write_content(self, url: str) -> Any:
        return self.embedding.write(url)

    @classmethod
    def _read_content(cls, path: str, url: str, content: Any) -> Embedding:
        return Embedding.read(path, url, content)

    def _remember(self, dataset: DataFrame, history: TrainingHistory) -> None:
        self._summary = HistorySummary(history)


def as_vectors(rows: npt.NDArray[Any]) -> pa.StructArray:
    """Return the rows of a matrix in Spark's encoding of dense vectors."""
    n, dim = rows.shape
    values = pa.array(rows.reshape(-1).astype(np.float64))
    lists = pa.ListArray.from_arrays(pa.array(np.arange(n + 1) * dim, pa.int32()), values)
    return pa.StructArray.from_arrays(
        [pa.array(np.ones(n, np.int8)), pa.nulls(n, pa.int32()), pa.nulls(n, pa.list_(pa.int32())), lists],
        names=["type", "size", "indices", "values"],
    )


def _session() -> SparkSession:
    session: SparkSession = active_session()
    return session
