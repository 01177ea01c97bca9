"""``ps2 train mf``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from ps2.algorithms.factors.settings import FactorizationSettings
from ps2.cli.finite import FiniteRange
from ps2.cli.output import print_data, print_table
from ps2.cli.training import printed
from ps2.cli.training.options import Setting, gathered, param_options, setting_options
from ps2.cli.training.running import check, in_spark, options_named, pictures, save_and_draw
from ps2.errors import ConfigError, InputError
from ps2.text_tables import Column

if TYPE_CHECKING:
    from ps2.algorithms.text.tables import CsvColumns, TextTable

EPILOG = """\b
Examples:
  ps2 train mf --input ratings.txt.gz --output model
  ps2 train mf --input ratings.csv --user userId --item movieId --rank 32 --iterations 30 --biases --output model
  ps2 train mf --input train.txt --test test.txt --held-out 0.1 --plots pictures --output model -o json
  ps2 train mf --input plays.csv --rating count --implicit --alpha 40 --rank 64 --output model
  ps2 train mf --input hdfs:///ratings/part-* --servers 8 --master yarn --output hdfs:///model
  ps2 train mf --input ratings.txt --restore /shared/checkpoints --output model   continue after a kill

\b
Use the model:
  from ps2.algorithms import MatrixFactorizationModel, MatrixFactors
  MatrixFactorizationModel.load("model").recommendForAllUsers(10)
  MatrixFactors.load("model").recommend(17, 10)      without Spark
