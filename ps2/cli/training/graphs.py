"""``ps2 train deepwalk``, ``node2vec`` and ``line``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ps2.cli.output import print_data, print_table
from ps2.cli.training import printed
from ps2.cli.training.options import Command, Decorator, Setting, gathered, setting_options
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
VIAS = ("auto", "servers", "rows", "local")
PLACES = ("auto", "workers", "servers")
ORDERS = ("both", "first", "second")
# Neighbours printed for a vertex.
NEIGHBOURS = 5


@dataclass(frozen=True)
class GraphFiles:
    """Files of a graph.

    Attributes:
        input: any URL that Spark reads: a file, a folder or a glob of lines "source target" or "source target weight".
        labels: file with lines "vertex class ...", for the plot; None: no labels.
        directed: whether edges have one direction.
    """

    input: str
    labels: str | None
    directed: bool


@dataclass(frozen=True)
class _Job:
    """One training.

    Attributes:
        shown: number of vertices to print with their neighbours.
        params: of the estimator.
    """

    name: str
    files: GraphFiles
    setting: Setting
    shown: int
    params: dict[str, Any]

    @property
    def training(self) -> str:
        """Name of the training in checkpoints."""
        return f"ps2 train {self.name}"


files_options = gathered(
    GraphFiles,
    "files",
    [
        click.option("--input", required=True, metavar="FILE", help="Edges, folder or glob; .gz is fine."),
        click.option("--labels", metavar="FILE", help="File with a class per vertex, for the colours of the plot."),
        click.option("--directed", is_flag=True, help="Edges lead from source to target only."),
    ],
)


def embedding_options(command: Command) -> Command:
    """Add the options of all three commands, named like the estimators' params."""
    options: list[Decorator] = [
        click.option("--size", "vectorSize", type=int, help="Dimension of the vectors  [default: 128]."),
        click.option("--negative", type=int, help="Negative samples per positive pair  [default: 5]."),
        click.option("--iterations", "maxIter", type=int, help="Passes over walks or edges  [default: 1; line: 20]."),
        click.option("--lr", "stepSize", type=float, help="Initial learning rate  [default: 0.025]."),
        click.option("--via", type=click.Choice(VIAS), help="Where vectors are updated  [default: auto]."),
        click.option("--seed", type=int, default=0, show_default=True, help="Random seed."),
        click.option(
            "--shown",
            type=click.IntRange(0),
            default=10,
            show_default=True,
            help="Number of vertices to print with their neighbours.",
        ),
    ]
    for option in reversed([files_options, *options, setting_options]):
        command = option(command)
    return command


