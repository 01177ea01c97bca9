"""``ps2 train ctr``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ps2.cli.output import print_data, print_table
from ps2.cli.training import printed
from ps2.cli.training.options import Setting, gathered, setting_options
from ps2.cli.training.running import check, draw, in_spark, options_named, pictures, save
from ps2.errors import ConfigError
from ps2.text_tables import Column

if TYPE_CHECKING:
    from ps2.algorithms.text.clicks import ClickColumns, ClickRows, FormatName

EPILOG = """\b
Examples:
  ps2 train ctr --input clicks.csv --categories site,ad,user --buckets price --output model
  ps2 train ctr --input train.tsv.gz --columns label,i1..i13,c1..c26 --categories 'c*' --buckets 'i*' --output model
  ps2 train ctr --input days/ --categories 'c*' --model deepfm --rank 16 --hidden 128,64 --epochs 3 --output model
  ps2 train ctr --input clicks.csv --categories site,ad --crosses site:ad --export serving/clicks --output model
  ps2 train ctr --input clicks.csv --categories site,ad --crosses site:ad --model wide-deep --plots plots --output model
  ps2 train ctr --input days/ --categories 'c*' --model deepfm --restore /shared/checkpoints --output model   continue

\b
Use the model:
  ps2 serve --model serving/clicks                 over HTTP, of --export
  from ps2.serving import Scorer
  Scorer("serving/clicks").score([{"site": "s1", "ad": "a7"}])
  from ps2.algorithms import OnlineLogisticRegressionModel
  OnlineLogisticRegressionModel.load("model").transform(df)   with a fleet
