"""The public estimators of embeddings: Word2Vec, DeepWalk, Node2Vec and LINE; and RandomWalks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyspark.ml import Estimator, Transformer
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter
from pyspark.sql import DataFrame

from ps2.algorithms.embeddings import graph_frame, sentence_frame
from ps2.algorithms.embeddings.model import Embedding
from ps2.algorithms.embeddings.models import (
    DeepWalkModel,
    EmbeddingModel,
    LINEModel,
    Node2VecModel,
    Word2VecModel,
    Word2VecParams,
    input_column,
)
from ps2.algorithms.embeddings.plan import EmbeddingPlan, FittedEmbeddings
from ps2.algorithms.embeddings.program import Corpus, OnlyWorker, train
from ps2.algorithms.embeddings.sentences import InMemorySentences, ReadEdges, ReadKeys, WalkSentences, rank_by_frequency
from ps2.algorithms.embeddings.settings import (
    ORDERS,
    DeepWalkSettings,
    EmbeddingSettings,
    GraphSettings,
    LINESettings,
    Node2VecSettings,
    RandomWalkSettings,
    Word2VecSettings,
)
from ps2.algorithms.embeddings.work import check_walks
from ps2.algorithms.frame.dealing import check_workers, deal
from ps2.algorithms.frame.estimator import TrainingEstimator
from ps2.algorithms.frame.frames import check_frame
from ps2.algorithms.frame.model_files import EstimatorReader, EstimatorWriter
from ps2.algorithms.frame.params import ByName
from ps2.algorithms.frame.retry import retry_after_server_loss
from ps2.algorithms.frame.settings import with_values
from ps2.algorithms.frame.tables import SMALL_BYTES
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.only_worker import OnStep, train_surveyed
from ps2.algorithms.training.record import TrainingHistory
from ps2.algorithms.training.run import SurveyedTraining
from ps2.algorithms.training.table import Table
from ps2.array_types import Int64s
from ps2.coordinator.context import PS2Context
from ps2.data.ids import Names
from ps2.errors import ConfigError, InputError
from ps2.run.spark.backend_lookup import backend_of, cores_of_one, count_executors


class EmbeddingEstimator(TrainingEstimator):
    """The base class of the estimators of embeddings; ``_KIND`` is ``Embedding.kind`` of the result."""

    _KIND: ClassVar[str]
    _MODEL: ClassVar[type[EmbeddingModel]]

    def _train_on(self, dataset: DataFrame) -> tuple[EmbeddingModel, TrainingHistory]:
        workers = self._requested_workers
        check_workers(backend_of(dataset), workers)
        embedding, history = retry_after_server_loss(lambda: self._train_embedding(dataset, workers))
        return self._MODEL._of(embedding), history

    @abstractmethod
    def _train_embedding(self, dataset: DataFrame, workers: int | None) -> tuple[Embedding, TrainingHistory]:
        """Train with the requested number of workers; None: the number is not set."""

    def _plan(self, settings: EmbeddingSettings, vocabulary: int, total: int) -> EmbeddingPlan:
        return EmbeddingPlan(settings=settings, name=self._name, vocabulary=vocabulary, total=total)

    def _train_corpus(
        self, corpus: Corpus, plan: EmbeddingPlan, shared_cleanup: ExitStack | None = None
    ) -> FittedEmbeddings:
        """Train with tables on the servers; see ``train`` for ``shared_cleanup``."""
        table, steps = Table(corpus.frame, ColumnNames(label=None), corpus.workers), plan.settings.maxIter
        return self._train_in_context(
            table, steps, lambda ps, on_step: train(ps, corpus, plan, on_step, shared_cleanup=shared_cleanup)
        )


def _count_workers(dataset: DataFrame, requested_workers: int | None, rows: int) -> int:
    """Return the number of workers: as requested, or one for each executor; at most one for each row."""
    return min(requested_workers or count_executors(backend_of(dataset)), rows)


class Word2Vec(Word2VecParams, EmbeddingEstimator, Estimator["Word2VecModel"]):
    """Vectors of words: ``pyspark.ml.feature.Word2Vec`` on servers, by skip-gram or CBOW with negative sampling.

    Example::

        model = Word2Vec(vectorSize=100, inputCol="words", outputCol="vector").fit(df)  # words: arrays of strings
        model.findSynonyms("oak", 5).show()
    """

    __module__ = "ps2.algorithms.feature"

    _KIND, _MODEL = "word2vec", Word2VecModel

    def _train_embedding(self, dataset: DataFrame, workers: int | None) -> tuple[Embedding, TrainingHistory]:
        name, settings = input_column(self), self._values(Word2VecSettings)
        if workers is None and self.isSet(self.numPartitions):
            workers = settings.numPartitions
        sentence_frame.check_sentences(dataset, name)
        if (result := self._train_few_sentences(dataset, settings, workers)) is not None:
            return result
        survey = sentence_frame.survey_sentences(dataset, settings)
        table = deal(dataset, ColumnNames(name, label=None), survey, _count_workers(dataset, workers, survey.rows))
        words, longest = backend_of(dataset).broadcast(survey.words), settings.maxSentenceLength

        def read(worker: Any, batches: Iterable[pa.RecordBatch]) -> InMemorySentences:
            return sentence_frame.encode(batches, words.value, longest)

        corpus = Corpus(table.frame, table.workers, read, frequencies=survey.counts, longest=longest)
        fitted = self._train_corpus(corpus, self._plan(settings, survey.dim, int(survey.counts.sum())))
        return Embedding(survey.words, fitted.vectors, survey.counts), fitted.history

    def _train_few_sentences(
        self, dataset: DataFrame, settings: Word2VecSettings, workers: int | None
    ) -> tuple[Embedding, TrainingHistory] | None:
        """Count words and train in one Spark job, in one worker's process; None: data or settings forbid it."""
        if settings.via not in ("auto", "local") or workers not in (None, 1) or self._why_durable():
            return None
        name = str(settings.inputCol)
        sentences = sentence_frame.sentences_of(dataset, name).coalesce(1)
        if backend_of(sentences).estimated_bytes(sentences) > SMALL_BYTES:
            return None
        reason = f"Spark expects at most {SMALL_BYTES >> 20} MiB of sentences"
        reason = "as requested" if settings.via == "local" else reason
        only_worker = OnlyWorker(cores_of_one(backend_of(dataset)), reason)
        settings = with_values(settings, via="local")
        check, table = sentence_frame.VocabularyCheck(settings), Table(sentences, ColumnNames(name, label=None), 1)

        def run(ps: PS2Context, on_step: OnStep) -> Any:
            program = sentence_frame.TrainCountedSentences(settings, len(ps.servers), only_worker)
            steps = sentence_frame.CountedSentences.read, sentence_frame.CountedSentences.report, check.decide, program
            return train_surveyed(ps, SurveyedTraining(table, *steps, self._seed), on_step)

        fitted = self._train_in_one_job(dataset, table, settings.maxIter, run)
        if fitted is None or check.vocabulary is None:
            return None
        words, counts = check.vocabulary
        return Embedding(words, fitted.vectors, counts), fitted.history


