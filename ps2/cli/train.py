"""``ps2 train``: the algorithms on anybody's file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click

from ps2.cli.output import Column, Format, print_data, print_table
from ps2.config import TOKEN_FILE_VARIABLE
from ps2.errors import InputError

if TYPE_CHECKING:
    from ps2.algorithms.dataset import Dataset, Pieces
    from ps2.algorithms.logistic import LRConfig, Measure, Step, Training
    from ps2.algorithms.spark import Interrupt
    from ps2.coordinator.context import PS2Context

EPILOG = """\b
Examples:
  ps2 train lr --input a9a.libsvm.gz --test a9a.t.libsvm.gz --output model
  ps2 train lr --input hdfs:///ads/part-* --features 50000000 --servers 8 --master yarn --output hdfs:///model
  ps2 train lr --input train.libsvm --fleet host1:7070,host2:7070 --token-file fleet.token --output model -o json
"""
ROWS_SHOWN = 10
PARTITIONS_A_SLOT = 1


@dataclass(frozen=True)
class _Job:
    """What one run was asked to do."""

    input: str
    test: str | None
    features: int | None
    servers: int | None
    fleet: str | None
    token_file: str | None
    output: str
    master: str
    partitions: int | None
    config: LRConfig


@click.group()
def train() -> None:
    """Train a model on the rows of a file."""


@train.command(epilog=EPILOG)
@click.option("--input", "path", required=True, metavar="FILE", help="libsvm file, folder or glob; .gz is fine.")
@click.option("--test", metavar="FILE", help="libsvm file to measure the model on.")
@click.option(
    "--features", type=click.IntRange(1), metavar="N", help="Number of features  [default: as the input has]."
)
@click.option("--servers", type=click.IntRange(1), help="Start a local fleet of so many servers  [default: 2].")
@click.option("--fleet", metavar="HOST:PORT,...", help="Instead, use the servers of a running fleet.")
@click.option(
    "--token-file", type=click.Path(), envvar=TOKEN_FILE_VARIABLE, show_envvar=True, help="The running fleet's token."
)
@click.option("--steps", type=click.IntRange(1), default=200, show_default=True, help="Model updates.")
@click.option("--fraction", type=float, default=0.1, show_default=True, help="Share of the rows that a step samples.")
@click.option("--lr", type=float, default=0.05, show_default=True, help="Adam's learning rate.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sampling.")
@click.option("--intercept/--no-intercept", default=True, show_default=True, help="Whether to fit a constant term.")
@click.option("--partitions", type=click.IntRange(1), help="Partitions of the rows  [default: one a task slot].")
@click.option("--output", required=True, metavar="DIR", help="Folder to save the model in.")
@click.option("--master", default="local[2]", show_default=True, help="Spark's master URL.")
@click.option(
    "-o", "form", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True, help="Output."
)
def lr(
    path: str,
    test: str | None,
    features: int | None,
    servers: int | None,
    fleet: str | None,
    token_file: str | None,
    steps: int,
    fraction: float,
    lr: float,
    seed: int,
    intercept: bool,
    partitions: int | None,
    output: str,
    master: str,
    form: Format,
) -> None:
    """Train logistic regression with Adam."""
    from ps2.algorithms.spark import interruptible

    with interruptible() as interrupt:
        from ps2.algorithms.dataset import check_local
        from ps2.algorithms.logistic import LRConfig

        config = LRConfig(steps, fraction, lr, seed, intercept)
        for file in filter(None, (path, test)):
            check_local(file)
        job = _Job(path, test, features, servers, fleet, token_file, output, master, partitions, config)
        _train_in_spark(job, form, interrupt)


def _train_in_spark(job: _Job, form: Format, interrupt: Interrupt) -> None:
    from ps2.algorithms.spark import plain_errors, quiet, session
    from ps2.coordinator.context import PS2Context

    spark = session(job.master, "ps2 train lr")
    interrupt.take()
    token = job.token_file if job.fleet else None
    try:
        with plain_errors(), PS2Context.getOrCreate(spark, job.servers, fleet=job.fleet, tokenFile=token) as ps:
            _run(ps, job, form)
    except BaseException:
        if interrupt.came:
            quiet(spark)
        raise
    finally:
        if not interrupt.came:
            spark.stop()


def _run(ps: PS2Context, job: _Job, form: Format) -> None:
    from ps2.algorithms.dataset import read, read_classes
    from ps2.algorithms.logistic import Training, prepare_folder

    prepare_folder(job.output)
    ps.waitForSlots()
    context = ps.sparkContext
    partitions = job.partitions or max(context.defaultParallelism, 1) * PARTITIONS_A_SLOT
    pieces = read(context, job.input, partitions)
    features = _features(job, pieces)
    classes = read_classes(pieces)
    data = pieces.dataset(features, classes, job.config.intercept, partitions)
    tests: Dataset | None = None
    if job.test is not None:
        tests = read(context, job.test, partitions).dataset(features, classes, job.config.intercept, partitions)
    training = Training(ps, data, job.config)
    steps = _train(training, job, data, form)
    measures = {"train": training.evaluate(data)}
    if tests is not None:
        measures["test"] = training.evaluate(tests)
    training.save(job.output, measures)
    if form == "table":
        _print_table(job, data, steps, measures)
    else:
        print_data(_record(job, data, steps, measures), form)


def _features(job: _Job, pieces: Pieces) -> int:
    if job.features is not None and job.features < pieces.features:
        raise InputError(f"{job.input}: feature {pieces.features} is above --features {job.features}")
    return job.features or pieces.features


def _train(training: Training, job: _Job, data: Dataset, form: Format) -> list[Step]:
    """Run the steps, with a live line where a person watches."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("training"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  accuracy {task.fields[accuracy]:.4f}"),
        TimeElapsedColumn(),
    )
    shown = console.is_terminal and form == "table"
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        task = progress.add_task("", total=job.config.steps, loss=float("nan"), accuracy=float("nan"))

        def on_step(step: Step) -> None:
            minibatch = step.minibatch
            progress.update(task, completed=step.number, loss=minibatch.loss, accuracy=minibatch.accuracy)

        return training.run(on_step)


