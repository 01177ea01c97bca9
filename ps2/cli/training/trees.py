"""``ps2 train gbt`` and ``forest``: trees on rows of LIBSVM files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import click
from click.core import ParameterSource

from ps2.algorithms.trees.settings import (
    DEFAULTS,
    GBTClassifierSettings,
    GBTRegressorSettings,
    RandomForestClassifierSettings,
    RandomForestRegressorSettings,
)
from ps2.cli.options import FiniteRange
from ps2.cli.training import printed
from ps2.cli.training.command import Variant
from ps2.cli.training.options import make_local
from ps2.cli.training.rows import LINES, PredictorCommand, Rows
from ps2.errors import ConfigError, InputError

if TYPE_CHECKING:
    from ps2.algorithms.text.libsvm import LabelledRows

CLASSES = ("binary", "multiclass")
# The name of the column that marks the held-out rows.
HELD_OUT_COLUMN = "held out"


class TreesCommand(PredictorCommand):
    """A command that trains trees; ``task`` says what labels are: two classes, several classes or numbers."""

    task: Literal["binary", "multiclass", "regression"]
    choice, steps = "task", "trees"
    file_text = (
        f"{LINES}. Labels are two values (--task binary), several values (multiclass) or numbers (regression). The "
        "smallest label of a class is class 0 of the model. The same rows give the same trees, bit for bit, on any "
        "number of workers and servers."
    )
    file_options = (
        *PredictorCommand.file_options,
        click.option(
            "--task",
            type=click.Choice(["binary", "multiclass", "regression"]),
            default="binary",
            show_default=True,
            help="Kind of labels: two classes, several classes, or numbers.",
        ),
    )

    def classes(self, rows: LabelledRows) -> tuple[float, ...]:
        from ps2.algorithms.text.libsvm import MAX_CLASSES

        if self.task == "regression":
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
    }
    defaults: ClassVar = {
        **DEFAULTS["xgboost"],
        "stepSize": 0.1,
        "defaults": None,
        "validationTol": 0.0,
        "topRate": None,
        "otherRate": None,
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
    --input digits.libsvm --task multiclass --depth 8 --output model -o json
    --input claims.libsvm --task regression --loss poisson --save-xgboost model.json --output model
    --input hdfs:///ads/part-* --servers 8 --master yarn --depth 7 --bins 100 --output hdfs:///model
    --input train.libsvm --restore /shared/checkpoints --output model   continue after a kill
    """
    usage = """
    from ps2.algorithms import GBTClassificationModel, GBTModel   (of --task regression: GBTRegressionModel)
    GBTClassificationModel.load("model").transform(df)   predictions are classes, 0, 1, ...
    GBTModel.load("model").predict(X)                    NumPy or scipy CSR, without Spark; column 0 is index 1
    """

    def make_estimator(self) -> Any:
        if self.params["maxIter"] < 1:
            raise ConfigError(f"--trees: expected at least 1, got {self.params['maxIter']}")
        held_out = {} if self.validation is None else {"validationIndicatorCol": HELD_OUT_COLUMN}
        library = self.params.get("defaults")
        if library is not None:  # options that are not set have the library's values, instead of the command's
            source = click.get_current_context().get_parameter_source
            unset = {name for name in DEFAULTS[library] if source(name) is ParameterSource.DEFAULT}
            self.params = {name: value for name, value in self.params.items() if name not in unset}
        return self.new_estimator(defaults=library or "xgboost", **held_out)

    def check_files(self) -> None:
        super().check_files()
        path = self.xgboost
        if path is None or "://" in path:
            return
        make_local(os.path.dirname(path) or ".", "--save-xgboost")
        if os.path.isdir(path) or (os.path.exists(path) and not self.run.overwrite):
            expected = "the name of a file" if os.path.isdir(path) else "no such file without --overwrite"
            raise ConfigError(f"--save-xgboost: expected {expected}, got {path}")

    def fit(self, estimator: Any, data: Rows) -> Any:
        from ps2.algorithms.text.measures import held_out

        frame = data.frames["train"]
        if self.validation is not None:
            frame = held_out(frame, self.validation, self.params["seed"], HELD_OUT_COLUMN)
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
