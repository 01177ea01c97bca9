"""A training on one LIBSVM file, from the command's options to the saved model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from ps2.cli.training.options import Files, Setting
from ps2.cli.training.running import Read, check, draw, in_spark, options_named, read, save


@dataclass(frozen=True)
class FileTraining:
    """A training on one LIBSVM file, as a command describes it.

    Attributes:
        name: of the Spark application, and of the training in checkpoints.
        file: the rows.
        setting: where the training runs, and where its results go.
        estimator: returns the estimator that the command's options describe.
        frame: returns the DataFrame to train on.
        show: prints the trained model, before its files are written.
        loader: the class of ``ps2.algorithms`` that loads the model without Spark.
    """

    name: str
    file: Files
    setting: Setting
    estimator: Callable[[], Any]
    frame: Callable[[Read], Any]
    show: Callable[[Read, Any], None]
    loader: str

    def run(self) -> None:
        """Train, print and save the model."""
        from ps2.algorithms.spark_session import interruptible

        with interruptible() as interrupt:
            estimator = self.estimator()
            with options_named():
                estimator._check()
            check((self.file.input,), self.setting)
            in_spark(self.name, self.setting, interrupt, lambda spark, workers: self._train(estimator, spark, workers))

    def _train(self, estimator: Any, spark: Any, workers: int) -> None:
        found = read(spark, self.file)
        with options_named():
            model = estimator.setNumWorkers(workers)._resumable(self.name).fit(self.frame(found))
        self.show(found, model)
        saved = save(model, self.setting, self.loader)
        if self.setting.form == "table":
            click.echo(saved)
        draw(model, self.setting)