class WalkEstimator(EmbeddingEstimator):
    """Trains on random walks like Word2Vec on sentences. The workers compute new walks in each epoch."""

    def _train_embedding(self, dataset: DataFrame, workers: int | None) -> tuple[Embedding, TrainingHistory]:
        settings, context = self._values(Node2VecSettings), backend_of(dataset)
        table = _survey_graph(dataset, settings)
        check_walks(settings, len(table.vertices))
        workers = _count_workers(dataset, workers, len(table.vertices))
        graph = graph_frame.place_graph(table, settings.graphOn, settings.numServers)
        try:
            visits = graph_frame.count_visits(table, graph.get_graph, settings, workers)
            if visits.sum() <= len(table.vertices) * settings.numWalks:
                raise InputError("expected edges that walks can go along, got none of a weight above 0")
            order, ranks = rank_by_frequency(visits)
            word_indices = context.broadcast(ranks)
            get_graph, total = graph.get_graph, int(visits.sum())

            def read(worker: Any, batches: Iterable[pa.RecordBatch]) -> WalkSentences:
                return WalkSentences(get_graph(), settings, word_indices.value, total, worker.rank, workers)

            frame = dataset.sparkSession.range(0, workers, 1, workers)
            context.set_partitions(frame, workers)
            corpus = Corpus(frame, workers, read, frequencies=visits[order], longest=settings.walkLength)
            fitted = self._train_corpus(corpus, self._plan(settings, len(order), total))
        finally:
            graph.free()
        arrays = fitted.vectors, visits[order], self._KIND, fitted.contexts, settings.nsExponent
        return Embedding(_names(table, order), *arrays), fitted.history


