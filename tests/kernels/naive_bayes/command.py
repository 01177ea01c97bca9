"""``ps2 train naive-bayes``."""

from __future__ import annotations

from typing import Any

import click

from ps2.cli.training.rows import Rows, RowsCommand, single_file_options
from tests.kernels.naive_bayes.settings import NaiveBayesSettings


class NaiveBayesCommand(RowsCommand):
    """Learn the classes of rows of counts."""

    name, settings, steps = "naive-bayes", NaiveBayesSettings, "passes"
    file_options = single_file_options("LIBSVM file, folder or glob, with a class for each row.")
    examples = "--input words.libsvm.gz --smoothing 0.1 --output model"
    usage = 'NaiveBayesModel.load("model").transform(df)'

    def make_estimator(self) -> Any:
        from tests.kernels.naive_bayes.estimator import NaiveBayes  # imports pyspark, which --help does not need

        return NaiveBayes(**self.params)

    def print_results(self, data: Rows, model: Any, measures: Any) -> None:
        click.echo(f"{data.count:,} rows in {model.numClasses} classes")
