"""Estimators and model of vertex embeddings, from walks and from edges."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import StringType

from ps2.algorithms.embeddings.footprint import check_walks
from ps2.algorithms.embeddings.ml.edges import EdgeTable, id_type, look
from ps2.algorithms.embeddings.ml.estimator import EmbeddingEstimator, workers_of
from ps2.algorithms.embeddings.ml.graphs import ReadEdges, ReadWalks, count_sources, count_visits, placed, weigh_targets
from ps2.algorithms.embeddings.ml.keyed import KeyedEdges, ReadKeys, inspect_keys
from ps2.algorithms.embeddings.ml.models import EmbeddingModel
from ps2.algorithms.embeddings.ml.params import GraphParams
from ps2.algorithms.embeddings.ml.training_params import EdgeTrainingParams, WalkTrainingParams
from ps2.algorithms.embeddings.model import Embedding
from ps2.algorithms.embeddings.program import Corpus
from ps2.algorithms.embeddings.sentences import rank_by_frequency
from ps2.algorithms.embeddings.settings import EmbeddingSettings, FittedEmbeddings
from ps2.algorithms.estimators.frames import check_frame
from ps2.algorithms.estimators.params import setter
from ps2.algorithms.estimators.scoring import PairScoring
from ps2.algorithms.estimators.tables import column
from ps2.algorithms.training.record import TrainingHistory
from ps2.array_types import Float32s, Int64s
from ps2.data.names import Names
from ps2.errors import ConfigError, InputError
from ps2.run.spark.backend_lookup import backend_of, with_python

SCORE = "score"


class VertexEstimator(EmbeddingEstimator, GraphParams):
    """Base of the estimators of vertex embeddings."""

    def _embedding(
        self, names: Names, counts: Int64s, vectors: Float32s, contexts: Float32s | None, sources: Int64s | None = None
    ) -> Embedding:
        """Return the trained embedding."""
        return Embedding(names, vectors, counts, self._KIND, contexts, self.getNsExponent(), sources)


class WalkEstimator(VertexEstimator, WalkTrainingParams):
    """Trains on walks as Word2Vec does on sentences; the workers make new walks in each pass."""

    def _embedded(self, dataset: DataFrame, workers: int | None) -> tuple[Embedding, TrainingHistory]:
        table = _inspected(dataset, self)
        walks, context = self._settings(), backend_of(dataset)
        check_walks(walks, len(table.vertices))
        workers = workers_of(dataset, workers, len(table.vertices))
        graph = placed(table, self)
        try:
            visits = count_visits(table, graph.share, walks, workers)
            if visits.sum() <= len(table.vertices) * walks.epochs:
                raise InputError("expected edges that walks can go along, got none of a weight above 0")
            order, numbers = rank_by_frequency(visits)
            shared = context.broadcast(numbers)
            read = ReadWalks(graph.share, lambda: shared.value, walks, int(visits.sum()), workers)
            ranks = dataset.sparkSession.range(0, workers, 1, workers)
            context.set_partitions(ranks, workers)
            settings = self._settings_for(len(order), int(visits.sum()), window=self.getWindowSize())
            corpus = Corpus(ranks, workers, read, frequencies=visits[order], longest=walks.length)
            fitted = self._train_on(corpus, settings)
        finally:
            graph.free()
        return self._embedding(_names(table, order), visits[order], fitted.vectors, fitted.contexts), fitted.history


class EdgeEstimator(VertexEstimator, EdgeTrainingParams):
    """Trains on edges (LINE)."""

    def _check(self) -> None:
        super()._check()
        if self.getOrder() == "both" and self.getVectorSize() % 2:
            raise ConfigError(
                f"vectorSize: expected an even number, of which each order has a half, got {self.getVectorSize()}"
            )
        if self.getHashed() and self.getVia() not in ("auto", "rows"):
            raise ConfigError(f"via: hashed ids require 'rows', got {self.getVia()!r}")

    def _embedded(self, dataset: DataFrame, workers: int | None) -> tuple[Embedding, TrainingHistory]:
        return (self._of_keys if self.getHashed() else self._of_numbers)(dataset, workers)

    def _of_numbers(self, dataset: DataFrame, workers: int | None) -> tuple[Embedding, TrainingHistory]:
        """Train on numbered vertices."""
        table, context = _inspected(dataset, self), backend_of(dataset)
        weights = weigh_targets(table)
        weight = float(weights.sum())
        if not weight:
            raise InputError("expected edges, got none of a weight above 0")
        edges = table.most_edges if table.weighted else round(weight)
        counts = np.maximum(np.rint(weights * (edges / weight)).astype(np.int64), weights > 0)
        order, numbers = rank_by_frequency(counts)
        shared, vertices = context.broadcast(numbers), context.broadcast(table.vertices)
        read = ReadEdges(lambda: vertices.value, lambda: shared.value, table.directed, edges, weight, self._seed)
        corpus = Corpus(table.frame, workers_of(dataset, workers, table.rows), read, frequencies=counts[order])
        parts = self._parts(corpus, self._edge_settings(len(order), edges))
        return self._of_edges(table, edges / weight, _names(table, order), counts[order], parts)

    def _of_keys(self, dataset: DataFrame, workers: int | None) -> tuple[Embedding, TrainingHistory]:
        """Train on vertices whose ids are keys, without numbering them first."""
        table = inspect_keys(dataset, self._edges, self.getDirected())
        read = ReadKeys(table.directed, table.edges, table.weight, self._seed)
        frequencies = np.ones(1, np.int64)
        corpus = Corpus(table.frame, workers_of(dataset, workers, table.rows), read, frequencies=frequencies)
        parts = self._parts(corpus, self._edge_settings(1, table.edges, via="rows", keyed=True))
        names, counts = Names(pa.array(parts[0].keys), "vertex"), parts[0].counts
        assert counts is not None
        return self._of_edges(table, table.edges / table.weight, names, counts, parts)

    def _of_edges(
        self, table: EdgeTable | KeyedEdges, scale: float, names: Names, counts: Int64s, parts: list[FittedEmbeddings]
    ) -> tuple[Embedding, TrainingHistory]:
        """Return the embeddings of all orders as one.

        Args:
            scale: occurrences in an epoch per unit of edge weight.
        """
        sources = count_sources(table.frame, names, scale) if table.directed else None
        embedding = self._embedding(names, counts, *_side_by_side(parts), sources)
        return embedding, _joined([part.history for part in parts])

    @property
    def _orders(self) -> tuple[int, ...]:
        return {"both": (1, 2), "first": (1,), "second": (2,)}[self.getOrder()]

    def _edge_settings(self, vocabulary: int, edges: int, **more: Any) -> EmbeddingSettings:
        size = self.getVectorSize() // len(self._orders)
        return self._settings_for(vocabulary, edges, architecture="edges", size=size, **more)

    def _parts(self, corpus: Corpus, settings: EmbeddingSettings) -> list[FittedEmbeddings]:
        """Train each order after the other, under its own name."""
        parts: list[FittedEmbeddings] = []
        with ExitStack() as cleanup:
            for order in self._orders:
                name = f"{settings.name}/{order}" if settings.name and len(self._orders) > 1 else settings.name
                part = replace(corpus, first=parts[-1].clocks if parts else 0)
                parts.append(self._train_on(part, replace(settings, order=order, name=name), cleanup))
        return parts


class VertexModel(EmbeddingModel, GraphParams):
    """A vector for each vertex."""

    setSrcCol = setter(GraphParams.srcCol)
    setDstCol = setter(GraphParams.dstCol)

    @property
    def vectors(self) -> DataFrame:
        """All vectors, the most frequent vertices first: columns id and vector."""
        return self._frame_of("id")

    def similar(self, id: Any, n: int = 10) -> list[tuple[Any, float]]:
        """Return the most similar vertices and their cosines; see ``Embedding.similar``."""
        return self.embedding.similar(id, n)

    def score(self, pairs: DataFrame) -> DataFrame:
        """Add a column ``score``: the larger, the likelier is an edge (``Embedding.score``).

        Args:
            pairs: with ids in ``srcCol`` and ``dstCol``; if ``directed``, edges from the former to the latter.

        Returns:
            ``pairs`` with ``score``, double; null if one of the two has no vector.

        Raises:
            InputError: such a column is missing or has ids of another type; or ``pairs`` has a column ``score``.
        """
        check_frame(pairs)
        source, target = self.getSrcCol(), self.getDstCol()
        given, names = id_type(pairs, source, target), self.embedding.names
        if isinstance(given, StringType) == names.are_integers:
            expected = "integers" if names.are_integers else "strings"
            raise InputError(f"columns {source!r} and {target!r}: expected ids, {expected}, got {given.simpleString()}")
        if SCORE in pairs.columns:
            raise InputError(f"column {SCORE!r}: it is there already; drop or rename it")
        of_pairs = _scores(self._share(backend_of(with_python(pairs))), self.getDirected())
        ends = column(source), column(target)
        # pandas turns integers beside nulls into floats, which changes ids above 2**53.
        none = F.lit("" if isinstance(given, StringType) else 0)
        scores = of_pairs(*(F.coalesce(end, none) for end in ends))
        return pairs.withColumn(SCORE, F.when(ends[0].isNotNull() & ends[1].isNotNull(), scores))

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return self.score(dataset)

    def scoring(self) -> PairScoring:
        """Return how ``transform`` scores rows, as plain data, for scorers without Spark and servers."""
        loader, ends = f"{Embedding.__module__}:Embedding", (self.getSrcCol(), self.getDstCol())
        integers = self.embedding.names.are_integers
        return PairScoring(loader, *ends, SCORE, (integers, integers), self.getDirected())


def _scores(share: Any, directed: bool) -> Any:
    def scored(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
        embedding: Embedding = share()
        for pair in batches:
            first, second = (embedding.names.positions(pa.array(ids)) for ids in pair)
            known = (first >= 0) & (second >= 0)
            scores = np.full(len(first), np.nan)
            scores[known] = embedding.expected(first[known], second[known], directed)
            yield pd.Series(scores).where(known, None)

    make: Any = pandas_udf
    return make(scored, "double")


def _inspected(dataset: DataFrame, params: GraphParams) -> EdgeTable:
    """Check edges; raise InputError unless there are at least two vertices."""
    table = look(dataset, params._edges, params.getDirected())
    if len(table.vertices) < 2:
        raise InputError("expected at least two vertices, got one")
    return table


def _names(table: EdgeTable, order: Int64s) -> Names:
    """Return the names of vertices, in the given order."""
    kind = pa.string() if pa.types.is_string(table.arrow_id) else pa.int64()
    return Names(table.vertices.named(order).cast(kind), "vertex")


def _side_by_side(parts: list[FittedEmbeddings]) -> tuple[Float32s, Float32s | None]:
    """Return vectors and contexts of all orders side by side."""
    vectors = np.hstack([part.vectors for part in parts])
    # In first order a vector is its own context. With both orders, a dot product is the mean of the two orders'.
    if len(parts) == 1 and parts[0].contexts is None:
        return vectors, None
    return vectors, np.hstack([_contexts(part, len(parts)) for part in parts])


def _contexts(fitted: FittedEmbeddings, parts: int) -> Float32s:
    """Return contexts scaled so that the dot products of all parts add up to their mean."""
    contexts = fitted.vectors if fitted.contexts is None else fitted.contexts
    return contexts / np.float32(parts)


def _joined(histories: list[TrainingHistory]) -> TrainingHistory:
    """Return the histories of consecutive trainings as one."""
    first, *others = histories
    for other in others:
        first = replace(
            first,
            objective=[*first.objective, *other.objective],
            seconds=[*first.seconds, *other.seconds],
            steps=first.steps + other.steps,
            rows=first.rows + other.rows,
            bytes=first.bytes + other.bytes,
            metrics={name: (*values, *other.metrics.get(name, ())) for name, values in first.metrics.items()},
        )
    return first
