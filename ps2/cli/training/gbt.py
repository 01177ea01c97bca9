"""``ps2 train gbt``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from ps2.algorithms.trees.settings import DEFAULTS, GBTRegressorSettings
from ps2.cli.finite import FiniteRange
from ps2.cli.output import print_data
from ps2.cli.training import printed
from ps2.cli.training.options import Files, Setting, files_options, param_options, setting_options
from ps2.cli.training.running import Read, check, draw, in_spark, make_local, options_named, pictures, read, save
from ps2.cli.training.tree_options import Task, classes_of, task_option
from ps2.errors import ConfigError

EPILOG = """\b
Examples:
  ps2 train gbt --input agaricus.train.libsvm.gz --test agaricus.test.libsvm.gz --output model
  ps2 train gbt --input train.libsvm --validation 0.2 --trees 500 --lr 0.05 --plots pictures --output model
  ps2 train gbt --input digits.libsvm --task multiclass --depth 8 --output model -o json
  ps2 train gbt --input claims.libsvm --task regression --loss poisson --save-xgboost model.json --output model
  ps2 train gbt --input hdfs:///ads/part-* --servers 8 --master yarn --depth 7 --bins 100 --output hdfs:///model
  ps2 train gbt --input train.libsvm --restore /shared/checkpoints --output model   continue after a kill

\b
Use the model:
  from ps2.algorithms import GBTClassificationModel, GBTModel   (of --task regression: GBTRegressionModel)
  GBTClassificationModel.load("model").transform(df)   predictions are classes, 0, 1, ...
  GBTModel.load("model").predict(X)                    NumPy or scipy CSR, without Spark; column 0 is index 1
"""
# What the training is called in checkpoints.
TRAINING = "ps2 train gbt"
HELD_OUT = "held out"


@dataclass(frozen=True)
class _Job:
    """What trees are asked beside their params.

    Attributes:
        validation: share of the rows to hold out; None: all rows are trained on.
        xgboost: a file for xgboost's model.
    """

    files: Files
    setting: Setting
    task: Task
    validation: float | None
    xgboost: str | None
    params: dict[str, Any]


@click.command(epilog=EPILOG)
@files_options
@task_option
@param_options(
    GBTRegressorSettings,
    **{**DEFAULTS["xgboost"], "stepSize": 0.1, "validationTol": 0.0},
    lossType=None,
    lossShape=None,
)
@click.option(
    "--validation",
    type=FiniteRange(0, 1, min_open=True, max_open=True),
    metavar="SHARE",
    help="Hold out this share of the rows, and stop when their loss no longer improves.",
)
@click.option("--save-xgboost", "xgboost", metavar="FILE", help="Also write the model in xgboost's JSON format.")
@setting_options
def gbt(
    files: Files, setting: Setting, task: Task, validation: float | None, xgboost: str | None, **params: Any
) -> None:
    """Train gradient boosted trees.

    The file has lines "label index:value ...", indices ascending from 1. Labels are two different values (--task
    binary), several (multiclass), of which the smallest is class 0 of the model, or numbers (regression). The same rows
    give the same trees, bit for bit, on any number of workers and servers.
    """
    # All other options are named as the estimators' params.
    from ps2.algorithms.spark_session import interruptible

    params = {name: value for name, value in params.items() if value is not None}
    with interruptible() as interrupt:
        job = _Job(files, setting, task, validation, xgboost, params)
        estimator = _estimator(job)
        check((files.input, files.test), setting)
        _check_file(xgboost, setting.overwrite)
        in_spark(TRAINING, setting, interrupt, lambda spark, workers: _train(job, estimator, spark, workers))


def _estimator(job: _Job) -> Any:
    """Return the estimator; raise what is wrong with its params."""
    from ps2.algorithms import GBTClassifier, GBTRegressor

    if job.task != "regression":
        for name, option in (("lossType", "--loss"), ("lossShape", "--loss-shape")):
            if name in job.params:
                raise ConfigError(f"{option}: expected with --task regression only, got it with --task {job.task}")
    if job.params["maxIter"] < 1:
        raise ConfigError(f"--trees: expected at least 1, got {job.params['maxIter']}")
    held: dict[str, Any] = {} if job.validation is None else {"validationIndicatorCol": HELD_OUT}
    estimator: Any = (GBTRegressor if job.task == "regression" else GBTClassifier)(
        defaults="xgboost", **job.params, **held
    )
    with options_named():
        estimator._check()
    return estimator._resumable(TRAINING)


def _check_file(path: str | None, overwrite: bool) -> None:
    """Raise ConfigError if xgboost's model cannot become a file of this name, or must not."""
    if path is None or "://" in path:
        return
    make_local(os.path.dirname(path) or ".", "--save-xgboost")
    if os.path.isdir(path) or (os.path.exists(path) and not overwrite):
        expected = "the name of a file" if os.path.isdir(path) else "no such file without --overwrite"
        raise ConfigError(f"--save-xgboost: expected {expected}, got {path}")


def _train(job: _Job, estimator: Any, spark: Any, workers: int) -> None:
    from ps2.algorithms.text.measures import measure

    found = read(spark, job.files)
    classes = classes_of(found.train, job.task)
    frames = found.frames(lambda rows: rows.classified(classes) if classes else rows.frame)
    if job.setting.workers is not None or job.params["via"] == "servers":
        estimator.setNumWorkers(workers)
    model = estimator.fit(_marked(job, frames["train"]))
    measures = {name: measure(model, frame) for name, frame in frames.items()}
    is_table = job.setting.form == "table"
    # First of all, for it has taken long: files may not be written.
    if is_table:
        _print_tables(job, found, classes, model, measures)
    else:
        print_data(_record(job, found, classes, model, measures), job.setting.form)
    for line in _write(job, model):
        if is_table:
            click.echo(line)


def _write(job: _Job, model: Any) -> Iterator[str]:
    """Write the model, and what is wanted beside it; say what is there, as soon as it is."""
    yield save(model, job.setting)
    if job.xgboost is not None:
        model.saveXGBoost(job.xgboost)
        yield f"wrote {job.xgboost}"
    for path in draw(model, job.setting):
        yield f"wrote {path}"


def _marked(job: _Job, frame: Any) -> Any:
    """Return rows of which some are marked to be held out, if that is wanted."""
    from ps2.algorithms.text.measures import held_out

    return frame if job.validation is None else held_out(frame, job.validation, job.params["seed"], HELD_OUT)


def _print_tables(job: _Job, found: Read, classes: tuple[float, ...], model: Any, measures: dict[str, Any]) -> None:
    history = model.summary.history
    printed.print_rows(len(found.train), found.features, classes)
    of_class = f" of {len(classes)} trees" if len(classes) > 2 else ""
    printed.print_pace(history, f"{history.words.step}s{of_class}", job.setting)
    printed.print_steps(history)
    if job.validation is not None:
        click.echo(f"{history.reason}; {model.getNumTrees} trees are kept, the best of these")
    printed.print_measures(measures)


def _record(job: _Job, found: Read, classes: tuple[float, ...], model: Any, measures: dict[str, Any]) -> dict[str, Any]:
    """Return what a program may want to know of the run."""
    history = model.summary.history
    return {
        "rows": len(found.train),
        "features": found.features,
        "task": job.task,
        "classes": list(classes),
        "params": job.params,
        "trees": printed.steps_record(history),
        "reason": history.reason,
        "num_trees": model.getNumTrees,
        "measures": measures,
        "output": job.setting.output,
        "xgboost": job.xgboost,
        "plots": list(pictures(model, job.setting)),
    }
