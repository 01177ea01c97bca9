"""``ps2 train``: the estimators on anybody's file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from ps2.cli.output import Column, Format, print_data, print_table
from ps2.config import TOKEN_FILE_VARIABLE

if TYPE_CHECKING:
    from ps2.algorithms.labelled import LabelledRows, Measure
    from ps2.algorithms.spark import Interrupt

EPILOG = """\b
Examples:
  ps2 train lr --input a9a.libsvm.gz --test a9a.t.libsvm.gz --output model
  ps2 train lr --input hdfs:///ads/part-* --features 50000000 --servers 8 --master yarn --output hdfs:///model
  ps2 train lr --input train.libsvm --fleet host1:7070,host2:7070 --token-file fleet.token --output model -o json
  ps2 train lr --input train.libsvm --checkpoint-dir /shared/checkpoints --checkpoint-every 60 --output model
  ps2 train lr --input train.libsvm --restore /shared/checkpoints --output model   go on where that was killed

\b
Use the model:
  from ps2.algorithms import LogisticRegressionModel
  LogisticRegressionModel.load("model").transform(df)   predictions are classes, 0 and 1; labels come back by
  IndexToString(inputCol="prediction", outputCol="predictedLabel", labels=["-1", "1"])   of pyspark.ml.feature
"""
ROWS_SHOWN = 10
# What the training is called in checkpoints.
TRAINING = "ps2 train lr"


@dataclass(frozen=True)
class _Job:
    """What one run was asked to do."""

    input: str
    test: str | None
    features: int | None
    servers: int | None
    fleet: str | None
    token_file: str | None
    checkpoint_dir: str | None
    checkpoint_every: float | None
    restore: str | None
    output: str
    overwrite: bool
    master: str
    workers: int | None
    params: dict[str, Any]


@click.group()
def train() -> None:
    """Train a model on the rows of a file."""


@train.command(epilog=EPILOG)
@click.option("--input", "path", required=True, metavar="FILE", help="LIBSVM file, folder or glob; .gz is fine.")
@click.option("--test", metavar="FILE", help="LIBSVM file to measure the model on.")
@click.option(
    "--features", type=click.IntRange(1), metavar="N", help="Number of features  [default: as the files have]."
)
@click.option("--servers", type=click.IntRange(1), help="Start a local fleet of so many servers  [default: 2].")
@click.option("--fleet", metavar="HOST:PORT,...", help="Instead, use the servers of a running fleet.")
@click.option(
    "--token-file", type=click.Path(), envvar=TOKEN_FILE_VARIABLE, show_envvar=True, help="The running fleet's token."
)
@click.option("--checkpoint-dir", metavar="DIR", help="Where checkpoints go, from which lost servers are replaced.")
@click.option("--checkpoint-every", type=float, metavar="SECONDS", help="Make a checkpoint every so often.")
@click.option(
    "--restore", metavar="DIR", help="Go on with the training that this checkpoint, or the newest of a folder, is of."
)
@click.option("--steps", type=click.IntRange(1), default=200, show_default=True, help="Model updates.")
@click.option(
    "--fraction",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.1,
    show_default=True,
    help="Share of the rows that a step samples.",
)
@click.option(
    "--lr", type=click.FloatRange(0, min_open=True), default=0.05, show_default=True, help="Adam's learning rate."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sampling.")
@click.option("--intercept/--no-intercept", default=True, show_default=True, help="Whether to fit a constant term.")
@click.option("--workers", type=click.IntRange(1), help="Tasks that train  [default: one a task slot].")
@click.option("--output", required=True, metavar="DIR", help="Folder to save the model in.")
@click.option("--overwrite", is_flag=True, help="Replace what is in that folder.")
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
    checkpoint_dir: str | None,
    checkpoint_every: float | None,
    restore: str | None,
    steps: int,
    fraction: float,
    lr: float,
    seed: int,
    intercept: bool,
    workers: int | None,
    output: str,
    overwrite: bool,
    master: str,
    form: Format,
) -> None:
    """Train logistic regression with Adam.

    The file has lines "label index:value ...", indices ascending from 1, and two different labels. Of these the smaller
    one is class 0 of the model.
    """
    from ps2.algorithms.spark import interruptible

    with interruptible() as interrupt:
        from ps2.algorithms import LogisticRegression
        from ps2.algorithms.estimators.params import check_ranges
        from ps2.algorithms.labelled import check_local

        for file in filter(None, (path, test)):
            check_local(file)
        how = {"maxIter": steps, "miniBatchFraction": fraction, "stepSize": lr, "seed": seed, "fitIntercept": intercept}
        check_ranges(LogisticRegression(**how))
        job = _Job(
            path,
            test,
            features,
            servers,
            fleet,
            token_file if fleet else None,
            checkpoint_dir,
            checkpoint_every,
            restore,
            output,
            overwrite,
            master,
            workers,
            {"solver": "minibatch", "optimizer": "adam", **how},
        )
        _train_in_spark(job, form, interrupt)


def _train_in_spark(job: _Job, form: Format, interrupt: Interrupt) -> None:
    from ps2.algorithms.spark import plain_errors, quiet, session
    from ps2.coordinator.context import PS2Context

    spark = session(job.master, "ps2 train lr")
    interrupt.take()
    try:
        with (
            plain_errors(),
            PS2Context.getOrCreate(
                spark,
                job.servers,
                fleet=job.fleet,
                tokenFile=job.token_file,
                checkpointDir=job.checkpoint_dir,
                checkpointEveryS=job.checkpoint_every,
                restore=job.restore,
            ) as ps,
        ):
            ps.waitForSlots()
            _run(spark, job, form)
    except BaseException:
        if interrupt.came:
            quiet(spark)
        raise
    finally:
        if not interrupt.came:
            spark.stop()


def _run(spark: Any, job: _Job, form: Format) -> None:
    from ps2.algorithms import LogisticRegression
    from ps2.algorithms.estimators.dealing import check_workers
    from ps2.algorithms.estimators.model_files import prepare_folder
    from ps2.algorithms.labelled import count_features, measure, read
    from ps2.coordinator.slots import total_slots

    workers = job.workers or max(1, total_slots(spark.sparkContext))
    check_workers(spark.sparkContext, workers)
    prepare_folder(spark, job.output, job.overwrite)
    paths = {"train": job.input, **({"test": job.test} if job.test else {})}
    features = job.features or max(count_features(spark, path) for path in paths.values())
    files = {name: read(spark, path, features) for name, path in paths.items()}
    classes = files["train"].classes()
    frames = {name: file.classified(classes) for name, file in files.items()}
    estimator = LogisticRegression(numWorkers=workers, **job.params)
    model = estimator._resumable(TRAINING).fit(frames["train"])
    measures = {name: measure(model, frame) for name, frame in frames.items()}
    model.write().overwrite().save(job.output)
    losses = zip(model.summary.objectiveHistory, model.summary.stepSeconds, strict=True)
    steps = [(number, loss, seconds) for number, (loss, seconds) in enumerate(losses, 1)]
    if form == "table":
        _print_tables(job, files["train"], features, steps, measures)
    else:
        print_data(_record(job, files["train"], features, steps, measures), form)


def _print_tables(
    job: _Job, rows: LabelledRows, features: int, steps: list[tuple[int, float, float]], measures: dict[str, Measure]
) -> None:
    on_servers = "" if job.fleet else f" on {job.servers or 2} servers"
    labels = " and ".join(f"label {label:g} is class {number}" for number, label in enumerate(rows.classes()))
    click.echo(f"{len(rows):,} rows, {features:,} features; {labels}")
    taken_s = sum(seconds for _, _, seconds in steps)
    step_ms = 1e3 * taken_s / max(1, len(steps))  # a training that was restored may have had all of them
    click.echo(f"{len(steps)} steps of Adam{on_servers} in {taken_s:.1f} s, {step_ms:.1f} ms a step")
    print_table(
        [Column(title, right=True) for title in ("step", "loss of its rows", "ms")],
        [(str(number), f"{loss:.4f}", f"{1e3 * seconds:.1f}") for number, loss, seconds in _spaced(steps)],
    )
    print_table(
        [Column("all rows of"), *(Column(title, right=True) for title in ("rows", "loss", "accuracy", "AUC"))],
        [
            (name, f"{found.rows:,}", f"{found.loss:.4f}", f"{found.accuracy:.4f}", f"{found.auc:.4f}")
            for name, found in measures.items()
        ],
    )
    click.echo(f"model saved in {job.output}: ps2.algorithms.LogisticRegressionModel.load({job.output!r})")


def _record(
    job: _Job, rows: LabelledRows, features: int, steps: list[tuple[int, float, float]], measures: dict[str, Measure]
) -> dict[str, object]:
    """Return what a program may want to know of the run; a minibatch of no rows has no loss."""
    return {
        "rows": len(rows),
        "features": features,
        "classes": list(rows.classes()),
        "params": job.params,
        "steps": [
            {"step": number, "seconds": seconds, "loss": None if loss != loss else loss}
            for number, loss, seconds in steps
        ],
        "measures": {name: asdict(found) for name, found in measures.items()},
        "output": job.output,
    }


def _spaced(steps: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    """Return the first step, the last, and evenly spaced ones between."""
    count = min(ROWS_SHOWN, len(steps))
    chosen = {round(i * (len(steps) - 1) / max(count - 1, 1)) for i in range(count)}
    return [steps[i] for i in sorted(chosen)]
