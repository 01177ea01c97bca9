"""Graphs: random walks through them, and vectors of their vertices (paper, section 5.2.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator, Model, Transformer
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import DataFrame

from ps2.algorithms.embeddings.footprint import check_walks
from ps2.algorithms.embeddings.ml.edges import look
from ps2.algorithms.embeddings.ml.graphs import PlacedGraph, placed
from ps2.algorithms.embeddings.ml.params import BiasedWalkParams
from ps2.algorithms.embeddings.ml.training_params import (
    BiasedWalkTrainingParams,
    EdgeTrainingParams,
    WalkTrainingParams,
)
from ps2.algorithms.embeddings.ml.vertices import EdgeEstimator, VertexModel, WalkEstimator
from ps2.algorithms.embeddings.ml.walking import walks_frame
from ps2.algorithms.embeddings.model import Embedding
from ps2.algorithms.estimators.frames import check_frame
from ps2.algorithms.estimators.model_files import EstimatorReader, EstimatorWriter
from ps2.algorithms.estimators.params import check_ranges
from ps2.run.spark.backend_lookup import backend_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ps2.algorithms.estimators.keywords import graph as keywords


class RandomWalks(BiasedWalkParams, Transformer, MLReadable[Any], MLWritable):
    """Random walks through a graph: from a DataFrame of edges to one of walks.

    A step follows one of a vertex's edges with a probability proportional to its weight (DeepWalk, Perozzi et al.
    2014). With ``p`` and ``q`` other than 1, it also depends on the previous vertex (node2vec, Grover and Leskovec
    2016, section 3.2.2). Parallel edges add up; a loop counts as one edge; an edge of weight 0 is left out, but its
    vertices are part of the graph. A walk ends at a vertex without outgoing edges.

    A walk depends only on the edges, the seed, its epoch and its first vertex: it is the same for any number of
    workers and servers, and wherever the graph lies.
    """

    def __init__(self, **params: Unpack[keywords.RandomWalks]) -> None:
        super().__init__(**params)
        self._graphs: list[PlacedGraph] = []

    def free(self) -> None:
        """Free the graphs on the servers; walks that have not been computed yet fail from now on."""
        while self._graphs:
            self._graphs.pop().free()

    def _transform(self, dataset: DataFrame) -> DataFrame:
        """Return walks: columns ``epoch`` (int) and ``walk`` (array of ids), in order of epoch and first vertex.

        The edges are read now; the walks are computed each time the DataFrame is.

        Raises:
            ConfigError: a param cannot be used.
            InputError: the edges cannot be used.
            LimitError: the graph does not fit on the servers, or a walk does not fit in a row.
        """
        check_frame(dataset)
        check_ranges(self)
        settings = self._settings()
        table = look(dataset, self._edges, self.getDirected())
        check_walks(settings, len(table.vertices))
        spark = backend_of(dataset)
        workers = self.getNumWorkers() if self.isSet(self.numWorkers) else spark.total_slots()
        workers = min(workers, settings.epochs * len(table.vertices))  # more would have no walk
        graph = placed(table, self)
        if graph.on_servers:
            self._graphs.append(graph)
        return walks_frame(table, graph.share, settings, workers)

    def write(self) -> MLWriter:
        """Return a writer: ``write().overwrite().save(path)``."""
        return EstimatorWriter(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """Return a reader: ``read().load(path)``."""
        return EstimatorReader(cls)


class DeepWalk(WalkEstimator, Estimator["DeepWalkModel"]):
    """Vectors of vertices from random walks; vertices near each other get similar vectors (Perozzi et al. 2014).

    Example::

        model = DeepWalk(numWalks=10, walkLength=40).fit(edges)  # columns src, dst: integers or strings
        model.similar("ann", 5)
    """

    def __init__(self, **params: Unpack[keywords.DeepWalk]) -> None:
        super().__init__(**params)

    _KIND = "deepwalk"

    @staticmethod
    def _MODEL(embedding: Embedding) -> DeepWalkModel:
        return DeepWalkModel(embedding)


class DeepWalkModel(VertexModel, WalkTrainingParams, Model):
    """What ``DeepWalk.fit`` returns."""


class Node2Vec(WalkEstimator, BiasedWalkTrainingParams, Estimator["Node2VecModel"]):
    """Vectors of vertices from random walks biased by ``p`` and ``q`` (Grover and Leskovec 2016)."""

    def __init__(self, **params: Unpack[keywords.Node2Vec]) -> None:
        super().__init__(**params)

    _KIND = "node2vec"

    @staticmethod
    def _MODEL(embedding: Embedding) -> Node2VecModel:
        return Node2VecModel(embedding)


class Node2VecModel(VertexModel, BiasedWalkTrainingParams, Model):
    """What ``Node2Vec.fit`` returns."""


class LINE(EdgeEstimator, Estimator["LINEModel"]):
    """Vectors of vertices from their edges (Tang et al. 2015). First order: vertices with an edge between them are
    similar. Second order: vertices with edges to the same vertices are. Or both.
    """

    def __init__(self, **params: Unpack[keywords.LINE]) -> None:
        super().__init__(**params)

    _KIND = "line"

    @staticmethod
    def _MODEL(embedding: Embedding) -> LINEModel:
        return LINEModel(embedding)


class LINEModel(VertexModel, EdgeTrainingParams, Model):
    """What ``LINE.fit`` returns."""
