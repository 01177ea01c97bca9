"""``ps2 train forest``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from ps2.algorithms.trees.settings import RandomForestClassifierSettings
from ps2.cli.output import print_data
from ps2.cli.training import printed
from ps2.cli.training.options import Files, Setting, files_options, param_options, setting_options
from ps2.cli.training.running import Read, check, in_spark, options_named, pictures, read, save_and_draw
from ps2.cli.training.tree_options import Task, classes_of, task_option
from ps2.errors import ConfigError

EPILOG = """\b
Examples:
  ps2 train forest --input agaricus.train.libsvm.gz --test agaricus.test.libsvm.gz --output model
  ps2 train forest --input digits.libsvm --task multiclass --trees 300 --depth 20 --output model -o json
  ps2 train forest --input claims.libsvm --task regression --subset 0.3 --min-rows 5 --output model
  ps2 train forest --input train.libsvm --restore /shared/checkpoints --output model   continue after a kill

\b
Use the model:
  from ps2.algorithms import RandomForest, RandomForestClassificationModel   (regression: RandomForestRegressionModel)
  RandomForestClassificationModel.load("model").transform(df)   predictions are classes, 0, 1, ...
  RandomForest.load("model").predict(X)                         NumPy or scipy CSR, without Spark; column 0 is index 1
"""
# What the training is called in checkpoints.
TRAINING = "ps2 train forest"
PICTURE = "impurity.png"


@dataclass(frozen=True)
class _Job:
    """What a forest is asked beside its params."""

    files: Files
    setting: Setting
    task: Task
    params: dict[str, Any]


@click.command(epilog=EPILOG)
@files_options
@task_option
@param_options(RandomForestClassifierSettings, numTrees=100, maxDepth=10, maxBins=256, impurity=None)
@setting_options
def forest(files: Files, setting: Setting, task: Task, **params: Any) -> None:
    """Train a random forest.

    The file has lines "label index:value ...", indices ascending from 1. Labels are two different values (--task
    binary), several (multiclass), of which the smallest is class 0 of the model, or numbers (regression). The same rows
    give the same trees, bit for bit, on any number of workers and servers.
    """
    # All other options are named as the estimators' params.
    from ps2.algorithms.spark_session import interruptible

    params = {name: value for name, value in params.items() if value is not None}
    with interruptible() as interrupt:
        job = _Job(files, setting, task, params)
        estimator = _estimator(job)
        check((files.input, files.test), setting)
        in_spark(TRAINING, setting, interrupt, lambda spark, workers: _train(job, estimator, spark, workers))


def _estimator(job: _Job) -> Any:
    """Return the estimator; raise what is wrong with its params."""
    from ps2.algorithms import RandomForestClassifier, RandomForestRegressor

    if job.task == "regression" and "impurity" in job.params:
        raise ConfigError("--impurity: expected with classes only, got it with --task regression")
    estimator: Any = (RandomForestRegressor if job.task == "regression" else RandomForestClassifier)(**job.params)
    with options_named():
        estimator._check()
    return estimator._resumable(TRAINING)


def _train(job: _Job, estimator: Any, spark: Any, workers: int) -> None:
    from ps2.algorithms.text.measures import measure

    found = read(spark, job.files)
    classes = classes_of(found.train, job.task)
    frames = found.frames(lambda rows: rows.classified(classes) if classes else rows.frame)
    if job.setting.workers is not None or job.params["via"] == "servers":
        estimator.setNumWorkers(workers)
    model = estimator.fit(frames["train"])
    measures = {name: measure(model, frame) for name, frame in frames.items()}
    is_table = job.setting.form == "table"
    # First of all, for it has taken long: files may not be written.
    if is_table:
        printed.print_rows(len(found.train), found.features, classes)
        printed.print_pace(model.summary.history, "trees", job.setting)
        printed.print_measures(measures)
        if job.params["oobScore"]:
            name = "R2" if job.task == "regression" else "accuracy"
            click.echo(f"out-of-bag {name}: {model.summary.oobScore:.6f}")
    else:
        print_data(_record(job, found, classes, model, measures), job.setting.form)
    save_and_draw(model, job.setting, PICTURE)


def _record(job: _Job, found: Read, classes: tuple[float, ...], model: Any, measures: dict[str, Any]) -> dict[str, Any]:
    """Return what a program may want to know of the run."""
    return {
        "rows": len(found.train),
        "features": found.features,
        "task": job.task,
        "classes": list(classes),
        "params": job.params,
        "num_trees": model.getNumTrees,
        "nodes": model.totalNumNodes,
        "seconds": sum(model.summary.history.seconds),
        "measures": measures,
        "oob_score": model.summary.oobScore,
        "output": job.setting.output,
        "plots": list(pictures(model, job.setting, PICTURE)),
    }
