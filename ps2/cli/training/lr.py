"""``ps2 train lr``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ps2.algorithms.linear.settings import LogisticRegressionSettings
from ps2.cli.output import print_data
from ps2.cli.training import printed
from ps2.cli.training.options import Files, Setting, files_options, param_options, setting_options
from ps2.cli.training.running import Read, check, draw, in_spark, options_named, read, save
from ps2.errors import ConfigError

if TYPE_CHECKING:
    from ps2.algorithms.training.record import TrainingHistory

EPILOG = """\b
Examples:
  ps2 train lr --input a9a.libsvm.gz --test a9a.t.libsvm.gz --output model
  ps2 train lr --input hdfs:///ads/part-* --features 50000000 --servers 8 --master yarn --output hdfs:///model
  ps2 train lr --input train.libsvm --fleet host1:7070,host2:7070 --token-file fleet.token --output model -o json
  ps2 train lr --input train.libsvm --checkpoint-dir /shared/checkpoints --checkpoint-every 60 --output model
  ps2 train lr --input train.libsvm --restore /shared/checkpoints --output model   continue after a kill
  ps2 train lr --input train.libsvm --solver ftsgd --steps 20 --fraction 1 --lr 1 --momentum 0.3 --output model

\b
Use the model:
  from ps2.algorithms import LogisticRegressionModel
  LogisticRegressionModel.load("model").transform(df)   predictions are classes, 0 and 1; labels come back by
  IndexToString(inputCol="prediction", outputCol="predictedLabel", labels=["-1", "1"])   of pyspark.ml.feature
"""
SOLVERS = ("minibatch", "ftsgd")
# What the training is called in checkpoints.
TRAINING = "ps2 train lr"


@click.command(epilog=EPILOG)
@files_options
@click.option(
    "--solver",
    type=click.Choice(SOLVERS),
    default="minibatch",
    show_default=True,
    help="minibatch: steps of Adam. ftsgd: local steps with adaptive momentum, averaged.",
)
@param_options(
    LogisticRegressionSettings,
    maxIter=200,
    miniBatchFraction=0.1,
    stepSize=0.05,
    **dict.fromkeys(("momentum", "localSteps", "localSearch")),
)
@setting_options
def lr(files: Files, setting: Setting, **params: Any) -> None:
    """Train logistic regression, with Adam or FTSGD.

    The file has lines "label index:value ...", indices ascending from 1, and two different labels. Of these the smaller
    one is class 0 of the model.
    """
    # All other options are named as the estimator's params.
    from ps2.algorithms.spark_session import interruptible

    with interruptible() as interrupt:
        from ps2.algorithms import LogisticRegression

        is_adam = params["solver"] == "minibatch"
        if setting.restore is not None and not is_adam:
            raise ConfigError(f"--restore: expected --solver minibatch, whose training goes on, got {params['solver']}")
        # Options of the other solver have no value, unless one is given, which the estimator refuses.
        given = {name: value for name, value in params.items() if value is not None}
        params = {**({"optimizer": "adam"} if is_adam else {}), **given}
        estimator = LogisticRegression(**params)
        with options_named():
            estimator._check()
        check((files.input, files.test), setting)

        def work(spark: Any, workers: int) -> None:
            from ps2.algorithms.text.measures import measure

            found = read(spark, files)
            classes = found.train.classes()
            frames = found.frames(lambda rows: rows.classified(classes))
            with options_named():
                named = estimator._resumable(TRAINING) if is_adam else estimator
                model = named.setNumWorkers(workers).fit(frames["train"])
            measures = {name: measure(model, frame) for name, frame in frames.items()}
            _print(found, model.summary.history, measures, setting, params)
            saved = save(model, setting)
            if setting.form == "table":
                click.echo(saved)
            draw(model, setting)

        in_spark(TRAINING, setting, interrupt, work)


def _print(
    found: Read,
    history: TrainingHistory,
    measures: dict[str, Any],
    setting: Setting,
    params: dict[str, Any],
) -> None:
    """Print how it went, before files are written, which may fail."""
    classes = found.train.classes()
    if setting.form != "table":
        record = {
            "rows": len(found.train),
            "features": found.features,
            "classes": list(classes),
            "params": params,
            "steps": printed.steps_record(history),
            "measures": measures,
            "output": setting.output,
        }
        print_data(record, setting.form)
        return
    printed.print_rows(len(found.train), found.features, classes)
    what = "steps of Adam" if params["solver"] == "minibatch" else f"steps of {params['solver']}"
    printed.print_pace(history, what, setting)
    printed.print_steps(history)
    printed.print_measures(measures)