"""
# What the training is called in checkpoints.
TRAINING = "ps2 train mf"
PICTURE = "rmse.png"
HELD_OUT = "held out"
# Items printed for a user.
ITEMS = 5


@dataclass(frozen=True)
class Ratings:
    """Files of ratings.

    Attributes:
        input, test: any URL that Spark reads: a file, a folder or a glob; None: no test file.
        format: of the files; None: by the suffix of their names.
        user, item, rating, weight: names of columns of CSV files; None: the default name, or none.
    """

    input: str
    test: str | None
    format: Literal["text", "csv"] | None
    user: str | None
    item: str | None
    rating: str | None
    weight: str | None

    def columns(self, path: str, implicit: bool) -> CsvColumns | None:
        """Return the columns of a CSV file; None: it is text.

        Raises:
            ConfigError: columns are named, and the file is text.
        """
        from ps2.algorithms.text.paths import format_of
        from ps2.algorithms.text.tables import CsvColumns

        if self.format == "text" or (self.format is None and format_of(path) != "csv"):
            for name in ("user", "item", "rating", "weight"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"--{name}: expected a CSV file, whose columns have names, got the text {path}")
            return None
        # All that there is to implicit feedback may be that it exists.
        rating = self.rating or (None if implicit else "rating")
        return CsvColumns(self.user or "user", self.item or "item", rating, self.weight)


@dataclass(frozen=True)
class _Job:
    """What a factorization is asked.

    Attributes:
        held_out: share of the ratings that validate the training; None: none do.
        shown: number of users to print with their recommendations.
        params: of the estimator.
    """

    ratings: Ratings
    setting: Setting
    held_out: float | None
    shown: int
    params: dict[str, Any]

    @property
    def is_implicit(self) -> bool:
        return bool(self.params["implicitPrefs"])


ratings_options = gathered(
    Ratings,
    "ratings",
    [
        click.option("--input", required=True, metavar="FILE", help="Ratings, folder or glob; .gz is fine."),
        click.option("--test", metavar="FILE", help="Ratings to measure the model on."),
        click.option(
            "--format", type=click.Choice(["text", "csv"]), help="Form of the files  [default: csv if named .csv]."
        ),
        click.option("--user", metavar="NAME", help="Column of users in CSV files  [default: user]."),
        click.option("--item", metavar="NAME", help="Column of items in CSV files  [default: item]."),
        click.option(
            "--rating", metavar="NAME", help="Column of ratings in CSV files  [default: rating; with --implicit none]."
        ),
        click.option("--weight", metavar="NAME", help="Column of weights in CSV files  [default: all weigh 1]."),
    ],
)


@click.command(epilog=EPILOG)
@ratings_options
@param_options(FactorizationSettings, alpha=None, patience=None)
@click.option(
    "--held-out",
    "held_out",
    type=FiniteRange(0, 1, min_open=True, max_open=True),
    metavar="SHARE",
    help="Share of the ratings that validates the training.",
)
@click.option(
    "--shown",
    type=click.IntRange(0),
    default=5,
    show_default=True,
    help="Number of users to print with their recommendations.",
)
@setting_options
def mf(ratings: Ratings, setting: Setting, held_out: float | None, shown: int, **params: Any) -> None:
    """Factorize ratings of items by users.

    The file has lines "user item rating" (or, with --implicit, "user item"), separated by white space, "::" or commas,
    or it is a CSV file whose first line names its columns. Ids are integers or words.
    """
    # All other options are named as the estimator's params.
    from ps2.algorithms.spark_session import interruptible

    given = {name: value for name, value in params.items() if value is not None}
    with interruptible() as interrupt:
        job = _Job(ratings, setting, held_out, shown, given)
        estimator = _estimator(job)
        check((ratings.input, ratings.test), setting)
        for path in filter(None, (ratings.input, ratings.test)):
            ratings.columns(path, job.is_implicit)
        in_spark(TRAINING, setting, interrupt, lambda spark, workers: _train(job, estimator, spark, workers))


def _estimator(job: _Job) -> Any:
    from ps2.algorithms import MatrixFactorization

    params = dict(job.params)
    if "alpha" in params and not job.is_implicit:
        raise ConfigError("--alpha: expected with --implicit only")
    if "patience" in params and job.held_out is None:
        raise ConfigError("--patience: expected with --held-out only")
    estimator = MatrixFactorization(**params)
    if job.held_out is not None:
        estimator.setValidationIndicatorCol(HELD_OUT)
    with options_named():
        estimator._check()
        estimator._plan()
    return estimator._resumable(TRAINING)


def _train(job: _Job, estimator: Any, spark: Any, workers: int) -> None:
    from ps2.algorithms.text.measures import held_out, measure_ratings

    found, test = _read(job, spark)
    if "rating" not in found.columns:
        estimator.setRatingCol("")
    if "weight" in found.columns:
        estimator.setWeightCol("weight")
    frame = found.frame if job.held_out is None else held_out(found.frame, job.held_out, job.params["seed"], HELD_OUT)
    with options_named():
        model = estimator.setNumWorkers(workers).fit(frame)
    measured = None if test is None else measure_ratings(model, test, job.is_implicit)
    is_table = job.setting.form == "table"
    # Print first: the training took long, and writing files may fail.
    if is_table:
        _print_tables(job, found, model, measured)
    else:
        print_data(_record(job, found, model, measured), job.setting.form)
    save_and_draw(model, job.setting, PICTURE)


def _read(job: _Job, spark: Any) -> tuple[TextTable, TextTable | None]:
    from ps2.algorithms.text.tables import read_ratings

    ratings = job.ratings
    paths = [ratings.input, *([ratings.test] if ratings.test is not None else [])]
    found, *others = (read_ratings(spark, path, ratings.columns(path, job.is_implicit)) for path in paths)
    for each in (found, *others):
        if "rating" not in each.columns and not job.is_implicit:
            raise InputError(f"{each.path}: expected lines with ratings, which only --implicit does without")
        if each.columns != found.columns:
            expected, got = (", ".join(one.columns) for one in (found, each))
            raise InputError(f"{each.path}: expected {expected}, as {found.path} has, got {got}")
    test = others[0] if others else None
    if test is not None and test.frame.dtypes[:2] != found.frame.dtypes[:2]:
        expected, got = (" and ".join(kind for _, kind in one.frame.dtypes[:2]) for one in (found, test))
        raise InputError(
            f"{test.path}: expected ids of users and of items of types {expected}, as those of {found.path}, got {got}"
        )
    return found, test


def _print_tables(job: _Job, found: TextTable, model: Any, measured: dict[str, Any] | None) -> None:
    recommended = _recommended(job, model)
    if recommended:
        rows = [(str(user), " ".join(f"{item} {rating:.2f}" for item, rating in best)) for user, best in recommended]
        print_table([Column("user"), Column("recommended items", folds=True)], rows)
        click.echo()
    factors = model.factors
    click.echo(f"{found.rows:,} ratings, {len(factors.users):,} users, {len(factors.items):,} items")
    history = model.summary.history
    printed.print_pace(history, "iterations", job.setting)
    if history.reason:
        click.echo(history.reason)
    printed.print_steps(history)
    if measured is not None:
        said = f"RMSE {measured['rmse']:.4f}, MAE {measured['mae']:.4f}" if measured["known"] else "none to measure"
        click.echo(f"{job.ratings.test}: {measured['known']:,} of {measured['ratings']:,} ratings of known ids: {said}")


def _recommended(job: _Job, model: Any) -> list[tuple[Any, list[tuple[Any, float]]]]:
    """Return the first users, each with the best items."""
    users = model.factors.users[: job.shown]
    return [(user, model.recommend(user, ITEMS)) for user in users]


def _record(job: _Job, found: TextTable, model: Any, measured: dict[str, Any] | None) -> dict[str, Any]:
    """Return the run as data."""
    history = model.summary.history
    return {
        "ratings": found.rows,
        "users": len(model.factors.users),
        "items": len(model.factors.items),
        "params": job.params,
        "iterations": printed.steps_record(history),
        "reason": history.reason,
        "best": model.summary.bestIteration,
        "test": measured,
        "recommended": [
            {"user": user, "items": [{"item": item, "rating": rating} for item, rating in best]}
            for user, best in _recommended(job, model)
        ],
        "output": job.setting.output,
        "plots": list(pictures(model, job.setting, PICTURE)),
    }
