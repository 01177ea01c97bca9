"""``ps2 train gbt`` and ``forest``: trees on rows of LIBSVM files or tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import click
from click.core import ParameterSource

from ps2.algorithms.trees.boosting_settings import ONLY_WITH
from ps2.algorithms.trees.settings import (
    DEFAULTS,
    GBTClassifierSettings,
    GBTRankerSettings,
    GBTRegressorSettings,
    RandomForestClassifierSettings,
    RandomForestRegressorSettings,
)
from ps2.cli.options import Decorator, FiniteRange
from ps2.cli.training import printed
from ps2.cli.training.command import Variant
from ps2.cli.training.options import HELD_OUT_COLUMN, make_local
from ps2.cli.training.rows import LINES, PredictorCommand, Rows
from ps2.errors import ConfigError, InputError

if TYPE_CHECKING:
    from ps2.algorithms.text.libsvm import LabelledRows

CLASSES = ("binary", "multiclass")
CATEGORIES = click.option(
    "--categories", metavar="LIST", help="Features of a table that are categories: texts, or numbers 0, 1, ..."
)
# The name of the column that has the queries.
QUERY_COLUMN = "query"


def task_option(text: str, *tasks: str) -> Decorator:
    """Return the option that says what labels are; ``text`` is its help."""
    choices = click.Choice([*CLASSES, "regression", *tasks])
    return click.option("--task", type=choices, default="binary", show_default=True, help=f"Kind of labels: {text}.")


class TreesCommand(PredictorCommand):
    """A command that trains trees; ``task`` says what labels are: classes, numbers or relevances."""

    task: Literal["binary", "multiclass", "regression", "ranking"]
    choice, steps = "task", "trees"
    file_text = (
        f"{LINES}. Labels are two values (--task binary), several values (multiclass) or numbers (regression). The "
        "smallest label of a class is class 0 of the model. The same rows give the same trees, bit for bit, on any "
        "number of workers and servers."
    )
    file_options = (*PredictorCommand.file_options, CATEGORIES, task_option("two classes, several classes, or numbers"))

    @property
    def has_classes(self) -> bool:
        return self.task in CLASSES

    def classes(self, rows: LabelledRows) -> tuple[Any, ...]:
        from ps2.algorithms.text.libsvm import MAX_CLASSES

        if self.task not in CLASSES:
            return ()
        if self.task == "binary" and len(rows.counts) > 2:
            raise InputError(
                f"{rows.path}: labels: expected two different values, got {rows.shown_labels}; "
                "--task multiclass and --task regression accept more"
            )
        return rows.classes(2 if self.task == "binary" else MAX_CLASSES)

    def chooses_workers(self, estimator: Any) -> bool:
        return self.params["via"] != "servers"

    def data_record(self, data: Rows, model: Any) -> dict[str, Any]:
        return {"rows": data.count, "features": data.features, "task": self.task, "classes": list(data.classes)}

    def extra_plots(self, data: Rows, model: Any) -> dict[str, Callable[[str], Any]]:
        return {"importances.png": model.plotImportances} if model.featureImportances.numNonzeros() else {}


class ForestCommand(TreesCommand):
    """Train a random forest."""

    name, curve = "forest", "impurity.png"
    variants: ClassVar = {
        **dict.fromkeys(CLASSES, Variant("RandomForestClassifier", RandomForestClassifierSettings)),
        "regression": Variant("RandomForestRegressor", RandomForestRegressorSettings),
    }
    defaults: ClassVar = {"numTrees": 100, "maxDepth": 10, "maxBins": 256, "impurity": None}
    examples = """
    --input agaricus.train.libsvm.gz --test agaricus.test.libsvm.gz --output model
    --input digits.libsvm --task multiclass --trees 300 --depth 20 --output model -o json
    --input claims.libsvm --task regression --subset 0.3 --min-rows 5 --output model
    --input train.libsvm --restore /shared/checkpoints --output model   continue after a kill
    """
    usage = """
    from ps2.algorithms import RandomForest, RandomForestClassificationModel   (regression: RandomForestRegressionModel)
    RandomForestClassificationModel.load("model").transform(df)   predictions are classes, 0, 1, ...
    RandomForest.load("model").predict(X)                         NumPy or scipy CSR, without Spark; column 0 is index 1
    """

    def print_results(self, data: Rows, model: Any, measures: Any) -> None:
        printed.print_rows(data.count, data.features, data.classes)
        printed.print_pace(model.summary.history, self.steps, self.run)
        printed.print_measures(measures)
        if self.params["oobScore"]:
            name = "R2" if self.task == "regression" else "accuracy"
            click.echo(f"out-of-bag {name}: {model.summary.oobScore:.6f}")

    def model_record(self, data: Rows, model: Any, measures: Any) -> dict[str, Any]:
        return {
            "num_trees": model.getNumTrees,
            "nodes": model.totalNumNodes,
            "seconds": sum(model.summary.history.seconds),
            "measures": measures,
            "oob_score": model.summary.oobScore,
        }


class GBTCommand(TreesCommand):
    """Train gradient boosted trees."""

    validation: float | None
    xgboost: str | None
    name = "gbt"
    variants: ClassVar = {
        **dict.fromkeys(CLASSES, Variant("GBTClassifier", GBTClassifierSettings)),
        "regression": Variant("GBTRegressor", GBTRegressorSettings),
        "ranking": Variant("GBTRanker", GBTRankerSettings),
    }
    file_text = (
        f'{TreesCommand.file_text}\n\nWith --task ranking, tables have a column of queries (--group), lines are "label '
        'qid:query index:value ...", and labels are relevances from 0 to 31. The rows of a query need not be side by '
        "side. Instead of qid:, the file FILE.query can have the number of rows of each query of FILE, one per line, "
        "as for LightGBM."
    )
    file_options = (
        *PredictorCommand.file_options,
        CATEGORIES,
        click.option("--group", metavar="NAME", help="With --task ranking: column of the queries of a table."),
        task_option("two classes, several classes, numbers, or relevances of the rows of queries", "ranking"),
    )
    defaults: ClassVar = {
        **DEFAULTS["xgboost"],
        "stepSize": 0.1,
        "defaults": None,
        "validationTol": 0.0,
        **dict.fromkeys(ONLY_WITH),
        "lossType": None,
        "lossShape": None,
    }
    other_names: ClassVar = {"validationIndicatorCol": "--validation"}
    last_options = (
        click.option(
            "--validation",
            type=FiniteRange(0, 1, min_open=True, max_open=True),
            metavar="FRACTION",
            help="Hold out this fraction of the rows, and stop when their loss no longer improves.",
        ),
        click.option(
            "--save-xgboost", "xgboost", metavar="FILE", help="Also write the model in xgboost's JSON format."
        ),
    )
    examples = """
    --input agaricus.train.libsvm.gz --test agaricus.test.libsvm.gz --output model
    --input train.libsvm --validation 0.2 --trees 500 --lr 0.05 --plots pictures --output model
    --input adult.csv --label income --categories job,country --test adult.test.csv --output model
    --input houses.csv --label price --categories district,kind --task regression --output model
    --input digits.libsvm --task multiclass --depth 8 --output model -o json
    --input claims.libsvm --task regression --loss poisson --save-xgboost model.json --output model
    --input results.parquet --task ranking --group query --label relevance --output model
    --input Fold1/train.txt --test Fold1/test.txt --task ranking --defaults lightgbm --output model
    --input hdfs:///ads/part-* --servers 8 --master yarn --depth 7 --bins 100 --output hdfs:///model
    --input train.libsvm --restore /shared/checkpoints --output model   continue after a kill
    """
    usage = """
    from ps2.algorithms import GBTClassificationModel, GBTModel   (GBTRegressionModel, GBTRankerModel)
    GBTClassificationModel.load("model").transform(df)   predictions are classes, 0, 1, ...; with categories that are
    pyspark.ml.PipelineModel.load("model").transform(df)   texts
    GBTModel.load("model").predict(X)                    NumPy or scipy CSR, without Spark; column 0 is index 1
    """

    def make_estimator(self) -> Any:
        if self.params["maxIter"] < 1:
            raise ConfigError(f"--trees: expected at least 1, got {self.params['maxIter']}")
        columns = {} if self.validation is None else {"validationIndicatorCol": HELD_OUT_COLUMN}
        if self.task == "ranking":
            columns["groupCol"] = self.group or QUERY_COLUMN
        library = self.params.get("defaults")
        if library is not None:  # options that are not set have the library's values, instead of the command's
            source = click.get_current_context().get_parameter_source
            unset = {name for name in DEFAULTS[library] if source(name) is ParameterSource.DEFAULT}
            self.params = {name: value for name, value in self.params.items() if name not in unset}
        return self.new_estimator(defaults=library or "xgboost", **columns)

    def check_files(self) -> None:
        super().check_files()
        path = self.xgboost
        if path is None or "://" in path:
            return
        make_local(os.path.dirname(path) or ".", "--save-xgboost")
        if os.path.isdir(path) or (os.path.exists(path) and not self.run.overwrite):
            expected = "the name of a file" if os.path.isdir(path) else "no such file without --overwrite"
            raise ConfigError(f"--save-xgboost: expected {expected}, got {path}")

    def feature_columns(self) -> Any:
        if (self.group is None) == (self.task == "ranking"):
            raise ConfigError("--group: expected the column of queries with --task ranking, and only with it")
        return super().feature_columns()

    def reader(self) -> Any:
        from ps2.algorithms.text import queries

        return queries if self.task == "ranking" else super().reader()

    def fit(self, estimator: Any, data: Rows) -> Any:
        from ps2.algorithms.text.measures import held_out

        self.set_columns(estimator, data)
        frame = data.frames["train"]
        if self.validation is not None:
            columns = () if data.columns is None else [self.group] if self.group else data.columns.names
            frame = held_out(frame, self.validation, self.params["seed"], HELD_OUT_COLUMN, columns)
            if self.task == "ranking":
                data.frames["held out"] = frame.where(f"`{HELD_OUT_COLUMN}`")
                if not data.frames["held out"].head(1):
                    raise InputError(f"--validation: expected a fraction that holds out a query, got {self.validation}")
        return estimator.fit(frame)

    def print_results(self, data: Rows, model: Any, measures: Any) -> None:
        history = model.summary.history
        printed.print_rows(data.count, data.features, data.classes)
        steps = f"rounds of {len(data.classes)} trees" if len(data.classes) > 2 else self.steps
        printed.print_history(history, steps, self.run)
        if self.validation is not None:
            click.echo(f"{history.reason}; the model keeps the best {model.getNumTrees} trees")
        printed.print_measures(measures)

    def model_record(self, data: Rows, model: Any, measures: Any) -> dict[str, Any]:
        history = model.summary.history
        return {
            "trees": printed.steps_record(history),
            "reason": history.reason,
            "num_trees": model.getNumTrees,
            "measures": measures,
        }

    @property
    def extra_files(self) -> dict[str, str | None]:
        return {"xgboost": self.xgboost}

    def write_extra_files(self, model: Any) -> Iterator[str]:
        if self.xgboost is not None:
            model.saveXGBoost(self.xgboost)
            yield f"wrote {self.xgboost}"