def _print_table(job: _Job, data: Dataset, steps: list[Step], measures: dict[str, Measure]) -> None:
    servers = "" if job.fleet else f" on {job.servers or 2} servers"
    click.echo(f"{data.rows:,} rows, {data.features:,} features, {len(steps)} steps of Adam{servers}")
    rows = [
        (str(step.number), f"{step.minibatch.loss:.4f}", f"{step.minibatch.accuracy:.4f}", f"{step.seconds:.1f}")
        for step in _spaced(steps)
    ]
    rows += [(name, f"{measure.loss:.4f}", f"{measure.accuracy:.4f}", "") for name, measure in measures.items()]
    print_table([Column(title, right=True) for title in ("step", "loss", "accuracy", "seconds")], rows)
    click.echo("steps: on the rows that each sampled; " + " and ".join(measures) + ": on all rows, after the last step")
    click.echo(f"model saved in {job.output}")


def _record(job: _Job, data: Dataset, steps: list[Step], measures: dict[str, Measure]) -> dict[str, object]:
    """Return what a program may want to know of the run."""
    return {
        "rows": data.rows,
        "features": data.features,
        "classes": list(data.classes),
        "config": asdict(job.config),
        "steps": [{"step": step.number, "seconds": step.seconds, **_plain(step.minibatch)} for step in steps],
        "measures": {name: _plain(measure) for name, measure in measures.items()},
        "output": job.output,
    }


def _plain(measure: Measure) -> dict[str, float | None]:
    """Return a measure; one of no rows, which a small fraction may sample, has no loss."""
    return {name: None if value != value else value for name, value in asdict(measure).items()}


def _spaced(steps: list[Step]) -> list[Step]:
    """Return the first step, the last, and evenly spaced ones between."""
    count = min(ROWS_SHOWN, len(steps))
    chosen = {round(i * (len(steps) - 1) / max(count - 1, 1)) for i in range(count)}
    return [steps[i] for i in sorted(chosen)]
