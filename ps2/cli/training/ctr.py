"""``ps2 train ctr``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import click

from ps2.algorithms.deep.settings import (
    AttentionSettings,
    ClickSettings,
    CompressedSettings,
    CrossSettings,
    HistorySettings,
)
from ps2.algorithms.frame.settings import settings_of
from ps2.algorithms.online.settings import OnlineFactorSettings, OnlineSettings
from ps2.cli.output import print_table
from ps2.cli.training import printed
from ps2.cli.training.command import TrainAndTest, TrainingCommand, Variant
from ps2.cli.training.options import HELD_OUT_COLUMN, HELD_OUT_OPTION
from ps2.errors import ConfigError
from ps2.text_tables import Column

if TYPE_CHECKING:
    from ps2.algorithms.text.clicks import ClickColumns, FormatName

DEEP = {
    "deepfm": Variant("DeepFM", ClickSettings),
    "wide-deep": Variant("WideAndDeep", ClickSettings),
    "dcn": Variant("DCNv2", CrossSettings),
    "xdeepfm": Variant("XDeepFM", CompressedSettings),
    "autoint": Variant("AutoInt", AttentionSettings),
    "din": Variant("DIN", HistorySettings),
}
VARIANTS = {
    "lr": Variant("OnlineLogisticRegression", OnlineSettings),
    "fm": Variant("OnlineFM", OnlineFactorSettings),
    **DEEP,
}
# Params whose options have no default: the models have different defaults. Only the seed has one.
UNSET = {name for variant in VARIANTS.values() for name in settings_of(variant.settings)} - {"seed"}
# The params whose options have the range x>=1 in the help.
COUNTS = (
    *("maxIter", "batchSize", "factorSize", "admitAfter", "maxKeys"),
    *("crossLayers", "interactingLayers", "numHeads", "headSize"),
)


class CTRCommand(TrainingCommand[TrainAndTest]):
    """Train a model of clicks on rows of named columns."""

    format: FormatName | None
    columns: str | None
    label: str
    weight: str | None
    categories: str | None
    numbers: str | None
    buckets: str | None
    bounds: tuple[str, ...]
    crosses: str | None
    histories: str | None
    model: str
    held_out: float | None
    initial_model: str | None
    export: str | None
    other_names: ClassVar = {"validationIndicatorCol": "--held-out"}
    name, choice, variants, defaults = "ctr", "model", VARIANTS, dict.fromkeys(UNSET)
    file_text = "Values of categories become keys by hashing, so there is no vocabulary. Labels are 0 and 1."
    file_options = (
        click.option("--input", required=True, metavar="PATH", help="CSV, TSV or Parquet: file, folder or glob."),
        click.option("--test", metavar="PATH", help="Rows to measure the model on."),
        click.option(
            "--format",
            type=click.Choice(["csv", "tsv", "parquet"]),
            help="Format of the files  [default: by the suffix of their names].",
        ),
        click.option("--columns", metavar="LIST", help="Names of all columns, for text files without a header line."),
        click.option("--label", default="label", show_default=True, metavar="NAME", help="Column of labels, 0 or 1."),
        click.option("--weight", metavar="NAME", help="Column of weights  [default: all weigh 1]."),
        click.option("--categories", metavar="LIST", help="Columns of categories, such as site,ad or c1..c26 or 'c*'."),
        click.option("--numbers", metavar="LIST", help="Columns of numbers that are the values of features."),
        click.option("--buckets", metavar="LIST", help="Columns of numbers; their logarithmic intervals become keys."),
        click.option(
            "--bounds",
            multiple=True,
            metavar="NAME=LIST",
            help="Bounds of the intervals of a column of --buckets, such as age=18,30,50; can be repeated.",
        ),
        click.option("--crosses", metavar="LIST", help="Columns whose combined values are keys: site:ad,user:ad."),
    )
    last_options = (
        click.option(
            "--histories",
            metavar="LIST",
            help="Columns of lists, and the columns of their candidates, as clicked:item (din). In text files, spaces "
            "separate the values of a list.",
        ),
        click.option(
            "--model",
            type=click.Choice([*VARIANTS]),
            default="lr",
            show_default=True,
            help="Logistic regression, a factorization machine, DeepFM, Wide & Deep, DCN V2, xDeepFM, AutoInt, or DIN.",
        ),
        HELD_OUT_OPTION,
        click.option(
            "--initial-model",
            metavar="DIR",
            help="Begin with the model of an earlier command, of the same --model and sizes; new keys are added.",
        ),
        click.option("--export", metavar="DIR", help="Also write the weights for ps2 serve and ps2.serving.Scorer."),
    )
    examples = """
    --input clicks.csv --categories site,ad,user --buckets price --output model
    --input clicks.csv --categories 'site,hour(time),weekday(time)' --buckets age --bounds age=18,30,50 --output model
    --input train.tsv.gz --columns label,i1..i13,c1..c26 --categories 'c*' --buckets 'i*' --output model
    --input days/ --categories 'c*' --model deepfm --rank 16 --epochs 20 --held-out 0.1 --output model
    --input clicks.csv --categories site,ad --crosses site:ad --export serving/clicks --output model
    --input clicks.csv --categories site,ad --crosses site:ad --model wide-deep --plots plots --output model
    --input days/2 --categories 'c*' --initial-model models/1 --output models/2   the next day
    --input days/ --categories 'c*' --model deepfm --restore /shared/checkpoints --output model   continue
    """
    usage = """
    ps2 serve --model serving/clicks                 over HTTP, of --export
    from ps2.serving import Scorer
    Scorer("serving/clicks").score([{"site": "s1", "ad": "a7"}])
    from ps2.algorithms import OnlineLogisticRegressionModel
    OnlineLogisticRegressionModel.load("model").transform(df)   with a fleet
    """

    @classmethod
    def command(cls) -> click.Command:
        command = super().command()
        for option in command.params:
            if option.name in COUNTS:
                option.type = click.IntRange(1)
        return command

    @property
    def is_deep(self) -> bool:
        return self.model in DEEP

    def make_estimator(self) -> Any:
        if self.initial_model is not None and self.run.restore is not None:
            raise ConfigError("--restore: expected no --initial-model, because the checkpoint contains the model")
        for option, value in (("--restore", self.run.restore), ("--plots", self.run.plots)):
            if value is not None and not self.is_deep:
                raise ConfigError(f"{option}: expected --model {' or '.join(DEEP)}, got {self.model}")
        if (self.histories is None) == (self.model == "din"):
            raise ConfigError(f"--histories: expected with --model din and no other, got --model {self.model}")
        if "patience" in self.params and self.held_out is None:
            raise ConfigError("--patience needs --held-out")
        return self.new_estimator(**({} if self.held_out is None else {"validationIndicatorCol": HELD_OUT_COLUMN}))

    def check_files(self) -> None:
        super().check_files()
        path = self.initial_model
        if path is not None and "://" not in path and not os.path.isdir(path):
            raise ConfigError(f"--initial-model: expected the folder of a model, got {path}")
        self.click_columns()
        for path in filter(None, self.paths):
            self.format_of(path)

    def click_columns(self) -> ClickColumns:
        """Return the columns to read; raise ConfigError if no columns are named, or a list is malformed."""
        from ps2.algorithms.text.clicks import ClickColumns
        from ps2.data.key_fields import suggested_cross

        lists = [self.list_of(name) for name in ("categories", "numbers", "buckets", "crosses")]
        if not any(lists):
            raise ConfigError("--categories: expected names of columns, or --numbers, --buckets or --crosses, got none")
        for cross in lists[3]:
            if cross.count(":") < 1 or not all(cross.split(":")):
                raise ConfigError(f"--crosses: expected columns such as {suggested_cross(cross)}, got {cross!r}")
        histories = self.list_of("histories")
        for pair in histories:
            if pair.count(":") != 1 or not all(pair.split(":")):
                raise ConfigError(f"--histories: expected columns such as clicked:item, got {pair!r}")
        categories, numbers, buckets, crosses = lists
        return ClickColumns(self.label, self.weight, categories, numbers, buckets, crosses, histories)

    def format_of(self, path: str) -> FormatName:
        """Return the format of a file; raise ConfigError if neither --format nor the file's suffix determines it."""
        from ps2.algorithms.text.clicks import format_of

        form = self.format or format_of(path)
        if form == "parquet" and self.columns is not None:
            raise ConfigError(f"--columns: expected CSV or TSV files, got Parquet, which contains the names: {path}")
        return form

    def bucket_columns(self, names: Sequence[str]) -> dict[str, list[float] | None]:
        """Return the bounds of each column of buckets; None: logarithmic intervals."""
        columns: dict[str, list[float] | None] = dict.fromkeys(names)
        for text in self.bounds:
            name, _, numbers = text.rpartition("=")
            if name not in columns:
                raise ConfigError(f"--bounds: expected a column of --buckets ({', '.join(names)}), got {text!r}")
            try:
                columns[name] = [float(number) for number in numbers.split(",")]
            except ValueError as error:
                raise ConfigError(f"--bounds: expected numbers such as {name}=18,30,50, got {text!r}") from error
        return columns

    def read(self, spark: Any) -> TrainAndTest:
        from ps2.algorithms.text.clicks import read

        train, *others = (
            read(spark, path, self.format_of(path), self.click_columns(), self.list_of("columns"))
            for path in filter(None, self.paths)
        )
        return TrainAndTest(train, others[0] if others else None)

    def fit(self, estimator: Any, data: TrainAndTest) -> Any:
        from ps2.algorithms.text.measures import held_out

        columns = data.train.columns
        estimator.setLabelCol(columns.label)
        if columns.weight is not None:
            estimator.setWeightCol(columns.weight)
        estimator.setCategoricalCols(list(columns.categories)).setNumericCols(list(columns.numbers))
        estimator.setBucketCols(self.bucket_columns(columns.buckets)).setCrosses(list(columns.crosses))
        if self.initial_model is not None:
            estimator.setInitialModel(estimator._MODEL.load(self.initial_model))
        if columns.histories:
            estimator.setHistoryCols(list(columns.histories))
        frame = data.train.frame
        if self.held_out is not None:
            frame = held_out(frame, self.held_out, self.params["seed"], HELD_OUT_COLUMN, frame.columns)
        return estimator.fit(frame)

    def measure(self, model: Any, data: TrainAndTest) -> dict[str, Any] | None:
        from ps2.algorithms.text.measures import measure_clicks

        return None if data.test is None else measure_clicks(model, data.test)

    def print_results(self, data: TrainAndTest, model: Any, measures: Any) -> None:
        train = data.train
        keys = model.table.keysCount()
        click.echo(f"{train.rows:,} rows, {train.clicks / train.rows:.2%} of them clicks, {keys:,} keys")
        if self.is_deep:
            printed.print_history(model.summary.history, "epochs", self.run)
        else:
            rows = [[f"{value:,.4g}" for value in record.values()] for record in passes_record(model)]
            held_out = () if self.held_out is None else ("held-out loss",)
            titles = ("pass", "AUC", "log loss", "calibration", "rows/s", *held_out, "s")
            click.echo("\neach row is predicted before the model learns from it:")
            print_table([Column(title, right=True) for title in titles], rows)
            click.echo()
        if measures is not None:
            click.echo(
                f"{self.test}: {measures['rows']:,} rows, AUC {measures['auc']:.4f}, "
                f"log loss {measures['log_loss']:.4f}, calibration {measures['calibration'] or float('nan'):.3f}"
            )

    def data_record(self, data: TrainAndTest, model: Any) -> dict[str, Any]:
        keys = model.table.keysCount()
        return {"rows": data.train.rows, "clicks": data.train.clicks, "keys": keys, "model": self.model}

    def model_record(self, data: TrainAndTest, model: Any, measures: Any) -> dict[str, Any]:
        steps = super().model_record(data, model, measures) if self.is_deep else {"passes": passes_record(model)}
        return {**steps, "test": measures}

    @property
    def extra_files(self) -> dict[str, str | None]:
        return {"export": self.export}

    def write_extra_files(self, model: Any) -> Iterator[str]:
        if self.export is not None:
            export = model.export(self.export)
            yield (
                f"export {export.number} of {export.keys:,} keys in {self.export}: ps2.serving.Scorer({self.export!r})"
            )


def passes_record(model: Any) -> list[dict[str, Any]]:
    """Return the measures of each pass of an online model, which predicts each row before it learns from the row."""
    return [
        {
            "pass": number,
            "auc": progress.validation.auc,
            "log_loss": progress.validation.logLoss,
            "calibration": progress.validation.calibration,
            "rows_per_s": progress.rowsPerS,
            **({} if progress.heldOut is None else {"held_out_loss": progress.heldOut.logLoss}),
            "seconds": progress.seconds,
        }
        for number, progress in enumerate(model.progress, 1)
    ]