class DeepWalk(DeepWalkSettings, WalkEstimator, Estimator["DeepWalkModel"]):
    """Vectors of vertices from random walks: vertices near each other get similar vectors (Perozzi et al. 2014).

    Example::

        model = DeepWalk(numWalks=10, walkLength=40).fit(edges)  # columns src, dst: integers or strings
        model.similar("ann", 5)
    """

    __module__ = "ps2.algorithms.graph"

    _KIND, _MODEL = "deepwalk", DeepWalkModel


class Node2Vec(Node2VecSettings, WalkEstimator, Estimator["Node2VecModel"]):
    """Vectors of vertices from random walks biased by ``p`` and ``q`` (Grover and Leskovec 2016)."""

    __module__ = "ps2.algorithms.graph"

    _KIND, _MODEL = "node2vec", Node2VecModel


class LINE(LINESettings, EmbeddingEstimator, Estimator["LINEModel"]):
    """Vectors of vertices from their edges (Tang et al. 2015).

    With ``order="first"``, vertices with an edge between them get similar vectors; with "second", vertices with edges
    to the same vertices. With "both", each order trains half of each vector.
    """

    __module__ = "ps2.algorithms.graph"

    _KIND, _MODEL = "line", LINEModel

    def _check(self) -> None:
        super()._check()
        settings = self._values(LINESettings)
        if settings.order == "both" and settings.vectorSize % 2:
            raise ConfigError(f"vectorSize: expected an even number, half for each order, got {settings.vectorSize}")
        if settings.hashed and settings.via not in ("auto", "rows"):
            raise ConfigError(f"via: hashed ids require 'rows', got {settings.via!r}")

    def _train_embedding(self, dataset: DataFrame, workers: int | None) -> tuple[Embedding, TrainingHistory]:
        settings = self._values(LINESettings)
        train_edges = self._train_on_keys if settings.hashed else self._train_on_indices
        return train_edges(dataset, settings, workers)

    def _train_on_indices(
        self, dataset: DataFrame, settings: LINESettings, workers: int | None
    ) -> tuple[Embedding, TrainingHistory]:
        """Train on edges between vertices that are listed before the training, as word indices."""
        table, context = _survey_graph(dataset, settings), backend_of(dataset)
        weights = graph_frame.weigh_targets(table)
        weight = float(weights.sum())
        if not weight:
            raise InputError("expected edges, got none of a weight above 0")
        edges = table.max_edges if table.weighted else round(weight)
        counts = np.maximum(np.rint(weights * (edges / weight)).astype(np.int64), weights > 0)
        order, ranks = rank_by_frequency(counts)
        word_indices, vertices = context.broadcast(ranks), context.broadcast(table.vertices)
        read = ReadEdges(table.directed, edges, weight, self._seed, lambda: vertices.value, lambda: word_indices.value)
        corpus = Corpus(table.frame, _count_workers(dataset, workers, table.rows), read, frequencies=counts[order])
        orders = self._train_orders(corpus, self._plan(settings, len(order), edges))
        return self._combine(table, edges / weight, _names(table, order), counts[order], orders)

    def _train_on_keys(
        self, dataset: DataFrame, settings: LINESettings, workers: int | None
    ) -> tuple[Embedding, TrainingHistory]:
        """Train on edges between keys, without a list of all vertices."""
        table = graph_frame.survey_keyed_edges(dataset, settings)
        read = ReadKeys(table.directed, table.edges, table.weight, self._seed)
        frequencies = np.ones(1, np.int64)
        corpus = Corpus(table.frame, _count_workers(dataset, workers, table.rows), read, frequencies=frequencies)
        orders = self._train_orders(corpus, self._plan(settings, 1, table.edges).with_via("rows"))
        names, counts = Names(pa.array(orders[0].keys), "vertex"), orders[0].counts
        assert counts is not None
        return self._combine(table, table.edges / table.weight, names, counts, orders)

    def _train_orders(self, corpus: Corpus, plan: EmbeddingPlan) -> list[FittedEmbeddings]:
        """Train the orders one after the other; in checkpoints, each has a different name."""
        results: list[FittedEmbeddings] = []
        orders = ORDERS[self.getOrder()]
        with ExitStack() as cleanup:
            for order in orders:
                name = f"{plan.name}/{order}" if plan.name and len(orders) > 1 else plan.name
                corpus = replace(corpus, first_clock=results[-1].clocks if results else 0)
                results.append(self._train_corpus(corpus, replace(plan, order=order, name=name), cleanup))
        return results

    def _combine(
        self,
        table: graph_frame.EdgeTable | graph_frame.KeyedEdges,
        scale: float,
        names: Names,
        counts: Int64s,
        orders: list[FittedEmbeddings],
    ) -> tuple[Embedding, TrainingHistory]:
        """Concatenate the vectors of all orders; an epoch has ``scale`` edges per unit of edge weight."""
        sources = graph_frame.count_sources(table.frame, names, scale) if table.directed else None
        contexts = None
        # In first order, vectors are also contexts. With both orders, the score is the mean of two dot products.
        if len(orders) > 1 or orders[0].contexts is not None:
            tables = [order.vectors if order.contexts is None else order.contexts for order in orders]
            contexts = np.hstack([table / np.float32(len(orders)) for table in tables])
        vectors = np.hstack([order.vectors for order in orders])
        embedding = Embedding(names, vectors, counts, self._KIND, contexts, self.getNsExponent(), sources)
        return embedding, _join([order.history for order in orders])


