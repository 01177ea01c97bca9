"""``ps2 train naive-bayes``."""

from __future__ import annotations

from typing import Any

import click

from ps2.cli.training.file_training import FileTraining
from ps2.cli.training.options import Files, Setting, param_options, setting_options
from tests.kernels.naive_bayes.settings import NaiveBayesSettings


@click.command
@click.option("--input", required=True, metavar="PATH", help="LIBSVM file, folder or glob.")
@param_options(NaiveBayesSettings)
@setting_options
def naive_bayes(input: str, setting: Setting, **params: Any) -> None:
    """Learn the classes of rows of counts."""

    def estimator() -> Any:
        from tests.kernels.naive_bayes.estimator import NaiveBayes  # imports pyspark, which --help does not need

        return NaiveBayes(**params)

    def show(read: Any, model: Any) -> None:
        click.echo(f"{len(read.train):,} rows in {model.numClasses} classes")

    file = Files(input, None, None)
    FileTraining("naive-bayes", file, setting, estimator, lambda read: read.train.frame, show, "").run()
