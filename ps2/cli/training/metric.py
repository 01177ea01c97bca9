"""``ps2 train metric``."""

from __future__ import annotations

from typing import Any

import click

from ps2.algorithms.metric.settings import MetricSettings
from ps2.cli.output import print_data
from ps2.cli.training import printed
from ps2.cli.training.file_training import FileTraining
from ps2.cli.training.options import Files, Setting, param_options, setting_options
from ps2.cli.training.running import Read

EPILOG = """\b
Examples:
  ps2 train metric --input digits.libsvm.gz --rank 10 --output model
  ps2 train metric --input hdfs:///pages/part-* --features 20000 --fraction 0.1 --master yarn --output hdfs:///model

\b
Use the model:
  from ps2.algorithms import Metric
  metric = Metric.load("model")   distances of metric.transform(x), L x, are those of the metric
"""
# What the training is called in checkpoints.
TRAINING = "ps2 train metric"
MAX_CLASSES = 100


@click.command(epilog=EPILOG)
@click.option("--input", required=True, metavar="PATH", help="LIBSVM file, folder or glob, with a class for each row.")
@click.option(
    "--features", type=click.IntRange(1), metavar="N", help="Number of features.  [default: the largest index]"
)
@param_options(MetricSettings)
@setting_options
def metric(input: str, features: int | None, setting: Setting, **params: Any) -> None:
    """Learn a distance in which rows of one class are near each other.

    The file has lines "label index:value ...", indices ascending from 1; each label is a class.
    """
    # All other options are named as the estimator's params.

    def estimator() -> Any:
        from ps2.algorithms import MetricLearning

        return MetricLearning(**params)

    def frame(found: Read) -> Any:
        return found.train.classified(found.train.classes(MAX_CLASSES))

    def show(found: Read, model: Any) -> None:
        history, classes = model.summary.history, found.train.classes(MAX_CLASSES)
        if setting.form == "table":
            printed.print_rows(len(found.train), found.features, classes)
            printed.print_pace(history, "steps of AdaGrad", setting)
            printed.print_steps(history)
            return
        record = {
            "rows": len(found.train),
            "features": found.features,
            "classes": list(classes),
            "params": params,
            "steps": printed.steps_record(history),
            "output": setting.output,
        }
        print_data(record, setting.form)

    FileTraining(TRAINING, Files(input, None, features), setting, estimator, frame, show, "Metric").run()
