"""``ps2 train lr``, ``kmeans``, ``dictionary`` and ``metric``: trainings on rows of LIBSVM files or tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    from ps2.algorithms.text.feature_tables import FeatureColumns
    from ps2.algorithms.text.libsvm import LabelledRows

LINES = (
    'A LIBSVM file has lines "label index:value ...", indices ascending from 1. CSV, TSV and Parquet files have named '
    "columns, of which --features are numbers"
)
MAX_METRIC_CLASSES = 100
FORMATS = ("libsvm", "csv", "tsv", "parquet")
TABLE_OPTIONS = (
    click.option(
        "--format",
        type=click.Choice(FORMATS),
        help="Format of the files  [default: by the suffix of their names, else libsvm].",
    ),
    click.option("--columns", metavar="LIST", help="Names of all columns, for CSV and TSV without a header line."),
    click.option(
        "--features",
        metavar="LIST",
        help="Columns of the features, such as age,price or 'c*'  [default: all other columns of numbers]; for LIBSVM "
        "their number  [default: the largest index in the files].",
    ),
)
LABEL = click.option("--label", default="label", show_default=True, metavar="NAME", help="Column of labels of a table.")
WEIGHT = click.option("--weight", metavar="NAME", help="Column of weights of a table  [default: all weigh 1].")


def single_file_options(text: str, *options: Decorator) -> tuple[Decorator, ...]:
    """Return the options of a training on a single file; ``text`` is the help about the file."""
    return click.option("--input", required=True, metavar="PATH", help=text), *TABLE_OPTIONS, *options


@dataclass(frozen=True)
class Rows:
    """The rows of LIBSVM files or tables.

    Attributes:
        count: the number of rows to train on.
        features: the number of features.
        classes: the labels of class 0, 1, ..., numbers or texts; empty if labels are not classes.
        frames: the DataFrames "train" and, if there is a test file, "test".
        columns: the columns of a table; None: the rows have pyspark.ml's vectors.
        indexer: the StringIndexerModel of categories that are texts; None: there are none.
    """

    count: int
    features: int
    classes: tuple[Any, ...]
    frames: dict[str, Any]
    columns: FeatureColumns | None = None
    indexer: Any = None


class RowsCommand(TrainingCommand[Rows]):
    """A command that trains on rows of LIBSVM files or tables.

    Attributes:
        features: the columns of a table's features, or the number of features of LIBSVM files; None: see the help.
        steps: the plural noun for the training's steps.
    """

    format: str | None
    columns: str | None
    features: str | None
    label: str | None = None
    weight: str | None = None
    categories: str | None = None
    group: str | None = None
    file_text = f"{LINES}."

    @property
    @abstractmethod
    def steps(self) -> str: ...

    @property
    def has_classes(self) -> bool:
        """True if labels are classes, which may be texts in a table."""
        return False

    def classes(self, rows: LabelledRows) -> tuple[Any, ...]:
        """Return the labels of class 0, 1, ...; empty if labels are not classes."""
        return ()

    def reader(self) -> Any:
        """Return the module that reads the files."""
        from ps2.algorithms.text import libsvm

        return libsvm

    def check_files(self) -> None:
        super().check_files()
        forms = {self.format_of(path) for path in filter(None, self.paths)}
        if "libsvm" not in forms:
            self.feature_columns()
            if forms == {"parquet"} and self.columns is not None:
                raise ConfigError("--columns: expected CSV or TSV files, got Parquet, which contains the names")
            return
        if len(forms) > 1:
            raise ConfigError(f"--test: expected a file of the format of --input, got {' and '.join(sorted(forms))}")
        self.num_features()
        for option in ("columns", "weight", "categories", "group"):
            if getattr(self, option) is not None:
                raise ConfigError(f"--{option}: expected a CSV, TSV or Parquet file, got LIBSVM (see --format)")

    def format_of(self, path: str) -> str:
        from ps2.algorithms.text.paths import format_of

        return self.format or format_of(path) or "libsvm"

    def num_features(self) -> int | None:
        """Return the number of features of LIBSVM files; None: the largest index."""
        if self.features is None:
            return None
        if not self.features.isdecimal() or not int(self.features):
            raise ConfigError(f"--features: expected the number of features of LIBSVM files, got {self.features!r}")
        return int(self.features)

    def feature_columns(self) -> FeatureColumns:
        from ps2.algorithms.text.feature_tables import FeatureColumns

        features, categories = self.list_of("features"), self.list_of("categories")
        return FeatureColumns(self.label, self.weight, self.group, features, categories, self.has_classes)

    def read(self, spark: Any) -> Rows:
        paths = {name: path for name, path in (("train", self.input), ("test", self.test)) if path}
        if self.format_of(self.input) == "libsvm":
            reader = self.reader()
            features = self.num_features() or max(reader.count_features(spark, path) for path in paths.values())
            rows = {name: reader.read(spark, path, features) for name, path in paths.items()}
        else:
            rows = self._read_tables(spark, paths)
            features = len(rows["train"].columns.features)
        classes = self.classes(rows["train"])
        frames = {name: table.classified(classes) if classes else table.frame for name, table in rows.items()}
        data = Rows(len(rows["train"]), features, classes, frames, rows["train"].columns)
        return data if data.columns is None else _with_indices(data, rows["train"])

    def _read_tables(self, spark: Any, paths: dict[str, str]) -> dict[str, LabelledRows]:
        from ps2.algorithms.text.feature_tables import read

        columns, names, rows = self.feature_columns(), self.list_of("columns"), {}
        for name, path in paths.items():
            rows[name] = read(spark, path, self.format_of(path), columns, names)  # type: ignore[arg-type]
            columns = rows[name].columns  # the test file must have the features of the other
        return rows

    def set_columns(self, estimator: Any, data: Rows) -> None:
        """Let the estimator read the columns of a table."""
        if data.columns is None:
            return
        estimator.setFeaturesCols(list(data.columns.features))
        if data.columns.label is not None:
            estimator.setLabelCol(data.columns.label)
        if data.columns.weight is not None:
            estimator.setWeightCol(data.columns.weight)

    def fit(self, estimator: Any, data: Rows) -> Any:
        self.set_columns(estimator, data)
        return estimator.fit(data.frames["train"])

    def saved_model(self, data: Rows, model: Any) -> Any:
        if data.indexer is None:
            return model
        from ps2.algorithms.text.feature_tables import pipeline

        return pipeline(data.indexer, model)

    def print_results(self, data: Rows, model: Any, measures: Any) -> None:
        if data.classes:
            printed.print_rows(data.count, data.features, data.classes)
        printed.print_history(model.summary.history, self.steps, self.run)

    def data_record(self, data: Rows, model: Any) -> dict[str, Any]:
        classes = {"classes": list(data.classes)} if data.classes else {}
        return {"rows": data.count, "features": data.features, **classes}


def _with_indices(data: Rows, train: LabelledRows) -> Rows:
    """Return rows in which indices replace the categories that are texts."""
    from ps2.algorithms.text.feature_tables import indexed_name, text_indexer

    indexer = text_indexer(train)
    if indexer is None:
        return data
    frames = {name: indexer.transform(frame) for name, frame in data.frames.items()}
    texts = indexer.getInputCols()
    features = tuple(indexed_name(name) if name in texts else name for name in train.columns.features)
    return replace(data, frames=frames, columns=replace(train.columns, features=features), indexer=indexer)


class PredictorCommand(RowsCommand):
    """A command that trains a classification or regression model, and measures its errors on all rows."""

    file_options: ClassVar[Sequence[Decorator]] = (
        click.option(
            "--input", required=True, metavar="FILE", help="LIBSVM, CSV, TSV or Parquet: file, folder or glob."
        ),
        click.option("--test", metavar="FILE", help="Rows to measure the model on."),
        *TABLE_OPTIONS,
        LABEL,
        WEIGHT,
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
    --input clicks.parquet --label clicked --features 'x*' --weight w --output model
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

    has_classes = True

    def classes(self, rows: LabelledRows) -> tuple[Any, ...]:
        return rows.classes()


class KMeansCommand(RowsCommand):
    """Find clusters of rows."""

    name, estimator, settings = "kmeans", "KMeans", KMeansSettings
    steps, loader = "moves of the centres", "KMeansClusters"
    file_options = single_file_options("LIBSVM file (labels are ignored), CSV, TSV or Parquet.", WEIGHT)
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
    file_options = single_file_options("LIBSVM file (labels are ignored), CSV, TSV or Parquet.")
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
    file_options = single_file_options("LIBSVM, CSV, TSV or Parquet, with a class for each row.", LABEL)
    examples = """
    --input digits.libsvm.gz --rank 10 --output model
    --input hdfs:///pages/part-* --features 20000 --fraction 0.1 --master yarn --output hdfs:///model
    """
    usage = """
    from ps2.algorithms import Metric
    metric = Metric.load("model")   metric.transform(x) returns L x; Euclidean distances of L x are the metric's
    """

    has_classes = True

    def classes(self, rows: LabelledRows) -> tuple[Any, ...]:
        return rows.classes(MAX_METRIC_CLASSES)