"""
# Name of the training in messages.
TRAINING = "ps2 train ctr"
ONLINE, DEEP = ("lr", "fm"), ("deepfm", "wide-deep")
ESTIMATORS = {"lr": "OnlineLogisticRegression", "fm": "OnlineFM", "deepfm": "DeepFM", "wide-deep": "WideAndDeep"}
# Models that have an option; all models have the others.
ONLY = {
    "factorSize": ("fm", *DEEP),
    "alpha": ONLINE,
    "lr": ONLINE,
    "l1": ONLINE,
    "l2": ONLINE,
    "hiddenLayers": DEEP,
    "dropoutRate": DEEP,
    "stepSize": DEEP,
    "embeddingStepSize": DEEP,
}


@dataclass(frozen=True)
class Clicks:
    """Files of rows with named columns, as the options name them.

    Attributes:
        input, test: any URL that Spark reads: a file, a folder or a glob; ``test`` None: no test file.
        format: format of the files; None: by the suffix of their names.
        names: list of the columns of text files without a first line of names.
        label, weight: names of columns; ``weight`` None: all rows weigh 1.
        categories, numbers, buckets, crosses: lists of columns, as the user typed them.
    """

    input: str
    test: str | None
    format: FormatName | None
    names: str | None
    label: str
    weight: str | None
    categories: str | None
    numbers: str | None
    buckets: str | None
    crosses: str | None

    def columns(self) -> ClickColumns:
        """Return the columns to read.

        Raises:
            ConfigError: no columns are named, or a list is malformed.
        """
        from ps2.algorithms.text.clicks import ClickColumns
        from ps2.data.key_fields import suggested_cross

        lists = [self._list(name) for name in ("categories", "numbers", "buckets", "crosses")]
        if not any(lists):
            raise ConfigError("--categories: expected names of columns, or --numbers, --buckets or --crosses, got none")
        for cross in lists[3]:
            if cross.count(":") < 1 or not all(cross.split(":")):
                raise ConfigError(f"--crosses: expected columns such as {suggested_cross(cross)}, got {cross!r}")
        return ClickColumns(self.label, self.weight, *lists)

    def read(self, spark: Any, path: str) -> ClickRows:
        """Read a file."""
        from ps2.algorithms.text.clicks import read

        return read(spark, path, self.format_of(path), self.columns(), self._list("names", "--columns"))

    def format_of(self, path: str) -> FormatName:
        """Return the format of a file; raise ConfigError if neither ``format`` nor the suffix says it."""
        from ps2.algorithms.text.clicks import format_of

        found = self.format or format_of(path)
        if found == "parquet" and self.names is not None:
            raise ConfigError(f"--columns: expected CSV or TSV files, got Parquet, whose columns have names: {path}")
        return found

    def _list(self, name: str, option: str = "") -> tuple[str, ...]:
        from ps2.algorithms.text.clicks import names_in

        text = getattr(self, name)
        try:
            return () if text is None else names_in(text)
        except ConfigError as error:
            raise ConfigError(f"{option or '--' + name}: {error}") from error


@dataclass(frozen=True)
class _Job:
    """One training.

    Attributes:
        clicks: the files.
        setting: options that all commands of ``ps2 train`` have.
        model: kind of the model, a key of ESTIMATORS.
        export: folder for an export; None: no export.
        params: params of the estimator, by name.
    """

    clicks: Clicks
    setting: Setting
    model: str
    export: str | None
    params: dict[str, Any]


clicks_options = gathered(
    Clicks,
    "clicks",
    [
        click.option("--input", required=True, metavar="PATH", help="CSV, TSV or Parquet: file, folder or glob."),
        click.option("--test", metavar="PATH", help="Rows to measure the model on."),
        click.option(
            "--format",
            type=click.Choice(["csv", "tsv", "parquet"]),
            help="Format of the files  [default: by the suffix of their names].",
        ),
        click.option("--columns", "names", metavar="LIST", help="Names of all columns, of text without a first line."),
        click.option("--label", default="label", show_default=True, metavar="NAME", help="Column of labels, 0 or 1."),
        click.option("--weight", metavar="NAME", help="Column of weights  [default: all weigh 1]."),
        click.option("--categories", metavar="LIST", help="Columns of categories, such as site,ad or c1..c26 or 'c*'."),
        click.option("--numbers", metavar="LIST", help="Columns of numbers that count by their values."),
        click.option("--buckets", metavar="LIST", help="Columns of numbers that count by intervals of logarithms."),
        click.option("--crosses", metavar="LIST", help="Columns whose values count together, such as site:ad,user:ad."),
    ],
)


@click.command(epilog=EPILOG)
@clicks_options
@click.option(
    "--model",
    type=click.Choice([*ONLINE, *DEEP]),
    default="lr",
    show_default=True,
    help="Logistic regression, a factorization machine, DeepFM, or Wide & Deep.",
)
@click.option("--epochs", "maxIter", type=click.IntRange(1), show_default="lr, fm: 1; others: 5", help="Passes.")
@click.option("--batch-size", "batchSize", type=click.IntRange(1), help="Rows between two requests.")
@click.option("--rank", "factorSize", type=click.IntRange(1), help="Numbers in a key's vector (not lr).")
@click.option("--optimizer", help="lr, fm: ftrl, adagrad or adam. Others: of embeddings, such as ftrl+adagrad.")
@click.option("--alpha", type=float, help="Scale of FTRL's learning rate (lr, fm).")
@click.option("--lr", type=float, help="Learning rate of Adagrad and Adam (lr, fm).")
@click.option("--l1", type=float, help="L1 penalty of FTRL (lr, fm).")
@click.option("--l2", type=float, help="L2 penalty (lr, fm).")
@click.option("--hidden", "hiddenLayers", metavar="LIST", help="Sizes of layers, such as 128,64 (deepfm, wide-deep).")
@click.option("--dropout", "dropoutRate", type=float, help="Share of a layer's outputs to drop (deepfm, wide-deep).")
@click.option("--layers-lr", "stepSize", type=float, help="Learning rate of layers (deepfm, wide-deep).")
@click.option("--embedding-lr", "embeddingStepSize", type=float, help="That of embeddings (deepfm, wide-deep).")
@click.option("--admit-after", "admitAfter", type=click.IntRange(1), help="A key gets memory when it comes this often.")
@click.option("--max-keys", "maxKeys", type=click.IntRange(1), help="The most keys; the ones that came longest ago go.")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
@click.option("--export", metavar="DIR", help="Also write the weights for ps2 serve and ps2.serving.Scorer.")
@setting_options
def ctr(clicks: Clicks, setting: Setting, model: str, export: str | None, **params: Any) -> None:
    """Train a model of clicks on rows of named columns.

    Values of categories become keys by hashing, so there is no vocabulary. Labels are 0 and 1.
    """
    # All other options are named as the estimators' params.
    from ps2.algorithms.spark_session import interruptible

    given = {name: value for name, value in params.items() if value is not None}
    with interruptible() as interrupt:
        job = _Job(clicks, setting, model, export, given)
        _check(job)
        in_spark(TRAINING, setting, interrupt, lambda spark, workers: _train(job, spark, workers))


def _check(job: _Job) -> None:
    """Raise ConfigError for options that are wrong, as far as this can be known without Spark."""
    for option, value in (("--restore", job.setting.restore), ("--plots", job.setting.plots)):
        if value is not None and job.model not in DEEP:
            raise ConfigError(f"{option}: expected --model {' or '.join(DEEP)}, which make passes, got {job.model}")
    options = {option.name: option.opts[0] for option in click.get_current_context().command.params}
    for name, models in ONLY.items():
        if name in job.params and job.model not in models:
            raise ConfigError(f"{options[name]}: expected --model {' or '.join(models)}, got {job.model}")
    with options_named():
        _estimator(job)._check()
    paths = (job.clicks.input, job.clicks.test)
    check(paths, job.setting)
    job.clicks.columns()
    for path in filter(None, paths):
        job.clicks.format_of(path)


def _estimator(job: _Job) -> Any:
    """Return the estimator, with all params except its columns."""
    from ps2 import algorithms

    params = dict(job.params)
    if "hiddenLayers" in params:
        params["hiddenLayers"] = _sizes(params["hiddenLayers"])
    return getattr(algorithms, ESTIMATORS[job.model])(**params)._resumable(TRAINING)


def _sizes(text: str) -> list[int]:
    try:
        return [int(size) for size in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--hidden: expected sizes such as 128,64, got {text!r}") from error


def _train(job: _Job, spark: Any, workers: int) -> None:
    from ps2.algorithms.text.measures import measure_clicks

    train = job.clicks.read(spark, job.clicks.input)
    test = None if job.clicks.test is None else job.clicks.read(spark, job.clicks.test)
    columns = train.columns
    estimator = _estimator(job).setLabelCol(columns.label).setNumWorkers(workers)
    if columns.weight is not None:
        estimator.setWeightCol(columns.weight)
    estimator.setCategoricalCols(list(columns.categories)).setNumericCols(list(columns.numbers))
    estimator.setBucketCols(list(columns.buckets)).setCrosses(list(columns.crosses))
    with options_named():
        model = estimator.fit(train.frame)
    measured = None if test is None else measure_clicks(model, test)
    if job.setting.form == "table":
        _print_tables(job, train, model, measured)
    else:
        print_data(_record(job, train, model, measured), job.setting.form)
    lines = [save(model, job.setting)]
    if job.export is not None:
        found = model.export(job.export)
        lines.append(
            f"export {found.number} of {found.keys:,} keys in {job.export}: ps2.serving.Scorer({job.export!r})"
        )
    if job.model in DEEP:
        lines += [f"wrote {path}" for path in draw(model, job.setting)]
    if job.setting.form == "table":
        click.echo("\n".join(lines))


def _passes(model: Any) -> list[dict[str, Any]]:
    """Return the measures of each pass of an online model: each row was predicted before it was learned."""
    return [
        {
            "pass": number + 1,
            "auc": one.validation.auc,
            "log_loss": one.validation.logLoss,
            "calibration": one.validation.calibration,
            "rows_per_s": one.rowsPerS,
            "seconds": one.seconds,
        }
        for number, one in enumerate(model.progress)
    ]


def _print_tables(job: _Job, train: ClickRows, model: Any, measured: dict[str, Any] | None) -> None:
    keys = model.table.keysCount()
    click.echo(f"{train.rows:,} rows, {train.clicks / train.rows:.2%} of them clicks, {keys:,} keys")
    if job.model in DEEP:
        printed.print_pace(model.summary.history, "epochs", job.setting)
        printed.print_steps(model.summary.history)
    else:
        rows = [[f"{value:,.4g}" for value in one.values()] for one in _passes(model)]
        titles = ("pass", "AUC", "log loss", "calibration", "rows/s", "s")
        click.echo("\neach row predicted before it is learned:")
        print_table([Column(title, right=True) for title in titles], rows)
        click.echo()
    if measured is not None:
        click.echo(
            f"{job.clicks.test}: {measured['rows']:,} rows, AUC {measured['auc']:.4f}, "
            f"log loss {measured['log_loss']:.4f}, calibration {measured['calibration'] or float('nan'):.3f}"
        )


def _record(job: _Job, train: ClickRows, model: Any, measured: dict[str, Any] | None) -> dict[str, Any]:
    """Return the measures of the training as plain data, for ``-o json`` and ``yaml``."""
    is_deep = job.model in DEEP
    return {
        "rows": train.rows,
        "clicks": train.clicks,
        "keys": model.table.keysCount(),
        "model": job.model,
        "params": job.params,
        **({"steps": printed.steps_record(model.summary.history)} if is_deep else {"passes": _passes(model)}),
        "test": measured,
        "output": job.setting.output,
        "export": job.export,
        **({"plots": list(pictures(model, job.setting))} if is_deep else {}),
    }
