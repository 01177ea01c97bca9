"""``ps2 train mf``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import click

from ps2.algorithms.factors.settings import FactorizationSettings
from ps2.cli.training import printed
from ps2.cli.training.command import TrainAndTest, TrainingCommand
from ps2.cli.training.options import HELD_OUT_COLUMN, HELD_OUT_OPTION
from ps2.errors import ConfigError, InputError

if TYPE_CHECKING:
    from ps2.algorithms.text.tables import CsvColumns

# The number of recommended items to print for each user.
NUM_ITEMS = 5


class MFCommand(TrainingCommand[TrainAndTest]):
    """Factorize ratings of items by users."""

    format: Literal["text", "csv"] | None
    user: str | None
    item: str | None
    rating: str | None
    weight: str | None
    held_out: float | None
    shown: int
    name, estimator, settings, curve = "mf", "MatrixFactorization", FactorizationSettings, "rmse.png"
    defaults: ClassVar = {"alpha": None, "patience": None}
    other_names: ClassVar = {"validationIndicatorCol": "--held-out"}
    file_text = (
        'The file has lines "user item rating" (or, with --implicit, "user item"), separated by white space, "::" or '
        "commas, or it is a CSV file whose first line names its columns. Ids are integers or words."
    )
    file_options = (
        click.option("--input", required=True, metavar="FILE", help="File of ratings, folder or glob; can be .gz."),
        click.option("--test", metavar="FILE", help="Ratings to measure the model on."),
        click.option(
            "--format",
            type=click.Choice(["text", "csv"]),
            help="Format of the files  [default: csv if they end with .csv].",
        ),
        click.option("--user", metavar="NAME", help="Column of users in CSV files  [default: user]."),
        click.option("--item", metavar="NAME", help="Column of items in CSV files  [default: item]."),
        click.option(
            "--rating", metavar="NAME", help="Column of ratings in CSV files  [default: rating; with --implicit none]."
        ),
        click.option("--weight", metavar="NAME", help="Column of weights in CSV files  [default: all weigh 1]."),
    )
    last_options = (
        HELD_OUT_OPTION,
        click.option(
            "--shown",
            type=click.IntRange(0),
            default=5,
            show_default=True,
            help="Number of users to print with their recommendations.",
        ),
    )
    examples = """
    --input ratings.txt.gz --output model
    --input ratings.csv --user userId --item movieId --rank 32 --iterations 30 --biases --output model
    --input train.txt --test test.txt --held-out 0.1 --plots pictures --output model -o json
    --input plays.csv --rating count --implicit --alpha 40 --rank 64 --output model
    --input hdfs:///ratings/part-* --servers 8 --master yarn --output hdfs:///model
    --input ratings.txt --restore /shared/checkpoints --output model   continue after a kill
    """
    usage = """
    from ps2.algorithms import MatrixFactorizationModel, MatrixFactors
    MatrixFactorizationModel.load("model").recommendForAllUsers(10)
    MatrixFactors.load("model").recommend(17, 10)      without Spark
    """

    @property
    def is_implicit(self) -> bool:
        return bool(self.params["implicitPrefs"])

    def make_estimator(self) -> Any:
        if "alpha" in self.params and not self.is_implicit:
            raise ConfigError("--alpha needs --implicit")
        if "patience" in self.params and self.held_out is None:
            raise ConfigError("--patience needs --held-out")
        held_out = {} if self.held_out is None else {"validationIndicatorCol": HELD_OUT_COLUMN}
        return self.new_estimator(**held_out)

    def check_estimator(self, estimator: Any) -> None:
        super().check_estimator(estimator)
        estimator._plan()

    def check_files(self) -> None:
        super().check_files()
        for path in filter(None, self.paths):
            self.columns(path)

    def columns(self, path: str) -> CsvColumns | None:
        """Return the columns of a CSV file; None: the file is text. Raise ConfigError if options name its columns."""
        from ps2.algorithms.text.paths import format_of
        from ps2.algorithms.text.tables import CsvColumns

        if self.format == "text" or (self.format is None and format_of(path) != "csv"):
            for name in ("user", "item", "rating", "weight"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"--{name}: expected a CSV file, got the text file {path} without names")
            return None
        # Implicit feedback needs no ratings: a line can be an event without a value.
        rating = self.rating or (None if self.is_implicit else "rating")
        return CsvColumns(self.user or "user", self.item or "item", rating, self.weight)

    def read(self, spark: Any) -> TrainAndTest:
        from ps2.algorithms.text.tables import read_ratings

        train, *others = (read_ratings(spark, path, self.columns(path)) for path in filter(None, self.paths))
        for table in (train, *others):
            if "rating" not in table.columns and not self.is_implicit:
                raise InputError(f"{table.path}: expected lines with ratings, which are optional only with --implicit")
            if table.columns != train.columns:
                expected, got = (", ".join(rows.columns) for rows in (train, table))
                raise InputError(f"{table.path}: expected columns {expected}, as in {train.path}, got {got}")
            if table.frame.dtypes[:2] != train.frame.dtypes[:2]:
                expected, got = (" and ".join(kind for _, kind in rows.frame.dtypes[:2]) for rows in (train, table))
                raise InputError(
                    f"{table.path}: expected ids of users and items of types {expected}, as in {train.path}, got {got}"
                )
        return TrainAndTest(train, others[0] if others else None)

    def fit(self, estimator: Any, data: TrainAndTest) -> Any:
        from ps2.algorithms.text.measures import held_out

        if "rating" not in data.train.columns:
            estimator.setRatingCol("")
        if "weight" in data.train.columns:
            estimator.setWeightCol("weight")
        frame = data.train.frame
        if self.held_out is not None:
            frame = held_out(frame, self.held_out, self.params["seed"], HELD_OUT_COLUMN)
        return estimator.fit(frame)

    def measure(self, model: Any, data: TrainAndTest) -> dict[str, Any] | None:
        from ps2.algorithms.text.measures import measure_ratings

        return None if data.test is None else measure_ratings(model, data.test, self.is_implicit)

    def recommendations(self, model: Any) -> list[tuple[Any, list[tuple[Any, float]]]]:
        """Return the first ``shown`` users, each with the best items and their scores."""
        return [(user, model.recommend(user, NUM_ITEMS)) for user in model.factors.users[: self.shown]]

    def print_results(self, data: TrainAndTest, model: Any, measures: Any) -> None:
        printed.print_best("user", "recommended items", self.recommendations(model))
        factors = model.factors
        click.echo(f"{data.train.rows:,} ratings, {len(factors.users):,} users, {len(factors.items):,} items")
        printed.print_history(model.summary.history, "iterations", self.run, with_reason=True)
        if measures is not None:
            errors = "no errors to measure"
            if measures["known"]:
                errors = f"RMSE {measures['rmse']:.4f}, MAE {measures['mae']:.4f}"
            known = f"{measures['known']:,} of {measures['ratings']:,} ratings of known ids"
            click.echo(f"{self.test}: {known}: {errors}")

    def data_record(self, data: TrainAndTest, model: Any) -> dict[str, Any]:
        factors = model.factors
        return {"ratings": data.train.rows, "users": len(factors.users), "items": len(factors.items)}

    def model_record(self, data: TrainAndTest, model: Any, measures: Any) -> dict[str, Any]:
        history = model.summary.history
        return {
            "iterations": printed.steps_record(history),
            "reason": history.reason,
            "best": model.summary.bestIteration,
            "test": measures,
            "recommended": [
                {"user": user, "items": [{"item": item, "rating": rating} for item, rating in best]}
                for user, best in self.recommendations(model)
            ],
        }
