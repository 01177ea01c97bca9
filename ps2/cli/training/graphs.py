"""``ps2 train deepwalk``, ``node2vec`` and ``line``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ps2.algorithms.embeddings.settings import DeepWalkSettings, LINESettings, Node2VecSettings
from ps2.algorithms.frame.settings import Settings
from ps2.cli.output import print_data, print_table
from ps2.cli.training import printed
from ps2.cli.training.options import Command, Decorator, Setting, gathered, param_options, setting_options
from ps2.cli.training.running import check, in_spark, options_named, pictures, save_and_draw
from ps2.text_tables import Column

if TYPE_CHECKING:
    from ps2.algorithms.text.tables import TextTable

EPILOG = """\b
Examples:
  ps2 train {0} --input edges.txt --output model
  ps2 train {0} --input edges.txt.gz --size 64 --iterations 5 --plots pictures --labels labels.txt --output model
  ps2 train {0} --input hdfs:///graph/edges-* --servers 8 --master yarn --output hdfs:///model

\b
Use the model:
  from ps2.algorithms import Embedding
  Embedding.load("model").similar(17, 10)              without Spark
  Embedding.load("model").saveWord2Vec("vectors.txt")  for gensim's KeyedVectors
"""
# Neighbours printed for a vertex.
NEIGHBOURS = 5


@dataclass(frozen=True)
class GraphFiles:
    """Files of a graph.

    Attributes:
        input: a URL that Spark reads: a file, a folder or a glob of lines "source target" or "source target weight".
        labels: a file with lines "vertex class ...", for the plot; None: there are no labels.
    """

    input: str
    labels: str | None


@dataclass(frozen=True)
class _Job:
    """One training.

    Attributes:
        shown: the number of vertices to print with their neighbours.
        params: the params of the estimator.
    """

    name: str
    files: GraphFiles
    setting: Setting
    shown: int
    params: dict[str, Any]

    @property
    def training(self) -> str:
        """The name of the training in checkpoints."""
        return f"ps2 train {self.name}"


files_options = gathered(
    GraphFiles,
    "files",
    [
        click.option("--input", required=True, metavar="FILE", help="Edges, folder or glob; .gz is fine."),
        click.option("--labels", metavar="FILE", help="File with a class per vertex, for the colours of the plot."),
    ],
)


def _graph_command(settings: type[Settings]) -> Callable[[Command], click.Command]:
    """Return a decorator that makes a command of a function, with the options of an estimator."""

    def decorate(command: Command) -> click.Command:
        options: list[Decorator] = [
            files_options,
            param_options(settings),
            click.option(
                "--shown",
                type=click.IntRange(0),
                default=10,
                show_default=True,
                help="Number of vertices to print with their neighbours.",
            ),
            setting_options,
        ]
        for option in reversed(options):
            command = option(command)
        return click.command(epilog=EPILOG.format(command.__name__))(command)

    return decorate


@_graph_command(DeepWalkSettings)
def deepwalk(files: GraphFiles, setting: Setting, shown: int, **params: Any) -> None:
    """Learn vectors of vertices from random walks.

    The file has lines "source target" or "source target weight"; ids are integers or words, and lines that begin with #
    are comments.
    """
    _run("DeepWalk", files, setting, shown, params)


@_graph_command(Node2VecSettings)
def node2vec(files: GraphFiles, setting: Setting, shown: int, **params: Any) -> None:
    """Learn vectors of vertices from walks that p and q steer.

    The file has lines "source target" or "source target weight"; ids are integers or words, and lines that begin with #
    are comments.
    """
    _run("Node2Vec", files, setting, shown, params)


@_graph_command(LINESettings)
def line(files: GraphFiles, setting: Setting, shown: int, **params: Any) -> None:
    """Learn vectors of vertices from edges (LINE).

    The file has lines "source target" or "source target weight"; ids are integers or words, and lines that begin with #
    are comments.
    """
    _run("LINE", files, setting, shown, params)


def _run(family: str, files: GraphFiles, setting: Setting, shown: int, params: dict[str, Any]) -> None:
    from ps2.algorithms.spark_session import interruptible

    with interruptible() as interrupt:
        from ps2 import algorithms

        job = _Job(family.lower(), files, setting, shown, params)
        estimator = getattr(algorithms, family)(**params)
        with options_named():
            estimator._check()
        check((files.input, files.labels), setting)
        in_spark(job.training, setting, interrupt, lambda spark, workers: _train(job, estimator, spark))


def _train(job: _Job, estimator: Any, spark: Any) -> None:
    from ps2.algorithms.text.tables import read_classes, read_edges

    files = job.files
    edges = read_edges(spark, files.input)
    classes = {} if files.labels is None else read_classes(spark, files.labels)
    if "weight" in edges.columns:
        estimator.setWeightCol("weight")
    if job.setting.workers is not None:
        estimator.setNumWorkers(job.setting.workers)
    model = estimator._resumable(job.training).fit(edges.frame)
    is_table = job.setting.form == "table"
    more = {"vectors.png": lambda path: model.plotEmbedding(path, classes)}
    # Print first: the training took long, and writing files may fail.
    if is_table:
        _print_tables(job, edges, model)
    else:
        print_data(_record(job, edges, model, list(pictures(model, job.setting, more=more))), job.setting.form)
    save_and_draw(model, job.setting, more=more)


def _print_tables(job: _Job, edges: TextTable, model: Any) -> None:
    from ps2.algorithms.frame.notebook import plural

    _print_neighbours(_neighbours(model, job.shown))
    weighted = "with weights" if "weight" in edges.columns else "without weights"
    click.echo(f"{edges.rows:,} edges {weighted}, {len(model.embedding):,} vertices")
    history = model.summary.history
    printed.print_pace(history, plural(history.words.step), job.setting)
    if history.reason:
        click.echo(history.reason)
    printed.print_steps(history)


def _neighbours(model: Any, shown: int) -> list[tuple[Any, list[tuple[Any, float]]]]:
    """Return the most frequent vertices, each with the most similar ones."""
    ids = model.embedding.names.named(range(min(shown, len(model.embedding))))
    return [(id, model.similar(id, NEIGHBOURS)) for id in ids]


def _print_neighbours(neighbours: Sequence[tuple[Any, list[tuple[Any, float]]]]) -> None:
    if neighbours:
        rows = [(str(id), " ".join(f"{other} {cosine:.2f}" for other, cosine in others)) for id, others in neighbours]
        print_table([Column("vertex"), Column("most similar", folds=True)], rows)
        click.echo()


def _record(job: _Job, edges: TextTable, model: Any, plots: list[str]) -> dict[str, Any]:
    """Return the run as data."""
    history = model.summary.history
    neighbours = [
        {"vertex": id, "similar": [{"vertex": other, "cosine": cosine} for other, cosine in others]}
        for id, others in _neighbours(model, job.shown)
    ]
    return {
        "edges": edges.rows,
        "weighted": "weight" in edges.columns,
        "vertices": len(model.embedding),
        "params": job.params,
        "steps": printed.steps_record(history),
        "reason": history.reason,
        "neighbours": neighbours,
        "output": job.setting.output,
        "plots": plots,
    }
