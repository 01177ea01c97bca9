"""``ps2 train lr``, ``kmeans``, ``dictionary`` and ``metric``: trainings on rows of LIBSVM files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import click

from ps2.algorithms.clusters.settings import KMeansSettings
from ps2.algorithms.dictionary.settings import DictionarySettings
from ps2.algorithms.linear.settings import LogisticRegressionSettings
from ps2.algorithms.metric.settings import MetricSettings
from ps2.cli.options import Decorator
from ps2.cli.training import printed
from ps2.cli.training.command import TrainingCommand
from ps2.errors import ConfigError

if TYPE_CHECKING:
    from ps2.algorithms.text.libsvm import LabelledRows

LINES = 'The file has lines "label index:value ...", indices ascending from 1'
MAX_METRIC_CLASSES = 100
FEATURES = click.option(
    "--features",
    type=click.IntRange(1),
    metavar="N",
    help="Number of features  [default: the largest index in the files].",
)


def single_file_options(text: str) -> tuple[Decorator, Decorator]:
    """Return the options of a training on a single file; ``text`` is the help about the file."""
    return click.option("--input", required=True, metavar="PATH", help=text), FEATURES


@dataclass(frozen=True)
class Rows:
    """The rows of LIBSVM files.

    Attributes:
        count: the number of rows to train on.
        features: the number of features.
        classes: the labels of class 0, 1, ...; empty if labels are not classes.
        frames: the DataFrames "train" and, if there is a test file, "test".
    """

    count: int
    features: int
    classes: tuple[float, ...]
    frames: dict[str, Any]


class RowsCommand(TrainingCommand[Rows]):
    """A command that trains on rows of LIBSVM files.

    Attributes:
        features: the number of features; None: the largest index in the files.
        steps: the plural noun for the training's steps.
    """

    features: int | None
    file_text = f"{LINES}."

    @property
    @abstractmethod
    def steps(self) -> str: ...

    def classes(self, rows: LabelledRows) -> tuple[float, ...]:
        """Return the labels of class 0, 1, ...; empty if labels are not classes."""
        return ()

    def read(self, spark: Any) -> Rows:
        from ps2.algorithms.text import libsvm

        paths = {name: path for name, path in (("train", self.input), ("test", self.test)) if path}
        features = self.features or max(libsvm.count_features(spark, path) for path in paths.values())
        rows = {name: libsvm.read(spark, path, features) for name, path in paths.items()}
        classes = self.classes(rows["train"])
        frames = {name: table.classified(classes) if classes else table.frame for name, table in rows.items()}
        return Rows(len(rows["train"]), features, classes, frames)

    def fit(self, estimator: Any, data: Rows) -> Any:
        return estimator.fit(data.frames["train"])

    def print_results(self, data: Rows, model: Any, measures: Any) -> None:
        if data.classes:
            printed.print_rows(data.count, data.features, data.classes)
        printed.print_history(model.summary.history, self.steps, self.run)

    def data_record(self, data: Rows, model: Any) -> dict[str, Any]:
        classes = {"classes": list(data.classes)} if data.classes else {}
        return {"rows": data.count, "features": data.features, **classes}


class PredictorCommand(RowsCommand):
    """A command that trains a classification or regression model, and measures its errors on all rows."""

    file_options: ClassVar[Sequence[Decorator]] = (
        click.option("--input", required=True, metavar="FILE", help="LIBSVM file, folder or glob; can be .gz."),
        click.option("--test", metavar="FILE", help="LIBSVM file to measure the model on."),
        FEATURES,
    )

    def measure(self, model: Any, data: Rows) -> Any:
        from ps2.algorithms.text.measures import measure

        return {name: measure(model, frame) for name, frame in data.frames.items()}

    def print_results(self, data: Rows, model: Any, measures: Any) -> None:
        super().print_results(data, model, measures)
        printed.print_measures(measures)

    def model_record(self, data: Rows, model: Any, measures: Any) -> dict[str, Any]:
        return {**super().model_record(data, model, measures), "measures": measures}


class LRCommand(PredictorCommand):
    """Train logistic regression, with Adam or FTSGD."""

    name, estimator, settings = "lr", "LogisticRegression", LogisticRegressionSettings
    # The options of ftsgd have no default, because the estimator refuses them with the other solver.
    defaults: ClassVar = {
        "maxIter": 200,
        "miniBatchFraction": 0.1,
        "stepSize": 0.05,
        **dict.fromkeys(("momentum", "localSteps", "localSearch")),
    }
    file_text = f"{LINES}, and two different labels. The smaller label is class 0 of the model."
    file_options = (
        *PredictorCommand.file_options,
        click.option(
            "--solver",
            type=click.Choice(("minibatch", "ftsgd")),
            default="minibatch",
            show_default=True,
            help="minibatch: steps of Adam. ftsgd: local steps with adaptive momentum, averaged.",
        ),
    )
    examples = """
    --input a9a.libsvm.gz --test a9a.t.libsvm.gz --output model
    --input hdfs:///ads/part-* --features 50000000 --servers 8 --master yarn --output hdfs:///model
    --input train.libsvm --fleet host1:7070,host2:7070 --token-file fleet.token --output model -o json
    --input train.libsvm --checkpoint-dir /shared/checkpoints --checkpoint-every 60 --output model
    --input train.libsvm --restore /shared/checkpoints --output model   continue after a kill
    --input train.libsvm --solver ftsgd --steps 20 --fraction 1 --lr 1 --momentum 0.3 --output model
    """
    usage = """
    from ps2.algorithms import LogisticRegressionModel
    LogisticRegressionModel.load("model").transform(df)   predictions are classes, 0 and 1; pyspark.ml.feature has
    IndexToString(inputCol="prediction", outputCol="predictedLabel", labels=["-1", "1"])   to restore the labels
    """

    @property
    def steps(self) -> str:
        return "steps of Adam" if self.params["solver"] == "minibatch" else f"steps of {self.params['solver']}"

    def make_estimator(self) -> Any:
        if self.params["solver"] == "minibatch":
            self.params = {"optimizer": "adam", **self.params}
            return super().make_estimator()
        if self.run.restore is not None:
            raise ConfigError(f"--restore: expected --solver minibatch, which can resume, got {self.params['solver']}")
        return super().make_estimator()._resumable("")

    def classes(self, rows: LabelledRows) -> tuple[float, ...]:
        return rows.classes()


class KMeansCommand(RowsCommand):
    """Find clusters of rows."""

    name, estimator, settings = "kmeans", "KMeans", KMeansSettings
    steps, loader = "moves of the centres", "KMeansClusters"
    file_options = single_file_options("LIBSVM file, folder or glob; labels are ignored.")
    examples = """
    --input shoppers.libsvm.gz --k 100 --output model
    --input hdfs:///pages/part-* --features 100000 --k 1000 --init random --master yarn --output hdfs:///model
    """
    usage = """
    from ps2.algorithms import KMeansClusters
    KMeansClusters.load("model").predict(x)   the cluster of each row of an array or a scipy CSR matrix
    """

    def print_results(self, data: Rows, model: Any, measures: Any) -> None:
        super().print_results(data, model, measures)
        click.echo(f"{data.count:,} rows in {len(model.clusterCenters()):,} clusters")
        click.echo(f"cost: {model.summary.trainingCost:.6g}")

    def model_record(self, data: Rows, model: Any, measures: Any) -> dict[str, Any]:
        summary = model.summary
        results = {"cost": summary.trainingCost, "sizes": list(summary.clusterSizes)}
        return {**super().model_record(data, model, measures), **results}


class DictionaryCommand(RowsCommand):
    """Learn a dictionary of atoms: each row is approximately a sparse combination of atoms."""

    name, estimator, settings = "dictionary", "DictionaryLearning", DictionarySettings
    steps, loader = "updates of the dictionary", "SparseCoder"
    file_options = single_file_options("LIBSVM file, folder or glob; labels are ignored.")
    examples = """
    --input patches.libsvm.gz --k 100 --alpha 0.5 --output model
    --input hdfs:///pages/part-* --features 20000 --k 200 --master yarn --output hdfs:///model
    """
    usage = """
    from ps2.algorithms import SparseCoder
    SparseCoder.load("model").transform(x)   the code of each row of an array or a scipy CSR matrix
    """


class MetricCommand(RowsCommand):
    """Learn a distance in which rows of one class are near each other."""

    name, estimator, settings = "metric", "MetricLearning", MetricSettings
    steps, loader = "steps of AdaGrad", "Metric"
    file_text = f"{LINES}; each label is a class."
    file_options = single_file_options("LIBSVM file, folder or glob, with a class for each row.")
    examples = """
    --input digits.libsvm.gz --rank 10 --output model
    --input hdfs:///pages/part-* --features 20000 --fraction 0.1 --master yarn --output hdfs:///model
    """
    usage = """
    from ps2.algorithms import Metric
    metric = Metric.load("model")   metric.transform(x) returns L x; Euclidean distances of L x are the metric's
    """

    def classes(self, rows: LabelledRows) -> tuple[float, ...]:
        return rows.classes(MAX_METRIC_CLASSES)