def walk_options(command: Command) -> Command:
    """Add the options of walks."""
    options: list[Decorator] = [
        click.option("--walks", "numWalks", type=int, help="Walks per vertex and pass  [default: 10]."),
        click.option("--length", "walkLength", type=int, help="Maximum number of vertices of a walk  [default: 80]."),
        click.option("--window", "windowSize", type=int, help="Context size on each side of a vertex  [default: 10]."),
        click.option("--graph-on", "graphOn", type=click.Choice(PLACES), help="Where the graph lies  [default: auto]."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command(epilog=EPILOG.format("deepwalk"))
@walk_options
@embedding_options
def deepwalk(files: GraphFiles, setting: Setting, shown: int, **params: Any) -> None:
    """Learn vectors of vertices from random walks.

    The file has lines "source target" or "source target weight"; ids are integers or words, and lines that begin with #
    are comments.
    """
    _run("DeepWalk", files, setting, shown, params)


@click.command(epilog=EPILOG.format("node2vec"))
@click.option(
    "--p",
    type=float,
    help="Return parameter: the larger, the less often a walk returns to its previous vertex  [default: 1].",
)
@click.option(
    "--q",
    type=float,
    help="In-out parameter: the larger, the closer a walk stays to its previous vertex  [default: 1].",
)
@walk_options
@embedding_options
def node2vec(files: GraphFiles, setting: Setting, shown: int, **params: Any) -> None:
    """Learn vectors of vertices from walks that p and q steer.

    The file has lines "source target" or "source target weight"; ids are integers or words, and lines that begin with #
    are comments.
    """
    _run("Node2Vec", files, setting, shown, params)


@click.command(epilog=EPILOG.format("line"))
@click.option(
    "--order", type=click.Choice(ORDERS), help="Order of proximity  [default: both, half of the vector each]."
)
@click.option("--hashed", is_flag=True, help="Hash ids: any integers, with memory for touched ids only.")
@embedding_options
def line(files: GraphFiles, setting: Setting, shown: int, **params: Any) -> None:
    """Learn vectors of vertices from edges (LINE).

    The file has lines "source target" or "source target weight"; ids are integers or words, and lines that begin with #
    are comments.
    """
    _run("LINE", files, setting, shown, params)


def _run(family: str, files: GraphFiles, setting: Setting, shown: int, params: dict[str, Any]) -> None:
    from ps2.algorithms.spark_session import interruptible

    given = {name: value for name, value in params.items() if value is not None}
    with interruptible() as interrupt:
        from ps2 import algorithms

        job = _Job(family.lower(), files, setting, shown, given)
        estimator = getattr(algorithms, family)(**given, directed=files.directed)
        with options_named():
            estimator._check()
        check((files.input, files.labels), setting)
        in_spark(job.training, setting, interrupt, lambda spark, workers: _train(job, estimator, spark))


def _train(job: _Job, estimator: Any, spark: Any) -> None:
    from ps2.algorithms.text.edges import read, read_classes

    files = job.files
    found = read(spark, files.input)
    classes = {} if files.labels is None else read_classes(spark, files.labels)
    if "weight" in found.columns:
        estimator.setWeightCol("weight")
    if job.setting.workers is not None:
        estimator.setNumWorkers(job.setting.workers)
    model = estimator._resumable(job.training).fit(found.frame)
    is_table = job.setting.form == "table"
    more = {"vectors.png": lambda path: model.plotEmbedding(path, classes)}
    # Print first: the training took long, and writing files may fail.
    if is_table:
        _print_tables(job, found, model)
    else:
        print_data(_record(job, found, model, list(pictures(model, job.setting, more=more))), job.setting.form)
    save_and_draw(model, job.setting, more=more)


def _print_tables(job: _Job, found: TextTable, model: Any) -> None:
    from ps2.algorithms.estimators.notebook import plural

    _print_neighbours(_neighbours(model, job.shown))
    weighted = "with weights" if "weight" in found.columns else "without weights"
    click.echo(f"{found.rows:,} edges {weighted}, {len(model.embedding):,} vertices")
    history = model.summary.history
    printed.print_pace(history, plural(history.words.step), job.setting)
    if history.reason:
        click.echo(history.reason)
    printed.print_steps(history)


def _neighbours(model: Any, shown: int) -> list[tuple[Any, list[tuple[Any, float]]]]:
    """Return the most frequent vertices, each with the most similar ones."""
    ids = model.embedding.names.named(range(min(shown, len(model.embedding))))
    return [(id, model.similar(id, NEIGHBOURS)) for id in ids]


def _print_neighbours(found: Sequence[tuple[Any, list[tuple[Any, float]]]]) -> None:
    if found:
        rows = [(str(id), " ".join(f"{other} {cosine:.2f}" for other, cosine in others)) for id, others in found]
        print_table([Column("vertex"), Column("most similar", folds=True)], rows)
        click.echo()


def _record(job: _Job, found: TextTable, model: Any, drawn: list[str]) -> dict[str, Any]:
    """Return the run as data."""
    history = model.summary.history
    neighbours = [
        {"vertex": id, "similar": [{"vertex": other, "cosine": cosine} for other, cosine in others]}
        for id, others in _neighbours(model, job.shown)
    ]
    return {
        "edges": found.rows,
        "weighted": "weight" in found.columns,
        "vertices": len(model.embedding),
        "params": job.params,
        "steps": printed.steps_record(history),
        "reason": history.reason,
        "neighbours": neighbours,
        "output": job.setting.output,
        "plots": drawn,
    }