class RandomWalks(RandomWalkSettings, ByName, Transformer, MLReadable[Any], MLWritable):
    """Random walks through a graph: transforms a DataFrame of edges to a DataFrame of walks.

    A step follows one of a vertex's edges with a probability proportional to its weight (DeepWalk, Perozzi et al.
    2014). With ``p`` and ``q`` other than 1, it also depends on the previous vertex (node2vec, Grover and Leskovec
    2016, section 3.2.2). The weights of parallel edges are added; a loop counts as one edge; edges of weight 0 are
    ignored, but their vertices are part of the graph. A walk ends at a vertex without outgoing edges.

    A walk depends only on the edges, the seed, its epoch and its first vertex. It is the same for any number of workers
    and servers, and for any ``graphOn``.
    """

    __module__ = "ps2.algorithms.graph"

    def _set_defaults(self) -> None:
        super()._set_defaults()
        self._graphs: list[graph_frame.PlacedGraph] = []  # on servers; copies of this object have the same list

    def free(self) -> None:
        """Free the graphs on the servers. Walks that have not been computed yet can no longer be computed."""
        while self._graphs:
            self._graphs.pop().free()

    def _transform(self, dataset: DataFrame) -> DataFrame:
        """Return walks: columns ``epoch`` (int) and ``walk`` (array of ids), in order of epoch and first vertex.

        The edges are read at once; the walks are computed whenever the DataFrame is evaluated.

        Raises:
            ConfigError: a param is invalid.
            InputError: the edges are invalid.
            LimitError: the graph does not fit into the servers' memory, or a walk does not fit into a row.
        """
        check_frame(dataset)
        settings = self._values(RandomWalkSettings)
        table = graph_frame.survey_edges(dataset, settings)
        check_walks(settings, len(table.vertices))
        workers = settings.numWorkers or backend_of(dataset).total_slots()
        workers = min(workers, settings.numWalks * len(table.vertices))  # at most one for each walk
        graph = graph_frame.place_graph(table, settings.graphOn, settings.numServers)
        if graph.on_servers:
            self._graphs.append(graph)
        return graph_frame.walks_frame(table, graph.get_graph, settings, workers)

    def write(self) -> MLWriter:
        """Return a writer: ``write().overwrite().save(path)``."""
        return EstimatorWriter(self)

    @classmethod
    def read(cls) -> MLReader[Any]:
        """Return a reader: ``read().load(path)``."""
        return EstimatorReader(cls)


def _survey_graph(dataset: DataFrame, settings: GraphSettings) -> graph_frame.EdgeTable:
    """Check edges; raise InputError unless there are at least two vertices."""
    table = graph_frame.survey_edges(dataset, settings)
    if len(table.vertices) < 2:
        raise InputError("expected at least two vertices, got one")
    return table


def _names(table: graph_frame.EdgeTable, order: Int64s) -> Names:
    """Return the ids of the vertices with the indices ``order``."""
    kind = pa.string() if pa.types.is_string(table.arrow_id_type) else pa.int64()
    return Names(table.vertices.named(order).cast(kind), "vertex")


def _join(histories: list[TrainingHistory]) -> TrainingHistory:
    """Return the histories of consecutive trainings as one."""
    joined, *later = histories
    for history in later:
        joined = replace(
            joined,
            objective=[*joined.objective, *history.objective],
            seconds=[*joined.seconds, *history.seconds],
            steps=joined.steps + history.steps,
            rows=joined.rows + history.rows,
            bytes=joined.bytes + history.bytes,
            metrics={name: (*values, *history.metrics.get(name, ())) for name, values in joined.metrics.items()},
        )
    return joined
