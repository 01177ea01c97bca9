"""The public estimator and model of matrix factorization, with the interface of pyspark.ml's ALS."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pyspark.ml import Estimator, Model, recommendation
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type

from ps2.algorithms.factors import recommendation_frame as frames
from ps2.algorithms.factors.ccd_program import CcdProgram
from ps2.algorithms.factors.dealing import Deal, PackedRatings, deal_ratings
from ps2.algorithms.factors.model import MatrixFactors, Side, check_k
from ps2.algorithms.factors.plan import FactorizationPlan, FittedFactors
from ps2.algorithms.factors.program import Problem
from ps2.algorithms.factors.ratings import RatingColumns, RatingsSurvey, survey_ratings
from ps2.algorithms.factors.settings import FactorColumnSettings, FactorizationSettings
from ps2.algorithms.factors.sgd_program import SgdProgram
from ps2.algorithms.frame.dealing import check_workers
from ps2.algorithms.frame.estimator import HasInitialModel
from ps2.algorithms.frame.frames import check_frame
from ps2.algorithms.frame.models import FittedModel
from ps2.algorithms.frame.program import run_program
from ps2.algorithms.frame.retry import retry_after_server_loss
from ps2.algorithms.frame.scoring import PairScoring
from ps2.algorithms.frame.summaries import HistorySummary
from ps2.algorithms.frame.tables import field
from ps2.algorithms.training.checkpoint_names import CheckpointNames
from ps2.algorithms.training.faults import ColumnNames
from ps2.algorithms.training.record import Placement, StepReport, TrainingHistory
from ps2.algorithms.training.table import OwnRows, Table
from ps2.errors import ConfigError, DivergenceWarning, UsageError
from ps2.run.spark.backend_lookup import active_session, backend_of, cores_each
from ps2.run.spark.jvm import java_frame

E = TypeVar("E", bound="MatrixFactorization")

# The bytes of a float32, and the number of float32s that "sgd" adds to the factors of each vector.
NUMBER_BYTES, STEP_NUMBERS = 4, 4
SOLVERS: dict[str, type[SgdProgram | CcdProgram]] = {"sgd": SgdProgram, "ccd": CcdProgram}
# The range of the ids of pyspark.ml's ALS.
MIN_ID, MAX_ID = -(2**31), 2**31 - 1


class FactorizationSummary(HistorySummary):
    """The history of a factorization: RMSE, or loss, by iteration."""

    @property
    def bestIteration(self) -> int:
        """The iteration, from 1, whose vectors the model has: the last one, or the best one on the held-out rows."""
        history = self._history
        return history.steps if history.best is None else history.best


class MatrixFactorization(FactorizationSettings, HasInitialModel, Estimator["MatrixFactorizationModel"]):
    """Matrix factorization: ``pyspark.ml.recommendation.ALS`` on servers, by gradient or coordinate descent.

    Example::

        model = MatrixFactorization(rank=32, maxIter=20, biases=True).fit(df)  # user, item: integers or strings; rating
        model.recommendForAllUsers(10).show()
    """

    __module__ = "ps2.algorithms.recommendation"

    if TYPE_CHECKING:  # the constructor takes it as a keyword, too
        initialModel: MatrixFactorizationModel | MatrixFactors | None = None

    def setNumBlocks(self: E, value: int) -> E:
        """Set numUserBlocks and numItemBlocks, which have no effect."""
        return self._set(numUserBlocks=value, numItemBlocks=value)

    def setInitialModel(self: E, value: MatrixFactorizationModel | MatrixFactors | None) -> E:
        """Set the model that the training begins with, or None. New users and items are added to those of the model.

        It is not part of the estimator's file.

        Raises:
            ConfigError: it is another kind of model.
        """
        return super().setInitialModel(value)

    def _read_initial_model(self, value: Any) -> MatrixFactors:
        factors = value.factors if isinstance(value, MatrixFactorizationModel) else value
        if not isinstance(factors, MatrixFactors):
            raise ConfigError(f"initialModel: expected a MatrixFactorizationModel, got {type(value).__name__}")
        return factors

    def _plan(self) -> FactorizationPlan:
        """Return the plan; raise ConfigError if params contradict each other or the initial model."""
        plan = FactorizationPlan(settings=self._values(FactorizationSettings), name=self._name)
        if self._initial is not None:
            for name, expected in (("rank", self._initial.rank), ("biases", self._initial.hasBiases)):
                if (value := getattr(plan.settings, name)) != expected:
                    raise ConfigError(f"{name}: expected {expected}, as the initial model has, got {value}")
        return plan

    def _train_on(self, dataset: DataFrame) -> tuple[MatrixFactorizationModel, TrainingHistory]:
        plan = self._plan()
        check_workers(backend_of(dataset), plan.settings.numWorkers)
        fitted = retry_after_server_loss(lambda: self._factorize(dataset, plan))
        if fitted.halvings and fitted.step_size is not None:
            first = fitted.step_size * 2**fitted.halvings
            warnings.warn(
                f"stepSize: the training diverged with a step of {first:.3g}, and the model was trained with a step of "
                f"{fitted.step_size:.3g}; set this step to save the time of the first attempt",
                DivergenceWarning,
                stacklevel=4,
            )
        columns = plan.settings.userCol, plan.settings.itemCol
        id_types = [to_arrow_type(field(dataset, name).dataType) for name in columns]
        return MatrixFactorizationModel._of(MatrixFactors.of(fitted, *id_types)), fitted.history

    def _factorize(self, dataset: DataFrame, plan: FactorizationPlan) -> FittedFactors:
        """Survey ratings, assign users and items to workers, and train."""
        settings, spark = plan.settings, backend_of(dataset)
        optional = settings.ratingCol, settings.weightCol, settings.validationIndicatorCol
        columns = RatingColumns(settings.userCol, settings.itemCol, *(name or None for name in optional))
        initial_model = None if self._initial is None else self._initial.fitted()
        survey = survey_ratings(dataset, columns, settings)
        try:
            survey = survey.together_with(initial_model)
            workers = settings.numWorkers or spark.total_slots()
            workers = min(workers, int(np.count_nonzero(survey.user_counts)))
            threads = cores_each(spark, workers)
            deal = Deal.from_counts(
                survey.user_counts, survey.item_counts, workers, threads, NUMBER_BYTES * (settings.rank + STEP_NUMBERS)
            )
            packed = deal_ratings(dataset, survey, deal, plan)
            table = Table(packed.frame, ColumnNames(columns.user, label=None), workers)
            fitted = self._train_in_context(
                table, settings.maxIter, lambda ps, on_step: train(ps, packed, survey, plan, initial_model, on_step)
            )
        finally:
            survey.release()
        why = f"numWorkers is {settings.numWorkers}" if settings.numWorkers else "a worker for each task slot"
        placement = Placement(workers, threads, "servers", f"{why}, and at most one for each user")
        return replace(fitted, history=replace(fitted.history, placement=placement))


def train(
    ps: Any,
    packed: PackedRatings,
    survey: RatingsSurvey,
    plan: FactorizationPlan,
    initial_model: FittedFactors | None = None,
    on_step: Callable[[StepReport], None] = lambda step: None,
) -> FittedFactors:
    """Factorize surveyed ratings; in a restored context, continue the training.

    The survey includes the users and items of the initial model. They keep their vectors; others get random vectors.
    """
    rank = plan.settings.rank
    if initial_model is not None and initial_model.rank != rank:
        raise ConfigError(f"rank: the initial model has rank {initial_model.rank}, and the training {rank}")
    try:
        names = CheckpointNames.of(plan.name, ps)
        program = SOLVERS[plan.solver](Problem(survey, packed.deal, plan, initial_model), names, on_step)
        return run_program(ps, program, OwnRows(packed.frame, packed.workers, program.reader()), names)
    finally:
        survey.release()


class MatrixFactorizationModel(FactorColumnSettings, FittedModel, Model):
    """A trained ``MatrixFactorization``."""

    __module__ = "ps2.algorithms.recommendation"
    _ARRAYS = MatrixFactors

    def __repr__(self) -> str:
        factors = self.factors
        sizes = f"users={len(factors.users):,}, items={len(factors.items):,}"
        return f"{type(self).__name__}: uid={self.uid}, rank={self.rank}, {sizes}"

    # -- factors ---------------------------------------------------------------------------------------------------

    @property
    def factors(self) -> MatrixFactors:
        """The factors as arrays, usable without Spark."""
        factors: MatrixFactors = self._fitted
        return factors

    @property
    def rank(self) -> int:
        """Size of the vectors."""
        return self.factors.rank

    @property
    def mean(self) -> float:
        """The mean rating, which predictions begin with; 0 without biases."""
        return self.factors.mean

    @property
    def userFactors(self) -> DataFrame:
        """All users' vectors, in order of the ids: columns id, features (array of floats) and, with biases, bias."""
        return frames.factors_frame(*self._session_and_share(), self.factors.user, for_users=True)

    @property
    def itemFactors(self) -> DataFrame:
        """All items' vectors; see ``userFactors``."""
        return frames.factors_frame(*self._session_and_share(), self.factors.item, for_users=False)

    # -- without Spark ---------------------------------------------------------------------------------------------

    def recommend(self, user: Any, k: int = 10, **more: Any) -> list[tuple[Any, float]]:
        """Return the best items for a user; see ``MatrixFactors.recommend``."""
        return self.factors.recommend(user, k, **more)

    def predict(self, users: Any, items: Any) -> Any:
        """Predict the ratings of pairs of ids; see ``MatrixFactors.predict``."""
        return self.factors.predict(users, items)

    def similarItems(self, item: Any, k: int = 10) -> list[tuple[Any, float]]:
        """Return the most similar items; see ``MatrixFactors.similarItems``."""
        return self.factors.similarItems(item, k)

    def similarUsers(self, user: Any, k: int = 10) -> list[tuple[Any, float]]:
        """Return the most similar users; see ``MatrixFactors.similarUsers``."""
        return self.factors.similarUsers(user, k)

    # -- DataFrames ------------------------------------------------------------------------------------------------

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_frame(dataset)
        name = self.getPredictionCol()
        if not name:
            return dataset
        columns = self.getUserCol(), self.getItemCol()
        share = self._share(backend_of(dataset))
        rated = frames.with_ratings(dataset, share, self.factors, columns, name)
        return rated.where(~F.isnan(F.col(f"`{name}`"))) if self.getColdStartStrategy() == "drop" else rated

    def scoring(self) -> PairScoring:
        """Return how ``transform`` scores rows, as plain data, for scorers without Spark; they drop no row."""
        columns = self.getUserCol(), self.getItemCol()
        integers = self.factors.users.are_integers, self.factors.items.are_integers
        return PairScoring(f"{MatrixFactors.__module__}:MatrixFactors", *columns, self.getPredictionCol(), integers)

    def recommendForAllUsers(self, numItems: int) -> DataFrame:
        """Return the best items for every user, in order of the ids.

        Returns:
            Columns ``userCol`` and recommendations: an array of structs (``itemCol``, rating), the largest rating
            first; ties go to the larger id.

        Raises:
            ConfigError: ``numItems`` is below 1.
        """
        return self._recommended(None, numItems, for_users=True)

    def recommendForAllItems(self, numUsers: int) -> DataFrame:
        """Return the best users for every item; see ``recommendForAllUsers``."""
        return self._recommended(None, numUsers, for_users=False)

    def recommendForUserSubset(self, dataset: DataFrame, numItems: int) -> DataFrame:
        """Return the best items for the users in ``userCol``, once each; unknown users are left out.

        Returns:
            See ``recommendForAllUsers``.

        Raises:
            InputError: the column is missing or has ids of another type.
            ConfigError: ``numItems`` is below 1.
        """
        return self._recommended(dataset, numItems, for_users=True)

    def recommendForItemSubset(self, dataset: DataFrame, numUsers: int) -> DataFrame:
        """Return the best users for the items in ``itemCol``; see ``recommendForUserSubset``."""
        return self._recommended(dataset, numUsers, for_users=False)

    def _recommended(self, dataset: Any, k: int, for_users: bool) -> DataFrame:
        check_k(k)
        names = self.getUserCol(), self.getItemCol()
        direction = frames.Direction(for_users, *(names if for_users else reversed(names)))
        if for_all := dataset is None:
            dataset = active_session()
        else:
            check_frame(dataset)
        share = self._share(backend_of(dataset))
        return frames.recommended(dataset, share, self.factors, direction, k, for_all)

    def _session_and_share(self) -> tuple[SparkSession, Callable[[], MatrixFactors]]:
        spark = active_session()
        return spark, self._share(backend_of(spark))

    # -- files, summaries, pyspark.ml ------------------------------------------------------------------------------

    def _remember(self, dataset: DataFrame, history: TrainingHistory) -> None:
        self._summary = FactorizationSummary(history)

    def toPyspark(self) -> recommendation.ALSModel:
        """Return a pyspark.ml model with the same predictions.

        Without biases it has the same vectors. With biases, vectors have two elements more: see
        ``MatrixFactors.extended``.

        Raises:
            UsageError: ids are strings, or integers of more than 32 bits, which pyspark.ml does not support.
        """
        factors = self.factors
        for side in (factors.user, factors.item):
            _check_narrow(side)
        # The models of pyspark.ml persist them, too.
        users = frames.extended_frame(*self._session_and_share(), factors.user, for_users=True).persist()
        items = frames.extended_frame(*self._session_and_share(), factors.item, for_users=False).persist()
        rank = factors.extended()[0].shape[1]
        return self._as_pyspark(recommendation.ALSModel, rank, java_frame(users), java_frame(items))


def _check_narrow(side: Side) -> None:
    """Raise UsageError unless all ids are integers of 32 bits."""
    expected = f"toPyspark: expected {side.names.what}s' ids that are integers of 32 bits, as pyspark.ml's are, got"
    if not side.names.are_integers:
        raise UsageError(f"{expected} strings")
    for id in (side.names[0], side.names[-1]):
        if not MIN_ID <= id <= MAX_ID:
            raise UsageError(f"{expected} {id}")


# For isinstance(); a real subclass would have to wrap a Java object.
recommendation.ALSModel.register(MatrixFactorizationModel)
