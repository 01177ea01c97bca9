"""``ps2 train kmeans``."""

from __future__ import annotations

from typing import Any

import click

from ps2.algorithms.clusters.settings import KMeansSettings
from ps2.cli.output import print_data
from ps2.cli.training import printed
from ps2.cli.training.file_training import FileTraining
from ps2.cli.training.options import Files, Setting, param_options, setting_options
from ps2.cli.training.running import Read

EPILOG = """\b
Examples:
  ps2 train kmeans --input shoppers.libsvm.gz --k 100 --output model
  ps2 train kmeans --input hdfs:///pages/part-* --features 100000 --k 1000 --init random --master yarn --output hdfs:///model

\b
Use the model:
  from ps2.algorithms import KMeansClusters
  KMeansClusters.load("model").predict(x)   the cluster of each row of an array or a scipy CSR matrix
"""
# What the training is called in checkpoints.
TRAINING = "ps2 train kmeans"


@click.command(epilog=EPILOG)
@click.option("--input", required=True, metavar="PATH", help="LIBSVM file, folder or glob; labels are ignored.")
@click.option(
    "--features", type=click.IntRange(1), metavar="N", help="Number of features.  [default: the largest index]"
)
@param_options(KMeansSettings)
@setting_options
def kmeans(input: str, features: int | None, setting: Setting, **params: Any) -> None:
    """Find clusters of rows.

    The file has lines "label index:value ...", indices ascending from 1.
    """
    # All other options are named as the estimator's params.

    def estimator() -> Any:
        from ps2.algorithms import KMeans

        return KMeans(**params)

    def show(found: Read, model: Any) -> None:
        summary = model.summary
        if setting.form == "table":
            printed.print_pace(summary.history, "moves of the centres", setting)
            printed.print_steps(summary.history)
            click.echo(f"{len(found.train):,} rows in {len(model.clusterCenters()):,} clusters")
            click.echo(f"cost: {summary.trainingCost:.6g}")
            return
        record = {
            "rows": len(found.train),
            "features": found.features,
            "params": params,
            "steps": printed.steps_record(summary.history),
            "cost": summary.trainingCost,
            "sizes": list(summary.clusterSizes),
            "output": setting.output,
        }
        print_data(record, setting.form)

    file = Files(input, None, features)
    FileTraining(TRAINING, file, setting, estimator, lambda found: found.train.frame, show, "KMeansClusters").run()
