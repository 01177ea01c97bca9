"""``ps2 train deepwalk``, ``node2vec`` and ``line``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ps2.algorithms.embeddings.settings import DeepWalkSettings, LINESettings, Node2VecSettings
from ps2.cli.training import printed
from ps2.cli.training.command import TrainingCommand

if TYPE_CHECKING:
    from ps2.algorithms.text.tables import TextTable

# The number of similar vertices to print for each vertex.
NUM_SIMILAR = 5


@dataclass(frozen=True)
class Graph:
    """The edges of a graph, and the classes of its vertices."""

    edges: TextTable
    classes: dict[Any, Any]

    @property
    def is_weighted(self) -> bool:
        return "weight" in self.edges.columns


class GraphCommand(TrainingCommand[Graph]):
    """A command that learns vectors of a graph's vertices.

    Attributes:
        labels: the path of the file with lines "vertex class ...", for the colours of the plot; None: no such file.
        shown: the number of vertices to print with their most similar vertices.
    """

    labels: str | None
    shown: int
    file_text = (
        'The file has lines "source target" or "source target weight"; ids are integers or words, and lines that begin '
        "with # are comments."
    )
    file_options = (
        click.option("--input", required=True, metavar="FILE", help="File of edges, folder or glob; can be .gz."),
        click.option("--labels", metavar="FILE", help="File with a class per vertex, for the colours of the plot."),
    )
    last_options = (
        click.option(
            "--shown",
            type=click.IntRange(0),
            default=10,
            show_default=True,
            help="Number of vertices to print with their most similar vertices.",
        ),
    )

    examples = """
    --input edges.txt --output model
    --input edges.txt.gz --size 64 --iterations 5 --plots pictures --labels labels.txt --output model
    --input hdfs:///graph/edges-* --servers 8 --master yarn --output hdfs:///model
    """
    usage = """
    from ps2.algorithms import Embedding
    Embedding.load("model").similar(17, 10)              without Spark
    Embedding.load("model").saveWord2Vec("vectors.txt")  for gensim's KeyedVectors
    """

    @property
    def paths(self) -> list[str | None]:
        return [self.input, self.labels]

    def read(self, spark: Any) -> Graph:
        from ps2.algorithms.text.tables import read_classes, read_edges

        edges = read_edges(spark, self.input)
        return Graph(edges, {} if self.labels is None else read_classes(spark, self.labels))

    def chooses_workers(self, estimator: Any) -> bool:
        return True

    def fit(self, estimator: Any, data: Graph) -> Any:
        if data.is_weighted:
            estimator.setWeightCol("weight")
        return estimator.fit(data.edges.frame)

    def measure(self, model: Any, data: Graph) -> list[tuple[Any, list[tuple[Any, float]]]]:
        """Return the most frequent vertices, each with its most similar vertices and their cosines."""
        ids = model.embedding.names.named(range(min(self.shown, len(model.embedding))))
        return [(id, model.similar(id, NUM_SIMILAR)) for id in ids]

    def print_results(self, data: Graph, model: Any, measures: Any) -> None:
        printed.print_best("vertex", "most similar", measures)
        weights = "with weights" if data.is_weighted else "without weights"
        click.echo(f"{data.edges.rows:,} edges {weights}, {len(model.embedding):,} vertices")
        history = model.summary.history
        printed.print_history(history, history.words.steps, self.run, with_reason=True)

    def data_record(self, data: Graph, model: Any) -> dict[str, Any]:
        return {"edges": data.edges.rows, "weighted": data.is_weighted, "vertices": len(model.embedding)}

    def model_record(self, data: Graph, model: Any, measures: Any) -> dict[str, Any]:
        similar_vertices = [
            {"vertex": id, "similar": [{"vertex": other, "cosine": cosine} for other, cosine in similar]}
            for id, similar in measures
        ]
        return {
            **super().model_record(data, model, measures),
            "reason": model.summary.history.reason,
            "neighbours": similar_vertices,
        }

    def extra_plots(self, data: Graph, model: Any) -> dict[str, Callable[[str], Any]]:
        return {"vectors.png": lambda path: model.plotEmbedding(path, data.classes)}


class DeepWalkCommand(GraphCommand):
    """Learn vectors of vertices from random walks."""

    name, estimator, settings = "deepwalk", "DeepWalk", DeepWalkSettings


class Node2VecCommand(GraphCommand):
    """Learn vectors of vertices from random walks that p and q bias."""

    name, estimator, settings = "node2vec", "Node2Vec", Node2VecSettings


class LINECommand(GraphCommand):
    """Learn vectors of vertices from edges (LINE)."""

    name, estimator, settings = "line", "LINE", LINESettings
